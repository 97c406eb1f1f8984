"""What is owned, or would be bought, beside what is rented."""

from collections.abc import Sequence

from brimful.cost.money import HOUR_S
from brimful.search.shop.own import Cheapest, Ownership
from brimful.search.shop.values import DAY_S, Option
from brimful.show.settings import differing_words
from brimful.show.summary import Fact
from brimful.units import format_bytes, format_days, format_money
from brimful.values.job import Job


def both_words(option: Option) -> str:
    """Say how long a run takes and what it costs, and what it needs of a host."""
    cost = "" if option.predicted_usd is None else f" and {format_money(option.predicted_usd)}"
    host = option.predicted_host_bytes
    away = f" with {format_bytes(host)} on the host" if host else ""
    return f"{format_days(option.predicted_days)}{cost}{away}"


def leading(owned: Sequence[Option], cheapest: Cheapest) -> Option | None:
    """Return what of one's own an answer begins with; None: with what is rented.

    That is the cheapest of all, or the fastest of several kinds where nobody knows what is cheaper.
    """
    compared = [] if cheapest.is_rented else compared_of(owned)
    return cheapest.owned or (compared[0] if compared else None)


def decided_words(asked: str, compared: Sequence[Option], cheapest: Cheapest, best: Option) -> str:
    """Say which is the cheapest where somebody asks between kinds and renting; else what was."""
    if not compared:
        return asked
    if cheapest.owned:
        return f"{asked} is yours, {cheapest.owned.gpus}"
    return f"{asked} is to rent {best.gpus}" if cheapest.is_rented else "yours"


def compared_of(owned: Sequence[Option]) -> list[Option]:
    """Return what is owned, the fastest first, where it is of several kinds; else nothing."""
    if len({each.kind for each in owned}) < 2:  # noqa: PLR2004 - nothing to compare
        return []
    return sorted(owned, key=lambda each: each.predicted_days)


def against_facts(job: Job, compared: Sequence[Option]) -> list[Fact]:
    """Lay the fastest of what is compared against the next: speed, energy, and settings."""
    if not compared:
        return []
    first, second = compared[:2]
    times = second.predicted_days / first.predicted_days
    is_sure = first.predicted_days_band.high < second.predicted_days_band.low
    words = f"{first.gpus} {times:.2f} x as fast{'' if is_sure else ', within the range of both'}"
    energies = (first.predicted_energy_kwh, second.predicted_energy_kwh)
    if all(energies):
        words += f"; {energies[0]:,.1f} against {energies[1]:,.1f} kWh"
    differing = ", ".join(differing_words(job, first.strategy, second.strategy))
    return [Fact("compared", f"{words}; {second.gpus} {differing}" if differing else words, words)]


def yours_fact(owned: Option, best: Option, own: Ownership) -> Fact:
    """Say what a run takes on one's own GPUs, and whether that is cheaper than to rent."""
    words, kwh = f"{owned.gpus}: {both_words(owned)}", owned.predicted_energy_kwh
    rent = best.predicted_usd
    whole = own.predicted_run_usd_amortised
    if rent is not None and whole is not None:
        less = "less" if whole < rent else "more"
        words = (
            f"{owned.gpus}: {format_days(owned.predicted_days)} and {format_money(whole)}, its "
            f"part of {_price_words(owned, own)} with it, {less} than to rent {best.gpus}"
            f"{_same_rented(owned, best, own)}"
        )
        back = paid_back(own, rent)
        paid = back.partition(" hours,")[0].replace(" against that", "")
        paid += " h" if paid != back else ""
        short = (
            f"{owned.gpus}: {both_words(owned)} of electricity, {format_money(whole)} with its "
            f"part of the price, {less} than to rent{paid}"
        )
        return Fact("yours", words + back, short)
    short = ""
    if rent is None or not kwh:
        return Fact("yours", words)
    if owned.predicted_usd is None:
        words += f"; cheaper than to rent below {format_money(rent / kwh)} a kWh ({kwh:,.0f} kWh)"
    else:
        less = "less" if owned.predicted_usd < rent else "more"
        words += (
            f" of electricity alone ({kwh:,.0f} kWh), {less} than to rent {best.gpus}"
            f"{_same_rented(owned, best, own)}; what the GPU costs is not in it"
        )
        short = f"{owned.gpus}: {both_words(owned)} of electricity alone, {less} than to rent"
        back = paid_back(own, rent)
        words, short = words + back, short + back.partition(", which is")[0]
    return Fact("yours", words, short)


def _same_rented(owned: Option, best: Option, own: Ownership) -> str:
    """Say what the same GPUs cost to rent, where others are taken and somebody rents these out."""
    if own.usd_per_gpu_hour_rented is None or owned.gpus == best.gpus:
        return ""
    usd = own.usd_per_gpu_hour_rented * owned.num_gpus * owned.predicted_days * DAY_S / HOUR_S
    return f" (or the same, {format_money(usd)})"


def _price_words(owned: Option, own: Ownership) -> str:
    """Say what the GPUs cost, of several what each does: a sum for all is easily meant."""
    if own.buy_usd is None or owned.num_gpus == 1:
        return "the GPU's price"
    return f"the GPUs' price ({owned.num_gpus} x {format_money(own.buy_usd / owned.num_gpus)})"


def paid_back(own: Ownership, rent_usd: float) -> str:
    """Say after how long a bought GPU has cost what the offer beside it would have.

    buy + electricity r = rent r: after r = buy / (rent - electricity) runs.
    """
    electricity, a_month = own.predicted_electricity_usd, own.hours_per_month
    if own.buy_usd is None or electricity is None:
        return ""
    if rent_usd <= electricity:
        return "; never paid back: its electricity alone costs no less"
    runs = own.buy_usd / (rent_usd - electricity)
    hours = runs * own.predicted_days * DAY_S / HOUR_S
    if not a_month:
        return f"; that is paid back after {hours:,.0f} hours, which is {runs:,.0f} such runs"
    served = f", of {own.months:,.0f} that it serves" if own.months else ""
    return (
        f"; paid back against that after {hours:,.0f} hours, {hours / a_month:,.0f} months of such "
        f"use{served}"
    )
