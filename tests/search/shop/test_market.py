"""A pruned market says what planning every cell says, and its bounds are bounds."""

import re

import msgspec
import numpy as np
import pytest

from brimful.cli import defaults
from brimful.cost.money import DRAW_SHARE, PUE, Price, Prices
from brimful.cost.reserved import predicted_reserved
from brimful.errors import UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.grid import least_peaks, peaks_of
from brimful.search.grid_seconds import seconds_of
from brimful.search.grid_values import Search
from brimful.search.holding import hold
from brimful.search.offloading import solve_offloading
from brimful.search.pins import Pins
from brimful.search.shop import shelf
from brimful.search.shop.bound import least_of_grid, least_seconds, least_work
from brimful.search.shop.cell import Found
from brimful.search.shop.choose import choose
from brimful.search.shop.market import counts, counts_of, frontier, market, option_of
from brimful.search.shop.shelf import Shelf
from brimful.search.shop.values import DAY_S, Limits, Request
from brimful.search.solve import solve
from brimful.search.space import grids
from brimful.units import format_bytes
from brimful.values.job import plain_job

KINDS = ("rtx-3060", "rtx-4090", "h100-80gb")
NUM_GPUS = (1, 2)


def job_of(name="tinyllama-1.1b", batch=2, steps=1000):
    return plain_job(load_model(name), seq_len=1024, global_batch=batch, num_steps=steps)


def prices(**rents):
    rows = {
        name.replace("_", "-"): Price(usd_per_gpu_hour=usd, date="2026-01-01", source="a test")
        for name, usd in rents.items()
    }
    return Prices(date="2026-01-01", gpus=rows)


RENTS = prices(rtx_3060=0.14, rtx_4090=0.3, a100_40gb=1.0, h100_80gb=2.5, t4=0.1)


def request(**changes):
    given = {"job": job_of(), "attention": "sdpa", "kinds": KINDS, "prices": RENTS, "max_gpus": 2}
    return Request(**given | changes)


@pytest.fixture(scope="module")
def found():
    return market(request())


@pytest.fixture(scope="module")
def planned():
    """Every cell, by ``solve``: the slow and obvious way."""
    options = {}
    for kind in KINDS:
        for number in NUM_GPUS:
            counted = f"{number}x{kind}"
            cluster = load_cluster(counted, memory_limit_bytes=None)
            pins = Pins(reference="none")
            solved = solve(job_of(), cluster, pins, attention="sdpa", objective="time")
            row = hold(solved).solution.record.rows[0]
            options[counted.removeprefix("1x")] = row
    return options


def test_the_frontier_is_that_of_every_cell(found, planned):
    points = []
    for gpus_words, row in planned.items():
        if row.fits and row.step_s is not None:
            number = int(gpus_words[0]) if gpus_words[1] == "x" else 1
            usd = (
                row.step_s
                * number
                * RENTS.gpus[
                    next(kind for kind in KINDS if gpus_words.endswith(kind))
                ].usd_per_gpu_hour
            )
            points.append((row.step_s, usd, gpus_words))
    best = [
        name
        for s, usd, name in points
        if not any(a <= s and b <= usd and (a, b) != (s, usd) for a, b, _ in points)
    ]
    assert {each.gpus for each in found.frontier} == set(best)
    assert len(best) > 1


def test_what_is_found_is_what_solve_finds(found, planned):
    for option in found.options:
        row = planned[option.gpus]
        assert (option.strategy, option.predicted_step_s) == (row.strategy, row.step_s)
        assert option.predicted_peak_bytes == row.peak_bytes


def test_cards_that_run_other_kernels_share_nothing(found):
    """A T4 writes attention out: what it takes was once taken for what every card does."""
    assert market(request(kinds=("t4", *KINDS))).options == found.options


