"""Memory first, then count: what the numbers of a market say about small budgets, in sentences.

Nothing here is said that the options do not show; where there is nothing to compare, nothing is.
"""

from collections.abc import Iterator

from brimful.search.shop.choose import knee
from brimful.search.shop.values import Alone, Market, Option
from brimful.units import format_bytes, format_days, format_money

_ALIKE = 0.02


def advice(found: Market) -> tuple[str, ...]:
    """Say what decides: memory, then the number, then what more money buys."""
    return (*_memory(found), *_against(found), *_more(found))


def _memory(found: Market) -> Iterator[str]:
    """Which kinds hold the job alone, and which is the cheapest of them an hour."""
    known = [each for each in found.alone if each.predicted_peak_bytes is not None]
    fitting = [each for each in known if each.fits]
    if not known:
        return
    need = format_bytes(min(each.predicted_peak_bytes or 0 for each in known))
    if not fitting:
        most = max(known, key=lambda each: each.usable_bytes)
        short = format_bytes((most.predicted_peak_bytes or 0) - most.usable_bytes)
        yield (
            f"no single GPU of the {len(known)} kinds holds this job: its leanest plan needs "
            f"{need}, and the largest, {most.kind}, is short by {short}"
        )
        return
    yield (
        f"the leanest plan on one GPU needs {need}: {len(fitting)} of {len(known)} kinds have that"
    )
    rented = [each for each in fitting if each.usd_per_gpu_hour is not None and not each.why_not]
    if rented:
        least = min(rented, key=lambda each: each.usd_per_gpu_hour or 0.0)
        yield (
            f"memory first: of those whose speed is known {least.kind} is the cheapest an hour, at "
            f"{least.usd_per_gpu_hour:.2f} USD"
        )


def _against(found: Market) -> Iterator[str]:
    """What the cheapest option does that others do not: one GPU of much memory, or several."""
    cheapest = next(iter(found.frontier), None)
    if cheapest is None:
        return
    single = _cheapest([each for each in found.options if each.num_gpus == 1])
    several = _cheapest([each for each in found.options if each.num_gpus > 1])
    if single is None or several is None:
        return
    yield (
        f"the cheapest single GPU, {single.gpus}, takes {_both(single)}; the cheapest several, "
        f"{several.gpus}, {_both(several)}: {_compared(several, single)}"
    )


def _cheapest(options: list[Option]) -> Option | None:
    priced = [each for each in options if each.predicted_usd is not None]
    return min(priced, key=lambda each: each.predicted_usd or 0.0, default=None)


def _compared(one: Option, other: Option) -> str:
    days = _ratio(one.predicted_days, other.predicted_days, "the time")
    usd = _ratio(one.predicted_usd or 0.0, other.predicted_usd or 0.0, "the money")
    return f"{days} and {usd}"


def _ratio(value: float, reference: float, what: str) -> str:
    share = value / reference if reference else float("inf")
    if abs(share - 1) < _ALIKE:
        return f"the same {what.removeprefix('the ')}"
    return f"{share:.2g} times {what}"


def _both(option: Option) -> str:
    return f"{format_days(option.predicted_days)} and {format_money(option.predicted_usd or 0.0)}"


def _more(found: Market) -> Iterator[str]:
    """What the next dollars buy: from the cheapest to the knee, and to the fastest."""
    if len(found.frontier) < 2:  # noqa: PLR2004 - nothing to compare
        return
    cheapest, fastest, middle = found.frontier[0], found.frontier[-1], knee(found.frontier)
    told = {fastest.gpus: (fastest, "the fastest")}
    if middle is not None and middle.gpus not in {cheapest.gpus, fastest.gpus}:
        told = {middle.gpus: (middle, "the least days x USD"), **told}
    for option, what in told.values():
        speed = cheapest.predicted_days / option.predicted_days
        more = (option.predicted_usd or 0.0) / (cheapest.predicted_usd or 1.0)
        yield (
            f"{what} is {option.gpus}, {_both(option)}: {_times(speed)} times as fast as the "
            f"cheapest for {_times(more)} times the money"
        )


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"  # noqa: PLR2004


def outcome(found: Market, kind: Alone) -> str:
    """Say what became of a kind, in a few words."""
    if kind.why_not:
        return kind.why_not.removeprefix(f"{kind.kind} has ")
    kept = [each.gpus for each in found.frontier if each.kind == kind.kind]
    if kept:
        return "on the frontier: " + ", ".join(kept)
    planned = [each for each in found.options if each.kind == kind.kind]
    beaten = [each.why for each in found.dropped if f"x{each.gpus}".endswith(f"x{kind.kind}")]
    if planned:
        best = _cheapest(planned)
        return f"beaten: {best.gpus} takes {_both(best)}" if best else "its price is unknown"
    seen = next((why for why in beaten if why.startswith("beaten")), None)
    return seen or (beaten[0] if beaten else "")
