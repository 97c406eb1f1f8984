"""How well a median is known from repeated readings, whatever their distribution."""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST_READINGS = 6
"""With fewer no pair of them holds the median with 95 %: 1 - 2 / 2^5 = 94 %."""


class Interval(NamedTuple):
    """Two readings between which the median lies with at least the confidence asked for.

    Attributes:
        low: The lower one.
        high: The higher one.
    """

    low: float
    high: float


def median_interval(readings: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """Return the narrowest symmetric pair of readings that holds the median; None: too few.

    The k-th smallest and k-th largest of n independent readings hold it with 1 - 2 P(X < k), X
    binomial with n and 1/2: each reading is as likely above the median as below.

    Args:
        readings: Of one quantity.
        confidence: 0 to 1.
    """
    ordered, num = sorted(readings), len(readings)
    outside, place = 0.0, None
    for k in range(num // 2):
        outside += 2 * math.comb(num, k) / 2**num
        if 1 - outside < confidence:
            break
        place = k
    return None if place is None else Interval(ordered[place], ordered[num - 1 - place])


def half_width(readings: Sequence[float], median: float) -> float:
    """Return half the interval relative to the median; infinite where there are too few readings.

    Args:
        readings: Of one quantity.
        median: Theirs.
    """
    interval = median_interval(readings)
    return math.inf if interval is None else (interval.high - interval.low) / 2 / median