@pytest.mark.long  # search/test_holding.py shows it of one cluster
def test_what_is_found_holds_by_its_replay():
    """8B on eight 4090s: the fastest by live bytes needs more than there is."""
    job = plain_job(load_model("llama-3.1-8b"), seq_len=4096, global_batch=256, num_steps=10)
    job = msgspec.structs.replace(job, precision="bf16-mixed")
    (option,) = market(
        Request(job=job, attention="sdpa", kinds=("rtx-4090",), prices=RENTS, max_gpus=8)
    ).options
    cluster = load_cluster("8xrtx-4090", memory_limit_bytes=None)
    assert predicted_reserved(job, cluster, option.strategy).word == "fits"
    pins = Pins(reference="none", pp=1)
    plan = hold(solve(job, cluster, pins, attention="sdpa", objective="time")).solution.plan
    assert (option.strategy, option.predicted_step_s) == (
        plan.strategy,
        plan.estimate.predicted_step_s,
    )


@pytest.mark.long  # the frontier is that of every cell, above
def test_planning_every_cell_changes_no_frontier(found):
    every = market(request(every=True))
    assert every.frontier == found.frontier
    assert every.num_planned > found.num_planned
    assert set(found.options) <= set(every.options)


@pytest.mark.few(1)
@pytest.mark.parametrize("limits", [Limits(), Limits(deadline_s=700), Limits(budget_usd=0.2)])
def test_what_is_taken_is_the_same_where_only_that_has_to_be_certain(found, limits):
    quick = market(request(limits=limits))
    assert choose(quick, limits) == choose(found, limits)
    assert set(quick.options) <= set(found.options)
    assert quick.likely
    assert not found.likely
    names = {each.gpus for each in found.options}
    assert all(each.predicted_usd is not None for each in quick.likely)
    assert {each.gpus for each in quick.likely} <= names | {each.gpus for each in found.dropped}


@pytest.mark.long  # the fewest of one question are below, what holds is in search/test_holding.py
def test_the_fewest_of_every_kind_hold_and_half_as_many_do_not():
    """3B in full: 48 GB of states and gradients on two cards of 24 GB or on one of 80."""
    asked = request(job=job_of("llama-3.2-3b", 8), kinds=("rtx-4090", "h100-80gb"), max_gpus=4)
    found = market(asked._replace(fewest=True))
    fewest = {each.kind: each.fewest for each in found.alone}
    assert fewest["h100-80gb"] == 1
    assert fewest["rtx-4090"] > 1
    assert {(each.kind, each.num_gpus) for each in found.fewest} == set(fewest.items())
    for option in found.fewest:
        cluster = load_cluster(option.gpus, memory_limit_bytes=None)
        assert predicted_reserved(asked.job, cluster, option.strategy).word == "fits"
        if option.num_gpus > 1:
            half = load_cluster(f"{option.num_gpus // 2}x{option.kind}", memory_limit_bytes=None)
            pins = Pins(reference="none")
            solved = solve(asked.job, half, pins, attention="sdpa", objective="memory")
            reserved = predicted_reserved(asked.job, half, solved.plan.strategy)
            assert not solved.plan.estimate.fits or reserved.word != "fits"
    assert {each.kind: each.fewest for each in market(asked).alone} == {
        "h100-80gb": 1,
        "rtx-4090": None,  # one of another kind is enough: not looked for
    }


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "limits", [Limits(), Limits(deadline_s=700), Limits(deadline_s=3000), Limits(budget_usd=0.2)]
)
def test_the_fewest_that_are_told_are_within_what_was_asked(planned, limits):
    num_steps, meeting = job_of().num_steps, {}
    for name, row in planned.items():
        cluster = load_cluster(name, memory_limit_bytes=None)
        whole_s = (row.step_s or 1e9) * num_steps
        usd = RENTS.gpus[cluster.name].usd_per_gpu_hour * cluster.num_devices * whole_s / 3600
        in_time = whole_s <= (limits.deadline_s or 1e9)
        if row.fits and in_time and usd <= (limits.budget_usd or 1e9):
            meeting[name] = cluster.num_devices
    found = market(request(limits=limits)).smallest
    assert (found is None) == (not meeting)
    if found is not None:
        assert found.gpus in meeting
        assert found.num_gpus == min(meeting.values())


