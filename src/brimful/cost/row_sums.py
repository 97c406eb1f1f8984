"""What the gradient of a vector leaves beside it: it is a sum over tokens, made by many blocks.

A norm's weight and a bias are vectors; what autograd adds up for them is the newest tensor that has
their features, or the gradient that came in. No profile has the size, which hangs on thresholds and
on the card. A fused layer norm makes both its vectors by a kernel of its own, which leaves nothing.

What is asked of an allocator (``micro_batch.py``) and levels of live bytes (``trajectory.py``,
``levels.py``) find the sums by the same rules; which events they are hangs on no batch, so that
levels look for them once (``sums_behind``).
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, family_dimensions
from brimful.cost.profiles import Dimensions, EventKind, Mark, Profile, Run, alike
from brimful.cost.recipes import FP32_BYTES, HALF_BYTES
from brimful.cost.spread import num_pieces
from brimful.cost.trained import trained_shapes
from brimful.cost.trajectory import Array, Behind, evaluate_terms
from brimful.files.remembered import once_for_each
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import Multiprocessors, chips, version_of
from brimful.hardware.cuda_reductions import row_sums_bytes
from brimful.values.job import Job

Terms = tuple[tuple[str, float], ...]
Chips = tuple[Multiprocessors, ...]
"""On which a job may run: one, or several whose most is asked for; none: nothing is left beside."""
_OWN_SUMS = frozenset({"embedding", "convolution", "norm"})
_OF_TOKENS = frozenset("BSnCr")
"""Dimensions of a batch; all others are a model's widths."""


class Event(NamedTuple):
    """A tensor that comes or goes.

    Attributes:
        terms: Its size in products of dimensions.
        num_bytes: Its bytes; 0: it goes.
        mark: What is asked for here instead, if anything.
    """

    terms: Terms
    num_bytes: int
    mark: Mark = ""


class Sum(NamedTuple):
    """A vector that is made by adding up rows.

    Attributes:
        columns: Its elements.
        element: Bytes of each.
        factors: Dimensions whose product, ``times`` a number, is how many rows are added up.
        times: That number; a fraction where the body is shorter than its text, as behind a pooling.
    """

    columns: int
    element: int
    factors: str
    times: Fraction

    def beside(self, dims: Dimensions, on: Chips) -> int:
        """Return the bytes that come and go behind it.

        ``on``: chips that it may be made on; the most that it leaves on one of them.
        """
        rows = round(self.times * prod(getattr(dims, factor) for factor in self.factors))
        return max(
            (_row_sums_bytes(rows, self.columns, self.element, chip) for chip in on), default=0
        )


_row_sums_bytes = cache(row_sums_bytes)


