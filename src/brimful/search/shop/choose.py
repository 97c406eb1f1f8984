"""What to take of what can be had: by a deadline, by a budget, by both, by neither."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import msgspec

from brimful.search.shop.values import DAY_S, Limits, Market, Option

WORTH_SEVERAL = 1.1
"""By so much one machine may cost more than several that are as good: these have to be set up, and
paid while they are."""
SOON_DAYS = 1.0
"""A day: over night is fast enough for who has said what to spend, and not how soon."""


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


class Point(NamedTuple):
    """What an option takes, or a run at a bound; infinite dollars: unknown."""

    days: float
    usd: float


def choose(found: Market, limits: Limits) -> Choice | None:
    """Choose from the frontier: what it beats is never better; see ``taken``.

    One machine is taken for several where it costs little more.

    Returns the choice; None where nothing has a price and a time.
    """
    if not found.frontier:
        return None
    points = [point_of(option) for option in found.frontier]
    place = taken(points, limits)
    best = found.frontier[place]
    if _is_enough(found.one_node, best, limits):
        best = found.one_node
    point = point_of(best)
    band = best.predicted_usd_band
    slow = Point(best.predicted_days_band.high, math.inf if band is None else band.high)
    return Choice(
        best=best,
        meets=_worst(point, limits) <= 1,
        over_days=_over(point.days, _days(limits)),
        over_usd=_over(point.usd, limits.budget_usd),
        band_meets=_worst(slow, limits) <= 1,
    )


def _is_enough(one: Option | None, best: Option, limits: Limits) -> TypeGuard[Option]:
    """Whether one machine does what several were taken for, for little more."""
    if one is None or _worst(point_of(one), limits) > 1:
        return False
    is_cheapest = limits.deadline_s is not None or limits.budget_usd is None
    return is_cheapest and point_of(one).usd <= WORTH_SEVERAL * point_of(best).usd


def taken(points: Sequence[Point], limits: Limits) -> int:
    """Return which of some points to take, none of which beats another.

    With a deadline: the cheapest that meets it. With a budget alone: the fastest within it, or the
    cheapest of those that are done soon. With neither: the cheapest. Where nothing meets both, what
    is over by the smallest share.
    """
    places = range(len(points))
    good = [i for i in places if _worst(points[i], limits) <= 1]
    if not good:
        return min(places, key=lambda i: _worst(points[i], limits))
    return min(good, key=lambda i: rank(points[i], limits))


def does(point: Point, limits: Limits) -> bool:
    """Whether a point is within what was asked."""
    return _worst(point, limits) <= 1


def last_within(points: Sequence[Point], limits: Limits) -> int:
    """Return the fastest of some points, slowest first, within what was asked; else of all."""
    within = [i for i, point in enumerate(points) if _worst(point, limits) <= 1]
    return within[-1] if within else len(points) - 1


def rank(point: Point, limits: Limits) -> tuple[float, float]:
    """Return by what of two that meet what was asked the lesser is the better."""
    if limits.deadline_s is None and limits.budget_usd is not None:
        return max(point.days, SOON_DAYS), point.usd
    return point.usd, point.days


def is_soon(option: Option, limits: Limits) -> bool:
    """Whether what is taken is the cheapest of what is done soon, and not the fastest."""
    return limits.deadline_s is None and option.predicted_days <= SOON_DAYS


def middle(points: Sequence[Point]) -> int:
    """Return the point with the least product of days and dollars."""
    return min(range(len(points)), key=lambda i: points[i].days * points[i].usd)


def knee(options: Sequence[Option]) -> Option | None:
    """Return the option with the least product of days and dollars."""
    priced = [each for each in options if each.predicted_usd is not None]
    return priced[middle([point_of(each) for each in priced])] if priced else None


def point_of(option: Option) -> Point:
    """Return what an option takes."""
    usd = option.predicted_usd
    return Point(option.predicted_days, math.inf if usd is None else usd)


def _days(limits: Limits) -> float | None:
    return None if limits.deadline_s is None else limits.deadline_s / DAY_S


def _worst(point: Point, limits: Limits) -> float:
    """Return the larger of the shares of deadline and budget that a point takes; 0: no limit."""
    days, budget = _days(limits), limits.budget_usd
    late = 0.0 if days is None else point.days / days
    dear = 0.0 if budget is None else point.usd / budget
    return max(late, dear)


def _over(value: float, limit: float | None) -> float:
    return 0.0 if limit is None else max(0.0, value - limit)