def test_each_kind_s_best_is_what_it_is_alone_and_the_fewest_are_no_worse(planned):
    """One that is beaten by another kind was neither told nor among the fewest."""
    told = {each.kind: each for each in market(request(limits=Limits(), each=True)).by_kind}
    assert set(told) == set(KINDS)
    for kind, best in told.items():
        alone = market(request(kinds=(kind,), limits=Limits()))
        assert choose(alone, Limits()).best.gpus == best.gpus
        assert planned[best.gpus].step_s == pytest.approx(best.predicted_step_s)


@pytest.mark.few
@pytest.mark.parametrize("counted", ["1x", "2x", "2x8x"])
@pytest.mark.parametrize("kind", ["rtx-4090", "b200"])
def test_no_strategy_is_faster_than_its_bound(counted, kind):
    job, cluster = job_of(batch=16), load_cluster(counted + kind, memory_limit_bytes=None)
    if kind == "rtx-4090" and cluster.num_nodes > 1:
        cluster = load_cluster(counted + kind, memory_limit_bytes=None, network_name="ib-ndr-400")
    least = least_seconds(least_work(job, "sdpa", cluster.device), job, "sdpa", cluster.device)
    search = Search(job, cluster, "sdpa", held={}, levels={}, works={}, waits={})
    nearest = np.inf
    for grid in grids(job, Pins(reference="none"), attention="sdpa", cluster=cluster):
        ratio = np.min(seconds_of(search, grid)) / least_of_grid(least, grid, cluster.num_devices)
        assert ratio >= 1 - 1e-9
        nearest = min(nearest, ratio)
    assert nearest < 1.5  # a bound, and not an empty one


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tinyllama-1.1b", {}),
        ("gemma-3-1b", {}),
        ("qwen3-0.6b", {"precision": "bf16-mixed"}),
        ("tinyllama-1.1b", {"task": "dpo"}),
    ],
)
def test_what_numbers_of_devices_share_changes_no_peak(name, changes):
    """Levels of single batches, made once for all numbers, are those of each number's own grids."""
    job = msgspec.structs.replace(job_of(name, batch=4), **changes)
    if job.task == "dpo":
        job = msgspec.structs.replace(job, preference=defaults.PREFERENCE, packing="none")
    shared = Shelf(request(job=job))
    for counted in ("4xa100-40gb", "2xrtx-4090", "h100-80gb"):
        cluster = load_cluster(counted, memory_limit_bytes=None)
        search = shared.search(cluster)
        own = Search(job, cluster, "sdpa", held={}, levels={}, works={}, waits={})
        kept = shared.least_kept(cluster)
        for grid in shared.space(cluster):
            peaks = peaks_of(own, grid)
            np.testing.assert_allclose(peaks_of(search, grid), peaks, rtol=1e-12)
            np.testing.assert_allclose(least_peaks(search, grid), least_peaks(own, grid))
            assert (kept <= peaks).all()


def test_the_fewest_of_each_kind_for_as_good_as_the_same_money_are_told():
    job, kinds = job_of("llama-3.2-3b", batch=8), ("rtx-4090", "h100-80gb")
    limits = Limits(deadline_s=1e9)
    found = market(request(job=job, kinds=kinds, limits=limits, each=True, max_gpus=4))
    told = {each.kind: each for each in found.fewer}
    assert told.keys() == {"h100-80gb"}
    for best in found.by_kind:
        near = []
        for num in (each for each in (1, 2) if each < best.num_gpus):  # powers are compared
            cluster = load_cluster(f"{num}x{best.kind}", memory_limit_bytes=None)
            held = hold(solve(job, cluster, Pins(), attention="sdpa", objective="time")).solution
            row = held.record.rows[0]
            if row.fits:
                usd = row.step_s * job.num_steps / 3600 * num * best.usd_per_gpu_hour
                near += [(num, usd)] * (usd <= 1.05 * best.predicted_usd)
        if best.kind in told:
            one = told[best.kind]
            assert (one.num_gpus, one.predicted_usd) == (near[0][0], pytest.approx(near[0][1]))
        else:
            assert not near


