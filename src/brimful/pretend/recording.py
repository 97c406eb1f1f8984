"""A finished tape, in columns: allocations with their attributes, and the order of events."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.replay import Requests
from brimful.values.results import PAGED_STATE

TO_HOST, TO_DEVICE = "copied to the host", "copied to the device"
"""What copies between the two are called among costs; their bytes are counted once."""
SELECTS_ALL = "selects everything"
"""Of an operation whose result has the largest size that it can have, for want of values."""
UNTAGGED = ""
KEPT_ON_HOST = "on the host: "
"""How the classes begin of what a program says that it keeps on the host."""
PAGED = f"{KEPT_ON_HOST}{PAGED_STATE}"
NEVER = -1


class OpCost(NamedTuple):
    """The work of one operation.

    Attributes:
        event: Events recorded before it ran.
        phase: Index into the recording's phases.
        op: Its name.
        matrix_flops: Of its matrix products, multiply and add counted apart.
        attention_flops: Of a fused attention kernel.
        moved_bytes: Size of each tensor read or written by an operation that is neither.
    """

    event: int
    phase: int
    op: str
    matrix_flops: int
    attention_flops: int
    moved_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Columns of one device's tape; row ``i`` of a per-allocation column is allocation ``i``.

    Attributes:
        events: Signed order of events: ``i`` allocates row i, ``~i`` frees it.
        num_bytes: Size of each allocation.
        born: Event at which it was allocated.
        died: Event at which it was freed, ``NEVER`` if it was not.
        stream: Stream that was current when it was allocated; 0 is the default stream.
        in_use_until: Event from which other streams have done with it (``record_stream``): the
            first after it was freed at which the host waited, or was as far ahead as it can be
            (``host_waits.py``); 0 if no other stream used it.
        owner: Index into ``owners`` (module paths).
        op: Index into ``ops``.
        node: Index into ``nodes``: the autograd node that was running, empty in a forward pass.
        line: Index into ``lines``: the source line, outside PyTorch, that was being run.
        phase: Index into ``phases``: the phase in which it was allocated.
        item: Index into ``items``: the class it was tagged with, ``UNTAGGED`` if none.
        shape_dtype: Index into ``shapes``, ``(shape, dtype)`` as text.
        phase_starts: Event at which each phase began.
        marks: Events at which the program marked a place of its own (``Tape.mark``).
        cache_flushes: Events at which the program called ``empty_cache``.
        costs: What each operation did, in order, if the tape was asked to record it.
    """

    events: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    born: NDArray[np.int64]
    died: NDArray[np.int64]
    stream: NDArray[np.int32]
    in_use_until: NDArray[np.int64]
    owner: NDArray[np.int32]
    op: NDArray[np.int32]
    node: NDArray[np.int32]
    line: NDArray[np.int32]
    phase: NDArray[np.int32]
    item: NDArray[np.int32]
    shape_dtype: NDArray[np.int32]
    phase_starts: NDArray[np.int64]
    marks: NDArray[np.int64]
    cache_flushes: NDArray[np.int64]
    costs: tuple[OpCost, ...]
    owners: tuple[str, ...]
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    lines: tuple[str, ...]
    phases: tuple[str, ...]
    items: tuple[str, ...]
    shapes: tuple[tuple[str, str], ...]

    def live_bytes(self) -> NDArray[np.int64]:
        """Return the bytes alive after each event."""
        index = np.where(self.events >= 0, self.events, ~self.events)
        sign = np.where(self.events >= 0, 1, -1)
        return np.cumsum(sign * self.num_bytes[index])

    def requests(self) -> Requests:
        """Return what the allocator sees of it."""
        return Requests(
            events=self.events,
            num_bytes=self.num_bytes,
            streams=self.stream.astype(np.int64),
            in_use_until=self.in_use_until if self.in_use_until.any() else None,
            cache_flushes=self.cache_flushes,
        )

    def alive_at(self, event: int) -> NDArray[np.int64]:
        """Return the rows of the allocations that are alive right after ``event``."""
        unfreed = (self.died == NEVER) | (self.died > event)
        return np.flatnonzero((self.born <= event) & unfreed)

    def without(self, rows: NDArray[np.bool_]) -> "Recording":
        """Return the recording of a program that does not make the given allocations.

        ``rows``: [allocations], whether each is left out.
        """
        index = np.where(self.events >= 0, self.events, ~self.events)
        stays = ~rows[index]
        # Where an event, or the gap before it, comes to lie; one more for the end.
        place = np.concatenate(([0], np.cumsum(stays)))
        number = np.cumsum(~rows) - 1
        events = self.events[stays]
        columns = {
            name: getattr(self, name)[~rows]
            for name in ("num_bytes", "stream", "owner", "op", "node", "line", "phase", "item",
                         "shape_dtype")
        }  # fmt: skip
        died = self.died[~rows]
        until = np.minimum(self.in_use_until[~rows], len(self.events))
        return replace(
            self,
            **columns,
            events=np.where(events >= 0, number[events], ~number[~events]),
            born=place[self.born[~rows]],
            died=np.where(died == NEVER, NEVER, place[died]),
            in_use_until=place[until] + (self.in_use_until[~rows] > len(self.events)),
            phase_starts=place[self.phase_starts],
            marks=place[self.marks],
            cache_flushes=place[self.cache_flushes],
            costs=tuple(cost._replace(event=int(place[cost.event])) for cost in self.costs),
        )
