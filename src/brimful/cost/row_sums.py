"""What the gradient of a vector leaves beside it: it is a sum over tokens, made by many blocks.

A norm's weight and a bias are vectors; what autograd adds up for them is the newest tensor that has
their features, or the gradient that came in. No profile has the size, which hangs on thresholds and
on the card. A fused layer norm makes both its vectors by a kernel of its own, which leaves nothing.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from brimful.cost.family import Family, family_dimensions
from brimful.cost.profiles import Dimensions
from brimful.cost.recipes import FP32_BYTES, HALF_BYTES
from brimful.cost.trained import trained_shapes
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import Multiprocessors, chips, version_of
from brimful.hardware.cuda_reductions import row_sums_bytes
from brimful.values.job import Job

Terms = tuple[tuple[str, float], ...]
_OF_TOKENS = frozenset("BSnCr")


class Event(NamedTuple):
    """A tensor that comes or goes: its size in products of dimensions, its bytes; 0: it goes."""

    terms: Terms
    num_bytes: int


class RowSums(NamedTuple):
    """What is needed to tell which tensors are sums over rows, and of what.

    Attributes:
        dims: Sizes of dimensions.
        vectors: Elements of parameters of one dimension.
        chip: That it runs on; None: nothing is known of it.
        partial: Bytes of what Liger's norms add up by themselves, a row for each multiprocessor.
    """

    dims: Dimensions
    vectors: frozenset[int]
    chip: Multiprocessors | None
    partial: frozenset[int] = frozenset()

    def beside(self, events: Sequence[Event]) -> list[int]:
        """Return what comes and goes behind each event of a backward, in bytes: 0 for most."""
        sizes, narrow = [0] * len(events), set[tuple[str, int]]()
        newest: Event | None = None
        for place, event in enumerate(events):
            if len(event.terms) != 1 or not event.num_bytes:
                continue
            ((factors, _),) = event.terms
            if _OF_TOKENS & set(factors) or event.num_bytes in self.partial:
                newest = event
                continue
            element = self._element(event)
            if not element or _is_alike(event, events[max(0, place - 1) : place + 2 : 2]):
                continue
            columns = event.num_bytes // element
            if element == HALF_BYTES:
                narrow.add((factors, columns))
            elif (factors, columns) in narrow:  # the same, widened
                narrow.remove((factors, columns))
                continue
            if self.chip is not None:
                rows = self._rows(factors, columns * element, newest)
                sizes[place] = row_sums_bytes(rows, columns, element, self.chip)
        return sizes

    def _element(self, event: Event) -> int:
        """Return the bytes of an element of a vector; 0: it is none."""
        ((_, coefficient),) = event.terms
        for element in (FP32_BYTES, HALF_BYTES):
            is_whole = coefficient % element == 0
            if is_whole and event.num_bytes // element in self.vectors:
                return element
        return 0

    def _rows(self, vector: str, num_bytes: int, newest: Event | None) -> int:
        """Count the rows that are added up: of the newest tensor if it has a vector's features.

        At a model's own widths features are no letters, and a multiple of the vector has them.
        """
        every = self.dims.n or self.dims.B * self.dims.S
        if newest is None:
            return every
        if not vector:
            ((_, per_token),) = newest.terms
            return every if per_token % num_bytes else newest.num_bytes // num_bytes
        left = list(newest.terms[0][0])
        for letter in vector:
            if letter not in left:
                return every
            left.remove(letter)
        return prod(getattr(self.dims, letter) for letter in left)


def row_sums(job: Job, family: Family, device: Device) -> RowSums:
    """Return what tells the sums of one strategy.

    Args:
        job: What is trained; of adapters no vector is.
        family: One strategy.
        device: On what.
    """
    shapes = trained_shapes(job, family.tp)
    vectors = frozenset(prod(shape) for shape in shapes if len(shape) == 1)
    chip = chips().get(version_of(device.capability))
    rows = chip.num_multiprocessors if chip is not None and family.fused == "liger" else 0
    return RowSums(
        dims=family_dimensions(job, family),
        vectors=vectors,
        chip=chip,
        partial=frozenset(rows * FP32_BYTES * columns for columns in vectors) - {0},
    )


def _is_alike(event: Event, neighbours: Sequence[Event]) -> bool:
    """Whether one of the neighbours is a vector of the same size: weight and bias of a norm."""
    return any(other.num_bytes and other.terms == event.terms for other in neighbours)
