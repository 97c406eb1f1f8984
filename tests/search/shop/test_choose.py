"""Deadlines, budgets, owning and advice, by hand on options that are made up."""

import math

import msgspec
import pytest
from msgspec.structs import replace

from brimful.cost.money import DRAW_SHARE, Price, Prices, Purchase
from brimful.hardware.gpus import load_cluster
from brimful.search.shop.advice import advice
from brimful.search.shop.choose import choose, knee
from brimful.search.shop.looks import Cell, Kind, bar_of
from brimful.search.shop.market import frontier
from brimful.search.shop.own import Cheapest, Terms, break_even_hours, cheapest_of, ownership
from brimful.search.shop.values import DAY_S, Alone, Limits, Market, Option
from brimful.units import format_days, format_money
from brimful.values.plan import Band
from brimful.values.strategy import Strategy

PLAN = Strategy(micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa")


def option(gpus, days, usd, num_gpus=1):
    return Option(
        gpus=gpus, kind=gpus.split("x", 1)[1] if num_gpus > 1 else gpus, num_gpus=num_gpus,
        precision="bf16-mixed",
        strategy=PLAN, predicted_peak_bytes=1, usable_bytes=2, predicted_step_s=1.0,
        predicted_days=days, predicted_days_band=Band(low=0.6 * days, high=1.4 * days),
        tokens_per_s=1.0, usd_per_gpu_hour=1.0, predicted_usd=usd,
        predicted_usd_band=Band(low=0.6 * usd, high=1.4 * usd), predicted_energy_kwh=1.0,
    )  # fmt: skip


SLOW, MIDDLE, FAST = option("l4", 10, 100), option("l40s", 4, 150), option("h200", 1, 900)
BEATEN = option("a10", 5, 160)


def market_of(*options, alone=()):
    return Market(
        options=options, frontier=frontier(options), alone=alone, dropped=(), owned=(), unfit=(),
        num_cells=len(options), num_planned=len(options),
    )  # fmt: skip


ALL = market_of(FAST, BEATEN, SLOW, MIDDLE)


def test_the_frontier_is_cheapest_first():
    assert ALL.frontier == (SLOW, MIDDLE, FAST)


@pytest.mark.parametrize(
    ("limits", "best"),
    [
        (Limits(), SLOW),
        (Limits(deadline_s=4 * DAY_S), MIDDLE),
        (Limits(deadline_s=3.99 * DAY_S), FAST),
        (Limits(budget_usd=899), MIDDLE),
        (Limits(budget_usd=900), FAST),
        (Limits(deadline_s=20 * DAY_S, budget_usd=120), SLOW),
    ],
)
def test_what_meets_deadline_and_budget(limits, best):
    choice = choose(ALL, limits)
    assert (choice.best, choice.meets) == (best, True)
    assert (choice.over_days, choice.over_usd) == (0, 0)


def test_where_nothing_meets_it_the_nearest_is_said_with_what_is_missing():
    late = choose(ALL, Limits(deadline_s=0.5 * DAY_S))
    assert (late.best, late.meets, late.over_days) == (FAST, False, 0.5)
    dear = choose(ALL, Limits(budget_usd=80))
    assert (dear.best, dear.meets, dear.over_usd) == (SLOW, False, 20)
    both = choose(ALL, Limits(deadline_s=2 * DAY_S, budget_usd=150))
    assert (both.best, both.over_days, both.over_usd) == (MIDDLE, 2, 0)
    assert choose(market_of(), Limits()) is None


@pytest.mark.parametrize(("usd", "limits"), [(109, Limits()), (109, Limits(deadline_s=3 * DAY_S))])
def test_one_machine_is_taken_for_several_that_cost_little_less(usd, limits):
    pod, node = option("64xl4", 1, 100, num_gpus=64), option("8xl4", 2, usd, num_gpus=8)
    found = replace(market_of(pod, FAST), one_node=node)
    assert choose(found, limits).best == node
    assert choose(found, Limits(deadline_s=1.5 * DAY_S)).best == pod  # which the other misses
    assert choose(replace(found, one_node=option("8xl4", 2, 111)), limits).best == pod


def test_of_what_is_done_within_a_day_the_cheapest_is_taken():
    node, pod = option("8xh100", 0.9, 12), option("64xh100", 0.1, 15)
    alone = option("h100", 6, 10)
    assert choose(market_of(alone, node, pod), Limits(budget_usd=20)).best == node
    assert choose(market_of(alone, pod), Limits(budget_usd=20)).best == pod
    assert choose(market_of(alone, node), Limits(budget_usd=11)).best == alone


def test_a_band_may_reach_past_what_was_asked():
    assert not choose(ALL, Limits(deadline_s=5 * DAY_S)).band_meets  # 4 x 1.4 = 5.6 days
    assert choose(ALL, Limits(deadline_s=5.7 * DAY_S)).band_meets


def test_the_knee_has_the_least_product():
    assert knee(ALL.frontier) == MIDDLE  # 1000, 600, 900
    assert knee([]) is None


def test_break_even_by_hand():
    assert break_even_hours(1600, 0.5, 0.1) == pytest.approx(4000)
    assert break_even_hours(1600, 0.1, 0.1) is None
    assert break_even_hours(None, 0.5, 0.1) is break_even_hours(1600, None, 0.1) is None


def test_owning_by_hand():
    run = option("2xrtx-4090", 10, 50, num_gpus=2)
    prices = Prices(
        date="", gpus={"rtx-4090": Price(usd_per_gpu_hour=0.5, date="", source="")},
        bought={"rtx-4090": Purchase(usd=1600, date="2026-01-01", source="a shop")},
    )  # fmt: skip
    own = ownership(run, prices, Terms(0.3, years=4, hours_per_month=500))
    hours = 2 * 10 * 24
    kwh = hours * 0.45 * DRAW_SHARE
    assert own.predicted_energy_kwh == pytest.approx(kwh)
    assert own.predicted_electricity_usd == pytest.approx(0.3 * kwh)
    assert own.buy_usd == 3200
    assert own.break_even_hours == pytest.approx(1600 / (0.5 - 0.3 * 0.45 * DRAW_SHARE))
    spread = 1600 * hours / (4 * 12 * 500)
    assert own.predicted_run_usd_amortised == pytest.approx(spread + 0.3 * kwh)


def test_what_is_unknown_of_owning_stays_unknown():
    run = option("2xrtx-4090", 10, 50, num_gpus=2)
    own = ownership(run, Prices(date="", gpus={}), Terms())
    assert own.predicted_electricity_usd is own.buy_usd is own.break_even_hours is None
    asked = ownership(run, Prices(date="", gpus={}), Terms(buy_usd=1000))
    assert (asked.buy_usd, asked.buy_source) == (2000, "--buy")


UNPRICED = msgspec.structs.replace(option("4xmine", 16, 100.0), predicted_usd=None)


@pytest.mark.parametrize(
    ("owned", "deadline_days", "taken", "is_rented"),
    [
        (option("4xmine", 16, 100.0), 30, True, False),  # of electricity
        (option("4xmine", 16, 700.0), 30, False, True),
        (option("4xmine", 40, 100.0), 30, False, True),
        (option("4xmine", 40, 100.0), None, True, False),
        (UNPRICED, None, False, False),
    ],
)
def test_what_is_owned_is_taken_where_it_is_cheapest_of_what_was_asked(
    owned, deadline_days, taken, is_rented
):
    limits = Limits(deadline_s=deadline_days and deadline_days * DAY_S)
    own = ownership(owned, Prices(date="", gpus={}), Terms())
    found = cheapest_of([owned], [own], limits, option("rented", 10, 500.0))
    assert found == Cheapest(owned if taken else None, is_rented)


def alone(kind, need, have, usd):
    return Alone(
        kind=kind, usd_per_gpu_hour=usd, fits=need <= have, predicted_peak_bytes=need,
        usable_bytes=have, at_best_usd=None, why_not="",
    )  # fmt: skip


GIB = 2**30


def test_advice_is_memory_first():
    kinds = (alone("l4", 20 * GIB, 22 * GIB, 0.8), alone("rtx-3060", 20 * GIB, 11 * GIB, 0.1))
    told = advice(market_of(SLOW, option("2xrtx-3060", 5, 120, num_gpus=2), alone=kinds))
    assert "needs 20.00 GiB: 1 of 2 kinds have that" in told[0]
    assert "l4 is the cheapest an hour" in told[1]
    assert "2xrtx-3060, 5 days and 120 USD: 0.5 times the time and 1.2 times the money" in told[2]
    none = advice(market_of(alone=(kinds[1],)))
    assert "no single GPU of the 1 kinds holds this job" in none[0]
    assert "short by 9.00 GiB" in none[0]


def cell(gpus, usd_per_gpu_hour, step_s=0.0):
    kind = Kind(gpus, usd_per_gpu_hour, {}, step_s)
    return Cell(kind, load_cluster(gpus, memory_limit_bytes=None), step_s)


def test_a_bar_is_where_something_beats_a_choice():
    pair = cell("2xrtx-4090", 1.8)  # 0.001 USD a second
    slow, dear = cell("l4", 1.8, 10), cell("h200", 7.2, 10)  # 0.005 and 0.02 USD a step
    assert bar_of(pair, [slow]) == (10, slow)  # it is as fast then, and costs 0.01 USD
    assert bar_of(pair, [dear]) == (pytest.approx(20), dear)
    assert bar_of(pair, [dear, slow]) == (10, slow)
    assert bar_of(cell("2xrtx-4090", None), [slow]) == (math.inf, None)
    assert bar_of(pair, []) == bar_of(pair, [cell("gh200", None, 1)]) == (math.inf, None)


def test_words():
    assert [format_days(d) for d in (3, 1, 1 / 48, 0.0003)] == [
        "3 days",
        "24 h",
        "30 min",
        "25.9 s",
    ]
    assert (format_money(1.5), format_money(1234.4)) == ("1.50 USD", "1,234 USD")