def test_what_is_owned_is_told_first_and_what_is_certain_as_soon_as_it_is():
    told = []
    owned = (load_cluster("rtx-4090", memory_limit_bytes=None),)
    found = market(request(owned=owned, limits=Limits()), None, told.append)
    assert told[0].gpus == "rtx-4090"
    assert {each.gpus for each in told[1:]} == {each.gpus for each in found.options}


def test_machines_are_as_many_as_are_usual():
    asked = request(max_gpus=64, max_nodes=8)
    assert counts_of(asked, "h100-80gb")[-1] == 64
    assert counts_of(asked, "gb200")[-1] == 32  # nodes of four
    assert counts_of(asked, "gh200") == (1,)  # rented one by one
    assert counts_of(request(max_gpus=64), "gh200")[-1] == 64


def test_one_machine_is_named_beside_several():
    rents, limits = prices(gh200=0.1, h100_80gb=2.5), Limits(deadline_s=700)
    asked = request(
        job=job_of(batch=32), kinds=("gh200", "h100-80gb"), prices=rents, max_gpus=8, limits=limits
    )
    found = market(asked)
    assert choose(found, limits).best.kind == "gh200"
    assert (found.one_node.gpus, choose(found, limits).best.num_gpus > 1) == ("8xh100-80gb", True)
    assert found.one_node.predicted_days * DAY_S <= 700
    usual = market(asked._replace(max_nodes=8))
    assert choose(usual, limits).best.gpus == "8xh100-80gb"
    assert usual.one_node is None, "one machine is what is taken"


def test_old_cards_attend_without_scores_where_that_is_traced(monkeypatch):
    job = plain_job(
        load_model("qwen3-4b"), seq_len=1024, global_batch=2, num_steps=1, precision="fp16-mixed"
    )
    old, new = (load_cluster(name, memory_limit_bytes=None).device for name in ("t4", "a10"))
    asked = request(job=job, others=True)
    monkeypatch.setattr(shelf, "missing_formula", lambda *_: "")
    assert (Shelf(asked).attention(old), Shelf(asked).attention(new)) == ("efficient", "sdpa")
    assert Shelf(asked._replace(others=False)).attention(old) == "sdpa"
    monkeypatch.setattr(shelf, "missing_formula", lambda *_: "it was not traced")
    assert Shelf(asked).attention(old) == "sdpa"


def test_counts_fill_nodes():
    assert counts(1024) == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert counts(10) == (1, 2, 4, 8)
    assert counts(1) == (1,)


def test_days_dollars_and_energy_by_hand():
    asked = request(job=job_of(steps=3600))
    cluster = load_cluster("8xh100-80gb", memory_limit_bytes=None)
    best = next(each for each in market(request(max_gpus=1, kinds=("h100-80gb",))).options)
    found = Found(best.strategy, 5, 2.0)
    option = option_of(asked, cluster, found, 2.5)
    assert option.predicted_days == pytest.approx(2 / 24)
    assert option.predicted_usd == pytest.approx(8 * 2 * 2.5)
    assert option.predicted_energy_kwh == pytest.approx(16 * 0.7 * DRAW_SHARE * PUE)
    assert option.predicted_days_band.low < option.predicted_days < option.predicted_days_band.high
    ratio = option.predicted_usd_band.high / option.predicted_usd
    assert option.predicted_days_band.high / option.predicted_days == pytest.approx(ratio)
    own = option_of(asked._replace(usd_per_kwh=0.5), cluster, found, None, owned=True)
    assert own.predicted_usd == pytest.approx(16 * 0.7 * DRAW_SHARE * 0.5)


def test_a_kind_without_a_rate_says_so():
    job = msgspec.structs.replace(job_of(), precision="bf16-mixed")
    found = market(request(job=job, kinds=("t4", "rtx-4090"), max_gpus=1))
    alone = {each.kind: each for each in found.alone}
    assert "no known rate in bf16-mixed" in alone["t4"].why_not
    assert alone["t4"].at_best_usd is None
    assert not any(each.kind == "t4" for each in found.options)


