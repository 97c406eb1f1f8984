"""Own or rent: electricity of a run, and after how much use a bought GPU has cost less."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from brimful.cost.money import Prices, Purchase, energy_kwh
from brimful.search.shop.values import DAY_S, Limits, Option

_HOURS_PER_DAY = 24
_MONTHS_PER_YEAR = 12


class Terms(NamedTuple):
    """What the user says of owning; None: unsaid.

    Attributes:
        usd_per_kwh: Electricity.
        buy_usd: Of one GPU, instead of what the table has.
        years: That a GPU serves.
        hours_per_month: That it is used.
    """

    usd_per_kwh: float | None = None
    buy_usd: float | None = None
    years: float | None = None
    hours_per_month: float | None = None


class Ownership(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run costs on one's own GPUs; None where something that it rests on is unknown.

    Attributes:
        gpus: As they are typed.
        predicted_days: Of the run.
        predicted_energy_kwh: Of the GPUs at home, without what a data centre takes for them.
        predicted_electricity_usd: Of that.
        buy_usd: Of all of them together.
        buy_source: Where one was at that price, and when.
        usd_per_gpu_hour_rented: Of the same kind.
        usd_per_gpu_hour_used: Electricity of an hour.
        break_even_hours: Hours of use after which buying and running them has cost what renting
            them would have.
        break_even_months: The same at the hours of use a month that were given.
        predicted_run_usd_amortised: Of the run, with the price spread over the hours of years.
        hours_per_month: That they are used, where that was said.
        months: That they serve, where that was said.
    """

    gpus: str
    predicted_days: float
    predicted_energy_kwh: float | None
    predicted_electricity_usd: float | None
    buy_usd: float | None
    buy_source: str
    usd_per_gpu_hour_rented: float | None
    usd_per_gpu_hour_used: float | None
    break_even_hours: float | None
    break_even_months: float | None
    predicted_run_usd_amortised: float | None
    hours_per_month: float | None = None
    months: float | None = None


class Cheapest(NamedTuple):
    """Where a run is cheapest of all that does what was asked.

    Attributes:
        owned: The GPUs of one's own where it is; None: not there, or nobody knows.
        is_rented: Whether renting is surely cheaper than what one has or would buy.
    """

    owned: Option | None = None
    is_rented: bool = False


def cheapest_of(
    owned: Sequence[Option], own: Sequence[Ownership], limits: Limits, rented: Option
) -> Cheapest:
    """Say whether a run is cheapest on one's own GPUs or on what is rented.

    ``limits``: what was asked; the fastest for some money is rented or owned alike.
    """
    if limits.budget_usd is not None and limits.deadline_s is None:
        return Cheapest()
    costs = [
        (each.predicted_usd if one.predicted_run_usd_amortised is None
         else one.predicted_run_usd_amortised, place)
        for place, (each, one) in enumerate(zip(owned, own, strict=True))
        if limits.deadline_s is None or each.predicted_days * DAY_S <= limits.deadline_s
    ]  # fmt: skip
    known = [(usd, place) for usd, place in costs if usd is not None]
    usd, place = min(known, default=(math.inf, -1))
    if place >= 0 and (rented.predicted_usd is None or usd < rented.predicted_usd):
        return Cheapest(owned[place])
    return Cheapest(is_rented=bool(owned) and len(known) == len(costs))


def ownership(option: Option, prices: Prices, terms: Terms) -> Ownership:
    """Say what owning the GPUs of an option means."""
    hours = option.num_gpus * option.predicted_days * _HOURS_PER_DAY
    kwh = energy_kwh(option.kind, hours)
    electricity = _times(kwh, terms.usd_per_kwh)
    used = None if electricity is None else electricity / hours
    rent = prices.gpus.get(option.kind)
    rented = None if rent is None else rent.usd_per_gpu_hour
    bought = _bought(option.kind, prices, terms)
    each = None if bought is None else bought.usd
    pays_back = break_even_hours(each, rented, used)
    a_month = terms.hours_per_month
    return Ownership(
        gpus=option.gpus,
        predicted_days=option.predicted_days,
        predicted_energy_kwh=kwh,
        predicted_electricity_usd=electricity,
        buy_usd=_times(each, option.num_gpus),
        buy_source="" if bought is None else f"{bought.source} {bought.date}".strip(),
        usd_per_gpu_hour_rented=rented,
        usd_per_gpu_hour_used=used,
        break_even_hours=pays_back,
        break_even_months=pays_back / a_month if pays_back and a_month else None,
        predicted_run_usd_amortised=_amortised(each, hours, electricity, terms),
        hours_per_month=a_month,
        months=None if terms.years is None else terms.years * _MONTHS_PER_YEAR,
    )


def _bought(kind: str, prices: Prices, terms: Terms) -> Purchase | None:
    if terms.buy_usd is not None:
        return Purchase(usd=terms.buy_usd, date="", source="--buy")
    return prices.bought.get(kind)


def break_even_hours(
    buy_usd: float | None, rented: float | None, used: float | None
) -> float | None:
    """Return the hours of use after which one GPU has cost what renting one would have.

    buy + used h = rented h: h = buy / (rented - used).

    Returns hours; None where one of them is unknown, or an hour of rent is no dearer than its
    electricity: then buying never pays.
    """
    if buy_usd is None or rented is None or used is None or rented <= used:
        return None
    return buy_usd / (rented - used)


def _amortised(
    each: float | None, hours: float, electricity: float | None, terms: Terms
) -> float | None:
    """Return price x hours of the run / hours of the GPU's life, and the run's electricity."""
    if each is None or electricity is None or not terms.years or not terms.hours_per_month:
        return None
    life = terms.years * _MONTHS_PER_YEAR * terms.hours_per_month
    return each * hours / life + electricity


def _times(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value * factor