class RowSums(NamedTuple):
    """What is needed to tell which tensors are sums over rows, and of what.

    Attributes:
        every: Dimensions whose product is the tokens of a device.
        vectors: Elements of parameters of one dimension.
        chips: That it may run on.
        partial: Bytes of what Liger's norms add up by themselves, a row for each multiprocessor.
    """

    every: str
    vectors: frozenset[int]
    chips: Chips
    partial: frozenset[int] = frozenset()

    def beside(self, events: Sequence[Event], dims: Dimensions) -> list[int]:
        """Return what comes and goes behind each event of a backward, in bytes: 0 for most."""
        sizes = [0] * len(events)
        for place, each in self.among(events) if self.chips else ():
            sizes[place] = each.beside(dims, self.chips)
        return sizes

    def among(self, events: Sequence[Event]) -> list[tuple[int, Sum]]:
        """List the sums among the events of a backward, and which events they are."""
        found, newest = list[tuple[int, Sum]](), None
        comes = [(place, event) for place, event in enumerate(events) if event.num_bytes]
        narrow, last = set[tuple[str, int]](), (-1, "", 0)
        marks = _marks_behind(events)
        for index, (place, event) in enumerate(comes):
            mark = marks[place]
            if mark == "convolution":  # a narrow one may be widened later
                narrow.add((event.terms[0][0], event.num_bytes // HALF_BYTES))
            if len(event.terms) != 1 or mark:
                continue
            ((factors, _),) = event.terms
            if _OF_TOKENS & set(factors) or event.num_bytes in self.partial:
                newest = event
                continue
            beside = comes[max(0, index - 1) : index + 2 : 2]
            if any(other.terms == event.terms for _, other in beside):  # both of a norm's
                continue
            made = self._sum(event, [each for _, each in comes[max(0, index - 2) : index]], newest)
            if made is None:
                continue
            vector = factors, made.columns
            was, last = last, (index, *vector)
            if made.element == HALF_BYTES and was == (index - 1, *vector):  # the same, narrowed
                continue
            if made.element == HALF_BYTES:
                narrow.add(vector)
            elif vector in narrow:  # the same, widened
                narrow.remove(vector)
                continue
            found.append((place, made))
        return found

    def _sum(self, event: Event, before: list[Event], newest: Event | None) -> Sum | None:
        """Return the sum that makes a tensor; None: it is no vector.

        A size may be that of vectors of either type: it is of the one of which the newest tensor
        has whole rows, as far as there is one; next of one of which there is a row for some tokens.

        ``before``: the two that came before it.
        """
        ((letters, coefficient),) = event.terms
        pooled, told = list[Sum](), list[Sum]()
        for element in (FP32_BYTES, HALF_BYTES):
            columns = event.num_bytes // element
            if coefficient % element or columns not in self.vectors:
                continue
            if newest is None:
                return Sum(columns, element, self.every, Fraction(1))
            inputs = None
            if len(before) > 1 and before[0] is newest:
                inputs = self._inputs(before[1], event, element)
            features = inputs or (letters, coefficient)
            if rows := _rows(newest, *features, is_input=inputs is not None):
                found = Sum(columns, element, *rows)
                if found.times.denominator == 1:
                    return found
                pooled.append(found)
            tokens = "".join(sorted(_OF_TOKENS & set(newest.terms[0][0])))
            is_square = newest.terms[0][0].count("S") > 1  # scores, which have no such rows
            added = self.every if is_square or not tokens else tokens
            told.append(Sum(columns, element, added, Fraction(1)))
        return next(iter([*pooled, *told]), None)

    def _inputs(self, weight: Event, bias: Event, element: int) -> tuple[str, float] | None:
        """Return the features that a weight is multiplied with; None: it is none with that bias.

        Its gradient comes between that of its input, which is as wide, and that of its bias.
        """
        ((letters, coefficient),) = bias.terms
        if len(weight.terms) != 1 or weight.num_bytes in self.partial:
            return None
        ((factors, num_bytes),) = weight.terms
        left = _left_of(factors, letters)
        is_matrix = left is not None and bool(left) == bool(letters)
        if not is_matrix or weight.num_bytes <= bias.num_bytes or _OF_TOKENS & set(factors):
            return None
        return left or "", num_bytes * element / coefficient


def _marks_behind(events: Sequence[Event]) -> list[Mark]:
    """Return of each event what a gradient is marked with that is added up by its own kernel.

    Nothing for most. Before the mark what the gradient takes the place of goes at most.
    """
    found = list[Mark]()
    behind: Mark = ""
    for event in reversed(events):
        found.append(behind)
        if event.num_bytes or event.mark:
            behind = event.mark if event.mark in _OWN_SUMS else ""
    return found[::-1]


def _rows(
    newest: Event, letters: str, num_bytes: float, *, is_input: bool
) -> tuple[str, Fraction] | None:
    """Return of how many rows a tensor is that have these features; None: of no whole number.

    At a model's own widths features are no letters, and a multiple of them has them.

    ``num_bytes``: of an element of them, or of them all where there are no letters. ``is_input``:
    whether it is known to have them, so that it may have fewer rows than there are tokens.
    """
    ((factors, per_token),) = newest.terms
    left = _left_of(factors, letters)
    if left is None:
        return None
    times = Fraction(1) if letters else Fraction(per_token) / Fraction(num_bytes)
    return (left, times) if is_input or times.denominator == 1 else None


def _left_of(factors: str, letters: str) -> str | None:
    """Return the dimensions of a product beside some of them; None: it lacks one."""
    left = list(factors)
    for letter in letters:
        if letter not in left:
            return None
        left.remove(letter)
    return "".join(left)


def chips_of(job: Job, device: Device) -> Chips:
    """Return the chip that splits the sums of a job; none, where it has none or none is known.

    ``job``: what is trained; of adapters no vector is.
    """
    chip = chips().get(version_of(device.capability))
    return (chip,) if chip is not None and _vectors(job, 1) else ()


def every_chip(job: Job) -> Chips:
    """Return all chips that may split the sums of a job."""
    return tuple(chips().values()) if _vectors(job, 1) else ()


def row_sums(job: Job, family: Family, on: Chips) -> RowSums:
    """Return what tells the sums of one strategy."""
    vectors = _vectors(job, family.tp)
    rows = {chip.num_multiprocessors for chip in on if family.fused == "liger"}
    partial = frozenset(num * FP32_BYTES * columns for num in rows for columns in vectors)
    every = "n" if family.tp > 1 else "BS"
    return RowSums(every=every, vectors=vectors, chips=on, partial=partial)


class _Behind:
    """What sums leave behind the events of a run, of several batches at once: see ``Behind``."""

    def __init__(self, each: Sequence[tuple[RowSums, Dimensions]]) -> None:
        """Tell batches apart by what decides which events are sums.

        ``each``: of every batch, what tells its sums, and its sizes.
        """
        self._each = each
        self._known: dict[tuple[int, Sum], Array] = {}
        alike_ones: dict[tuple[RowSums, Dimensions], list[int]] = {}
        for number, (sums, dims) in enumerate(each):
            if sums.chips:
                alike_ones.setdefault((sums, dims._replace(**_NO_BATCH)), []).append(number)
        self._alike = [(*told, np.array(numbers)) for told, numbers in alike_ones.items()]

    def __call__(self, profile: Profile, run: Run) -> Array | None:
        """Return what comes and goes behind each event of a run; only a backward has sums."""
        if run.phase != "backward":
            return None
        events, num, found = profile.works[run.work].events, num_pieces(profile), None
        for sums, widths, numbers in self._alike:
            for place, each in _among(profile.kinds, events, num, sums, widths):
                if found is None:
                    found = np.zeros((len(events), len(self._each)))
                found[place, numbers] = self._bytes(each, numbers)
        return found

    def _bytes(self, each: Sum, numbers: NDArray[np.int64]) -> Array:
        """Return what a sum leaves in batches that are alike."""
        key = int(numbers[0]), each
        if key not in self._known:
            told = (self._each[number] for number in numbers)
            sizes = [each.beside(dims, sums.chips) for sums, dims in told]
            self._known[key] = np.array(sizes, dtype=np.float64)
        return self._known[key]


_NO_BATCH = dict.fromkeys(_OF_TOKENS, 1)
"""Sizes of a batch where they decide nothing."""


def sums_behind(job: Job, families: Sequence[Family], on: Sequence[Chips]) -> Behind:
    """Return what sums leave beside the events of some strategies."""
    return _Behind([
        (row_sums(job, family, chips_of_one), family_dimensions(job, family))
        for family, chips_of_one in zip(families, on, strict=True)
    ])  # fmt: skip


@once_for_each
def _among(
    kinds: tuple[EventKind, ...],
    numbers: tuple[int, ...],
    num: int,
    sums: RowSums,
    widths: Dimensions,
) -> list[tuple[int, Sum]]:
    """List the sums of a work, whatever its batch.

    ``widths``: sizes, 1 for those of a batch.
    """
    every = _events(kinds, num, widths)
    told = [(place, every[number]) for place, number in enumerate(numbers)]
    there = [(place, event) for place, event in told if event is not None]
    found = sums.among([event for _, event in there])
    return [(there[place][0], each) for place, each in found]


@once_for_each
def _events(kinds: tuple[EventKind, ...], num: int, widths: Dimensions) -> list[Event | None]:
    """Return what events of each kind are; None: what goes, or has no size."""
    base = len(kinds) - 2 * num
    pieces = [Event((), 1) if place < num else None for place in range(2 * num)]
    found = list[Event | None]()
    for kind in kinds[:base]:
        size = round(evaluate_terms(kind.terms, widths))
        is_there = size > 0 or kind.mark
        found.append(Event(alike(kind)[0], size, kind.mark) if is_there else None)
    return [*found, *pieces]


@once_for_each
def _vectors(job: Job, tp: int) -> frozenset[int]:
    shapes = trained_shapes(job, tp)
    return frozenset(prod(shape) for shape in shapes if len(shape) == 1)
