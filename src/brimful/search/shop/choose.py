"""What to take of what can be had: by a deadline, by a budget, by both, by neither."""

import math
from collections.abc import Sequence

import msgspec

from brimful.search.shop.values import DAY_S, Limits, Market, Option


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to take.

    Attributes:
        best: What meets what was asked; where nothing does, what comes nearest.
        meets: Whether it does.
        over_days: Days beyond the deadline; 0 where there is none or it is met.
        over_usd: Dollars beyond the budget; the same.
        band_meets: Whether it does at the slow end of its band too.
    """

    best: Option
    meets: bool
    over_days: float
    over_usd: float
    band_meets: bool


def choose(found: Market, limits: Limits) -> Choice | None:
    """Choose from the frontier: what it beats is never better.

    With a deadline: the cheapest that meets it. With a budget alone: the fastest within it. With
    neither: the cheapest. Where nothing meets both, what is over by the smallest share.

    Args:
        found: What there is.
        limits: What was asked.

    Returns:
        The choice; None where nothing has a price and a time.
    """
    if not found.frontier:
        return None
    good = [option for option in found.frontier if _worst(option, limits) <= 1]
    if not good:
        best = min(found.frontier, key=lambda option: _worst(option, limits))
    elif limits.deadline_s is None and limits.budget_usd is not None:
        best = min(good, key=lambda option: option.predicted_days)
    else:
        best = min(good, key=_usd)
    slow = _slow(best)
    return Choice(
        best=best,
        meets=bool(good),
        over_days=_over(best.predicted_days, _days(limits)),
        over_usd=_over(_usd(best), limits.budget_usd),
        band_meets=_worst(slow, limits) <= 1,
    )


def knee(options: Sequence[Option]) -> Option | None:
    """Return the option with the least product of days and dollars."""
    priced = [each for each in options if each.predicted_usd is not None]
    return min(priced, key=lambda each: each.predicted_days * _usd(each), default=None)


def _usd(option: Option) -> float:
    return math.inf if option.predicted_usd is None else option.predicted_usd


def _days(limits: Limits) -> float | None:
    return None if limits.deadline_s is None else limits.deadline_s / DAY_S


def _worst(option: Option, limits: Limits) -> float:
    """Return the larger of the shares of deadline and budget that an option takes; 0: no limit."""
    days, budget = _days(limits), limits.budget_usd
    late = 0.0 if days is None else option.predicted_days / days
    dear = 0.0 if budget is None else _usd(option) / budget
    return max(late, dear)


def _over(value: float, limit: float | None) -> float:
    return 0.0 if limit is None else max(0.0, value - limit)


def _slow(option: Option) -> Option:
    """Return an option at the slow end of its band."""
    band = option.predicted_usd_band
    return msgspec.structs.replace(
        option,
        predicted_days=option.predicted_days_band.high,
        predicted_usd=None if band is None else band.high,
    )