def test_a_kind_without_a_price_is_planned_and_not_on_the_frontier():
    found = market(request(kinds=("h200", "rtx-4090"), max_gpus=2))
    assert [each.predicted_usd for each in found.options if each.kind == "h200"] == [None, None]
    assert {each.kind for each in found.frontier} == {"rtx-4090"}


def test_nodes_without_a_network_are_left_out_and_said():
    found = market(request(kinds=("rtx-4090",), max_gpus=16))
    assert "--network" in {each.gpus: each.why for each in found.dropped}["2x8xrtx-4090"]


def test_too_small_is_said_in_bytes():
    found = market(request(job=job_of("llama-3.1-8b", 2), kinds=("rtx-4090",), max_gpus=1))
    alone = found.alone[0]
    assert not alone.fits
    assert alone.predicted_peak_bytes > 4 * alone.usable_bytes
    assert found.options == found.frontier == ()


def test_a_job_without_a_formula_is_one_sentence():
    other = msgspec.structs.replace(job_of(), task="seq2seq")
    with pytest.raises(UnsupportedError, match="no GPU can be compared"):
        market(request(job=other))


def test_what_is_owned_is_planned_though_it_is_beaten():
    owned = (load_cluster("rtx-3060", memory_limit_bytes=None),
             load_cluster("2xrtx-4090", memory_limit_bytes=None))  # fmt: skip
    found = market(request(kinds=("h100-80gb",), max_gpus=1, owned=owned))
    assert "2xrtx-4090" in {each.gpus for each in found.owned}
    assert all(each.predicted_usd is None for each in found.owned)
    assert not {each.gpus for each in found.owned} & {each.gpus for each in found.unfit}
    assert len(found.owned) + len(found.unfit) == len(owned)


def test_what_is_owned_and_cannot_run_it_says_why():
    owned = (load_cluster("gtx-1080-ti", memory_limit_bytes=None),)
    job = plain_job(load_model("tinyllama-1.1b"), seq_len=65536, global_batch=1, precision="fp32")
    (told,) = market(request(job=job, kinds=("h100-80gb",), max_gpus=1, owned=owned)).unfit
    assert re.fullmatch(r"does not fit: [\d.]+ TiB of 10.26 GiB, short by [\d.]+ TiB", told.why)


def test_a_kind_that_was_named_holds_what_plan_would_offload():
    """It was said not to fit, or to be beaten, where ``plan`` of the same fits."""
    asked = request(job=job_of(batch=1), kinds=("rtx-3060", "h100-80gb"), max_gpus=1, each=True)
    found = market(asked)
    told = {each.kind: each for each in found.by_kind}["rtx-3060"]
    cluster = load_cluster("rtx-3060", memory_limit_bytes=None)
    plan = solve_offloading(
        asked.job, cluster, Pins(reference="none"), attention="sdpa", objective="time"
    ).plan
    assert (told.strategy, told.predicted_step_s) == (
        plan.strategy,
        plan.estimate.predicted_step_s,
    )
    assert plan.strategy.offload != "none"
    assert told.predicted_host_bytes == plan.estimate.host.predicted_training_bytes
    assert told in found.options


def test_what_is_owned_and_tight_is_told_as_a_plan_tells_it():
    """It was said not to fit, where ``plan`` of the same said that it may."""
    cluster = load_cluster("rtx-4000-ada", memory_limit_bytes=None)
    asked = request(kinds=("h100-80gb",), max_gpus=1, owned=(cluster,))
    (told,) = market(asked).unfit
    found = solve(asked.job, cluster, Pins(), attention="sdpa", objective="time")
    reserved = hold(found).reserved
    assert reserved.word == "tight"
    assert told.why.startswith(
        f"is tight: {format_bytes(reserved.predicted_peak_reserved_bytes)} of "
    )


def test_the_frontier_keeps_what_nothing_beats(found):
    one = found.frontier[0]
    assert frontier([one, one]) == (one,)
