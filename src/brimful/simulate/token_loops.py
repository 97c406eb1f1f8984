"""Loops over tokens: what a program does at more of them, told from what it did at few.

A recurrence that is written as a loop runs its body once for so many tokens. Of three lengths of a
sequence one sees what is repeated and how often; at any other the body comes as often as tokens
say. What is repeated in the middle of a loop has to be the same each time, in every size.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.simulate.runs import UnlikeShapesError

_GLANCE = 8
"""Tokens of a stream that are compared before all of them are."""


class TokenLoopError(UnlikeShapesError):
    """A program loops over single tokens."""


class Growth(NamedTuple):
    """What comes in between at more tokens.

    Attributes:
        place: Before which item of the shortest stream.
        period: How many items before that are repeated.
        added: How many items are added, at every other length.
    """

    place: int
    period: int
    added: tuple[int, ...]


class Alignment(NamedTuple):
    """How streams of several lengths are one program.

    Attributes:
        num_items: Of the shortest stream.
        lengths: Tokens of a sequence, the fewest first.
        growths: In order.
    """

    num_items: int
    lengths: tuple[int, ...]
    growths: tuple[Growth, ...]

    def at(self, length: int) -> list[int]:
        """Return of every item of a stream which of the shortest it is.

        Raises UnlikeShapesError: so many tokens are no whole number of rounds of a loop.
        """
        found: list[int] = []
        before = 0
        for growth in self.growths:
            found += range(before, growth.place)
            body = range(growth.place - growth.period, growth.place)
            found += list(body) * self._rounds(growth, length)
            before = growth.place
        return [*found, *range(before, self.num_items)]

    def _rounds(self, growth: Growth, length: int) -> int:
        least, next_length = self.lengths[:2]
        items = growth.added[0] * (length - least)
        rounds, rest = divmod(items, (next_length - least) * growth.period)
        if rest or rounds < 0:
            raise UnlikeShapesError("a loop over tokens ends in the middle")
        return rounds


def align(streams: Sequence[Sequence[Hashable]], lengths: Sequence[int]) -> Alignment:
    """Find out what is repeated as tokens become more.

    ``streams``: what a program does at each length, in words without sizes. ``lengths``: tokens of
    a sequence, the fewest first.
    """
    numbers: dict[Hashable, int] = {}
    coded = [np.array([numbers.setdefault(x, len(numbers)) for x in each]) for each in streams]
    shortest, *others = coded
    every = [tuple(_longer(shortest, other)) for other in others]
    ends = [[(end, period) for end, period, _ in each] for each in every]
    if any(each != ends[0] for each in ends):
        raise UnlikeShapesError("loops over tokens differ between shapes")
    growths, before = [], 0
    for which, (end, period) in enumerate(ends[0]):
        growths.append(
            Growth(
                _middle(shortest, end, period, before),
                period,
                tuple(each[which][2] for each in every),
            )
        )
        before = end
    found = Alignment(len(shortest), tuple(lengths), tuple(growths))
    for stream, length in zip(coded, lengths, strict=True):
        if not np.array_equal(stream, shortest[found.at(length)]):
            raise UnlikeShapesError("a loop over tokens does not grow with them")
    return found


def _longer(short: NDArray[np.int64], long: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield where a loop ends in the shorter stream, its period, and what the longer one adds."""
    i = j = 0
    while True:
        same = _num_same(short[i:], long[j:])
        i, j = i + same, j + same
        if j == len(long):
            if i < len(short):
                raise UnlikeShapesError("a program does less at more tokens")
            return
        period, added = _repeated(long, j)
        yield i, period, added
        j += added


def _repeated(stream: NDArray[np.int64], start: int) -> tuple[int, int]:
    """Return the period of what a stream goes on to repeat, and how long it does.

    Of several periods the one that is repeated longest is a loop's.
    """
    best = 0, 0
    glance = stream[start : start + _GLANCE]
    for at in np.flatnonzero(stream[:start] == stream[start])[::-1].tolist():
        period = start - at
        if _num_same(stream[at:], glance) < min(len(glance), period):
            continue
        num = _num_same(stream[at:], stream[start:])
        if num >= period and num % period == 0 and num > best[1]:
            best = period, num
    if not best[1]:
        raise UnlikeShapesError("the program differs between shapes")
    return best


def _middle(stream: NDArray[np.int64], end: int, period: int, least: int) -> int:
    """Return a place inside the loop that ends there: what is at its ends may be another size."""
    start = end - period
    while start > least and stream[start - 1] == stream[start - 1 + period]:
        start -= 1
    rounds = (end - start) // period
    return end - period * min(max(1, rounds // 2), rounds - 1)


def _num_same(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Count how many items two streams begin alike with."""
    num = min(len(a), len(b))
    unlike = np.flatnonzero(a[:num] != b[:num])
    return int(unlike[0]) if len(unlike) else num
