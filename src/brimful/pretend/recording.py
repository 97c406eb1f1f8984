"""A finished tape, in columns: allocations with their attributes, and the order of events."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

AUTOCAST_CACHE = "autocast cache"
UNTAGGED = ""
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
    """Columns of a tape; row ``i`` of every per-allocation column is allocation ``i``.

    Attributes:
        events: Signed order of events: ``i`` allocates row i, ``~i`` frees it.
        num_bytes: Size of each allocation.
        born: Event at which it was allocated.
        died: Event at which it was freed, ``NEVER`` if it was not.
        owner: Index into ``owners`` (module paths).
        op: Index into ``ops``.
        phase: Index into ``phases``: the phase in which it was allocated.
        item: Index into ``items``: the class it was tagged with, ``UNTAGGED`` if none.
        shape_dtype: Index into ``shapes``, ``(shape, dtype)`` as text.
        phase_starts: Event at which each phase began.
        marks: Events at which the program marked a place of its own (``Tape.mark``).
        costs: What each operation did, in order, if the tape was asked to record it.
    """

    events: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    born: NDArray[np.int64]
    died: NDArray[np.int64]
    owner: NDArray[np.int32]
    op: NDArray[np.int32]
    phase: NDArray[np.int32]
    item: NDArray[np.int32]
    shape_dtype: NDArray[np.int32]
    phase_starts: NDArray[np.int64]
    marks: NDArray[np.int64]
    costs: tuple[OpCost, ...]
    owners: tuple[str, ...]
    ops: tuple[str, ...]
    phases: tuple[str, ...]
    items: tuple[str, ...]
    shapes: tuple[tuple[str, str], ...]

    def live_bytes(self) -> NDArray[np.int64]:
        """Return the bytes alive after each event."""
        index = np.where(self.events >= 0, self.events, ~self.events)
        sign = np.where(self.events >= 0, 1, -1)
        return np.cumsum(sign * self.num_bytes[index])

    def alive_at(self, event: int) -> NDArray[np.int64]:
        """Return the rows of the allocations that are alive right after ``event``."""
        unfreed = (self.died == NEVER) | (self.died > event)
        return np.flatnonzero((self.born <= event) & unfreed)


@dataclass(slots=True)
class _Index:
    """Gives each distinct value a small number, in order of appearance."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def __call__(self, value: Any) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.numbers)
        return number

    def values(self) -> tuple[Any, ...]:
        return tuple(self.numbers)


class RecordingBuilder:
    """Appends events to lists; ``build`` turns them into a ``Recording``."""

    def __init__(self) -> None:
        """Begin in the phase ``load``, with nothing recorded."""
        self._events: list[int] = []
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._died: list[int] = []
        self._item: list[int] = []
        self._owners, self._ops, self._shapes = _Index(), _Index(), _Index()
        self._items = _Index()
        self._items(UNTAGGED)
        self._phases: list[str] = ["load"]
        self._phase_starts: list[int] = [0]
        self._marks: list[int] = []
        self._costs: list[OpCost] = []

    def mark(self) -> None:
        """Remember this place in the sequence of events."""
        self._marks.append(len(self._events))

    def cost(
        self, op: Any, matrix_flops: int, attention_flops: int, moved_bytes: tuple[int, ...]
    ) -> None:
        """Record the work of an operation."""
        place = (len(self._events), len(self._phases) - 1)
        self._costs.append(OpCost(*place, str(op), matrix_flops, attention_flops, moved_bytes))

    def begin_phase(self, name: str) -> None:
        """Attribute later allocations to the phase ``name``."""
        self._phases.append(name)
        self._phase_starts.append(len(self._events))

    def allocate(self, *, num_bytes: int, op: Any, owner: str, tensor: torch.Tensor) -> int:
        """Record an allocation and return its row."""
        uid = len(self._rows)
        shape_dtype = self._shapes((tensor.shape, tensor.dtype))
        phase = len(self._phases) - 1
        self._rows.append(
            (num_bytes, len(self._events), self._owners(owner), self._ops(op), phase, shape_dtype)
        )
        self._died.append(NEVER)
        self._item.append(0)
        self._events.append(uid)
        return uid

    def free(self, uid: int) -> None:
        """Record that an allocation was freed."""
        self._died[uid] = len(self._events)
        self._events.append(~uid)

    def set_item(self, uid: int, item: str) -> None:
        """Tag an allocation with its class."""
        self._item[uid] = self._items(item)

    def build(self) -> Recording:
        """Copy what was recorded so far into columns."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, 6)
        num_bytes, born, owner, op, phase, shape = table.T
        return Recording(
            events=np.array(self._events, dtype=np.int64),
            num_bytes=num_bytes.copy(),
            born=born.copy(),
            died=np.array(self._died, dtype=np.int64),
            owner=owner.astype(np.int32),
            op=op.astype(np.int32),
            phase=phase.astype(np.int32),
            item=np.array(self._item, dtype=np.int32),
            shape_dtype=shape.astype(np.int32),
            phase_starts=np.array(self._phase_starts, dtype=np.int64),
            marks=np.array(self._marks, dtype=np.int64),
            costs=tuple(self._costs),
            owners=self._owners.values(),
            ops=tuple(str(op) for op in self._ops.values()),
            phases=tuple(self._phases),
            items=self._items.values(),
            shapes=tuple(
                (str(list(shape)), str(dtype).removeprefix("torch."))
                for shape, dtype in self._shapes.values()
            ),
        )
