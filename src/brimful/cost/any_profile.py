"""One profile of a model for every rank of adapters, or every number of devices that part experts.

Sizes are linear in the rank, and in the experts that a device has: two traces tell all. ``c(x) = a
+ b x`` for each size, by its values at two ``x``; where both traces are the same program.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from brimful.cost.profiles import EventKind, Profile, Run, Term, Variant, Work
from brimful.errors import UnsupportedError

Each = TypeVar("Each")
Traced = tuple[tuple[int, Profile], tuple[int, Profile]]
"""Of two traces the value of what they differ in, and the profile."""


def joined(key: str, letter: str, traced: Traced) -> Profile:
    """Return the profile of every value of a letter.

    ``letter``: what they differ in, of ``profiles.Dimensions``: ``R``, the rank, or ``e``, the
    experts of one of several devices. Raises UnsupportedError: they are not one program.
    """
    join = _Join(letter, traced)
    first, second = (profile for _, profile in traced)
    if first.sequence != second.sequence:
        raise _unlike()
    variants = {
        name: Variant(
            first=join.runs(one.first, second.variants[name].first),
            later=join.runs(one.later, second.variants[name].later),
        )
        for name, one in first.variants.items()
        if name in second.variants
    }
    return msgspec.structs.replace(
        first, key=key, kinds=tuple(join.kinds), works=tuple(join.works), variants=variants
    )


class _Join:
    """Two profiles laid beside each other, event by event."""

    def __init__(self, letter: str, traced: Traced) -> None:
        (self._x, self._first), (self._y, self._second) = traced
        self._letter = letter
        self.kinds: dict[EventKind, int] = {}
        self.works: dict[Work, int] = {}

    def runs(self, ours: Iterable[Run], theirs: Iterable[Run]) -> tuple[Run, ...]:
        """Join runs that are equal but for the sizes of their events."""
        return tuple(self._runs(ours, theirs))

    def _runs(self, ours: Iterable[Run], theirs: Iterable[Run]) -> Iterator[Run]:
        for one, other in _paired(ours, theirs):
            work = self._work(self._first.works[one.work], self._second.works[other.work])
            place = self.works.setdefault(work, len(self.works))
            joined = msgspec.structs.replace(one, work=place)
            if joined != msgspec.structs.replace(other, work=place):
                raise _unlike()
            yield joined

    def _work(self, one: Work, other: Work) -> Work:
        if one.num_ops != other.num_ops:
            raise _unlike()
        return Work(
            events=tuple(self._event(a, b) for a, b in _paired(one.events, other.events)),
            matrix_flops=self._terms(one.matrix_flops, other.matrix_flops),
            attention_flops=self._terms(one.attention_flops, other.attention_flops),
            moved_bytes=self._terms(one.moved_bytes, other.moved_bytes),
            num_ops=one.num_ops,
            to_host=tuple(self._terms(a, b) for a, b in _paired(one.to_host, other.to_host)),
            to_device=self._terms(one.to_device, other.to_device),
        )

    def _event(self, ours: int, theirs: int) -> int:
        one, other = self._first.kinds[ours], self._second.kinds[theirs]
        kind = msgspec.structs.replace(one, terms=self._terms(one.terms, other.terms))
        if kind != msgspec.structs.replace(other, terms=kind.terms):
            raise _unlike()
        return self.kinds.setdefault(kind, len(self.kinds))

    def _terms(self, ours: Iterable[Term], theirs: Iterable[Term]) -> tuple[Term, ...]:
        at_x = {term.factors: term.coefficient for term in ours}
        at_y = {term.factors: term.coefficient for term in theirs}
        found = []
        for factors in sorted({*at_x, *at_y}):
            here, there = at_x.get(factors, 0.0), at_y.get(factors, 0.0)
            each = (there - here) / (self._y - self._x)
            fixed = here - each * self._x
            parts = ((factors, fixed), (factors + self._letter, each))
            found += [Term(name, number) for name, number in parts if number]
        return tuple(found)


def _paired(ours: Iterable[Each], theirs: Iterable[Each]) -> list[tuple[Each, Each]]:
    here, there = list(ours), list(theirs)
    if len(here) != len(there):
        raise _unlike()
    return list(zip(here, there, strict=True))


def _unlike() -> UnsupportedError:
    return UnsupportedError("two traces are not one program, and tell no third")
