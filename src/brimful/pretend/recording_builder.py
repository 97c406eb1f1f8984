"""Recording what a program allocates and frees, event by event; ``recording.py`` is the result."""

import os
from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import parse_settings, settings_in
from brimful.allocator.in_use import done_from
from brimful.allocator.running import Running
from brimful.pretend.recording import NEVER, UNTAGGED, OpCost, Recording


class Column(IntEnum):
    """Numbers kept per allocation while recording; see ``RecordingBuilder.allocate``."""

    NUM_BYTES = 0
    BORN = 1
    OWNER = 2
    OP = 3
    PHASE = 4
    SHAPE = 5
    STREAM = 6
    NODE = 7
    LINE = 8


_NUM_COLUMNS = len(Column)


class Spot(NamedTuple):
    """How much of everything is on a tape at a moment.

    Attributes:
        event: Allocations and frees.
        cost: Operations whose work is recorded.
        mark: Marked places.
        phase: Number of the phase that it is in.
        ask: Needs of libraries' workspaces.
    """

    event: int
    cost: int
    mark: int
    phase: int
    ask: int = 0


@dataclass(slots=True)
class _Index:
    """Gives each distinct value a small number, in order of appearance."""

    numbers: dict[Any, int] = field(default_factory=dict)
    order: list[Any] = field(default_factory=list)

    def __call__(self, value: Any) -> int:
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.order)
            self.order.append(value)
        return number

    def values(self) -> tuple[Any, ...]:
        return tuple(self.order)


class Place(NamedTuple):
    """Where in the program an allocation happened.

    Attributes:
        op: The operation, or its name.
        owner: Path of the module.
        node: Name of the running autograd node, empty outside backward.
        line: A code object, a line number in it, and maybe a round; None: not known.
        stream: Number of the current stream.
    """

    op: Any
    owner: str
    node: str
    line: tuple[Any, ...] | None
    stream: int


class Facts(NamedTuple):
    """An allocation while it is recorded; all but the first two are numbers of the builder's own.

    Attributes:
        owner: Path of the module.
        num_bytes: Its size.
        op: Number of the operation, as are the others of what they name.
        shape: Of shape and type.
        stream: Of the stream.
        node: Of the autograd node.
        line: Of the source line.
        item: Of the class it is tagged with.
    """

    owner: str
    num_bytes: int
    op: int
    shape: int
    stream: int
    node: int
    line: int
    item: int


@cache
def _named(op: Any) -> str:
    return str(op)


class RecordingBuilder:
    """Appends events to arrays; ``build`` turns them into a ``Recording``.

    Attributes:
        live_bytes: Bytes alive now.
        peak_bytes: The most bytes alive since the peak was last reset.
    """

    def __init__(self) -> None:
        """Begin in the phase ``load``, with nothing recorded."""
        self.live_bytes = 0
        self.peak_bytes = 0
        self._events = array("q")
        self._rows = array("q")
        self._died = array("q")
        self._owners, self._ops, self._shapes = _Index(), _Index(), _Index()
        self._nodes, self._lines, self._items = _Index(), _Index(), _Index()
        self._items(UNTAGGED)
        self._item = array("q")
        self._phases: list[str] = ["load"]
        self._phase_starts: list[int] = [0]
        self._marks: list[int] = []
        self._waits: list[int] = []
        self._launches = array("q")
        self._flushes: list[int] = []
        self._used_elsewhere: list[int] = []
        self._costs: list[OpCost] = []
        self._asks: list[tuple[int, str]] = []
        self._outliving: set[int] = set()
        self._running: Running | None = None

    def mark(self) -> None:
        """Remember this place in the sequence of events."""
        self._marks.append(len(self._events))

    def spot(self) -> Spot:
        """Return how much was recorded so far."""
        last = len(self._phases) - 1
        return Spot(len(self._events), len(self._costs), len(self._marks), last, len(self._asks))

    def wait(self) -> None:
        """Remember that the host waited for the device here."""
        if self._used_elsewhere and self._waits[-1:] != [len(self._events)]:
            self._waits.append(len(self._events))

    def allocator(self) -> Running:
        """Return what the caching allocator has come to, with the environment's settings."""
        self._running = self._running or Running(parse_settings(settings_in(os.environ)))
        self._running.catch_up(self._events, self._flushes, self._asked)
        return self._running

    def _asked(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the bytes and the streams of allocations."""
        table = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, _NUM_COLUMNS)
        return table[rows, Column.NUM_BYTES], table[rows, Column.STREAM]

    def launch(self) -> None:
        """Remember that the device was given something to do, while it matters."""
        if self._used_elsewhere:
            self._launches.append(len(self._events))

    def flush_cache(self) -> None:
        """Remember that the program gave cached memory back here."""
        self._flushes.append(len(self._events))

    def cost(
        self, op: Any, matrix_flops: int, attention_flops: int, moved_bytes: tuple[int, ...]
    ) -> None:
        """Record the work of an operation."""
        place = (len(self._events), len(self._phases) - 1)
        self._costs.append(OpCost(*place, _named(op), matrix_flops, attention_flops, moved_bytes))

    def ask(self, handle: str) -> None:
        """Remember that a library's workspace is needed here, made before or not."""
        self._asks.append((len(self._events), handle))

    def outlives(self, row: int) -> None:
        """Say of an allocation that it is such a workspace, which is nobody's."""
        self._outliving.add(row)

    def begin_phase(self, name: str) -> None:
        """Attribute later allocations to the phase ``name``."""
        self._phases.append(name)
        self._phase_starts.append(len(self._events))

    def enter_late(self, phases: tuple[str, ...]) -> None:
        """Be in the last of ``phases``, of which nothing was recorded here."""
        self._phases = list(phases)
        self._phase_starts = [0] * len(phases)

    @property
    def phases(self) -> tuple[str, ...]:
        """Every phase so far."""
        return tuple(self._phases)

    def allocate(self, num_bytes: int, shape: Any, dtype: Any, place: Place) -> int:
        """Record an allocation and return its row."""
        row = len(self._died)
        line = self._lines(place.line)
        self._rows.extend(
            (
                num_bytes,
                len(self._events),
                self._owners(place.owner),
                self._ops(place.op),
                len(self._phases) - 1,
                self._shapes((shape, dtype)),
                place.stream,
                self._nodes(place.node),
                line,
            )
        )
        self._died.append(NEVER)
        self._item.append(0)
        self._events.append(row)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return row

    def free(self, row: int) -> None:
        """Record that an allocation was freed."""
        self._died[row] = len(self._events)
        self._events.append(~row)
        self.live_bytes -= self._rows[row * _NUM_COLUMNS]

    def use_elsewhere(self, row: int) -> None:
        """Record that another stream uses an allocation."""
        self._used_elsewhere.append(row)

    def set_item(self, row: int, item: str) -> None:
        """Tag an allocation with its class."""
        self._item[row] = self._items(item)

    def item_of(self, row: int) -> str:
        """Return the class that an allocation is tagged with."""
        item: str = self._items.order[self._item[row]]
        return item

    def bytes_of(self, row: int) -> int:
        """Return the size of an allocation."""
        return self._rows[row * _NUM_COLUMNS]

    def stream_of(self, row: int) -> int:
        """Return the stream on which an allocation was made."""
        return self._rows[row * _NUM_COLUMNS + Column.STREAM]

    @property
    def num_rows(self) -> int:
        """How many allocations were recorded."""
        return len(self._died)

    def events_since(self, event: int) -> list[int]:
        """Return the signed events from one on; see ``Recording.events``."""
        return self._events[event:].tolist()

    def signed_events(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the same of a stretch."""
        return np.array(self._events[start:stop], dtype=np.int64)

    def table(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers that are kept of allocations, a line for each."""
        numbers = self._rows[start * _NUM_COLUMNS : stop * _NUM_COLUMNS]
        return np.array(numbers, dtype=np.int64).reshape(-1, _NUM_COLUMNS)

    def item_numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers of the classes that allocations are tagged with."""
        return np.array(self._item[start:stop], dtype=np.int64)

    def shape_of(self, number: int) -> tuple[Any, Any]:
        """Return a shape and its type by their number."""
        shape, dtype = self._shapes.order[number]
        return shape, dtype

    def shape_number(self, shape: Any, dtype: Any) -> int:
        """Return the number of a shape and its type."""
        return self._shapes((shape, dtype))

    def extend(
        self, events: NDArray[np.int64], table: NDArray[np.int64], items: NDArray[np.int64]
    ) -> None:
        """Record many events at once.

        ``events``: signed; new allocations are numbered on. ``table``: a line for each of these, in
        which it is not said when they are made. ``items``: numbers of their classes.
        """
        first = len(self._events)
        births, frees = np.flatnonzero(events >= 0), np.flatnonzero(events < 0)
        table[:, Column.BORN] = first + births
        self._events.frombytes(events.astype(np.int64).tobytes())
        self._rows.frombytes(table.astype(np.int64).tobytes())
        self._item.frombytes(items.astype(np.int64).tobytes())
        self._died.extend([NEVER] * len(table))
        np.frombuffer(self._died, dtype=np.int64)[~events[frees]] = first + frees
        rows = np.where(events >= 0, events, ~events)
        asked = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, _NUM_COLUMNS)
        sizes = np.where(events >= 0, 1, -1) * asked[rows, Column.NUM_BYTES]
        live = self.live_bytes + np.cumsum(sizes)
        if len(live):
            self.live_bytes = int(live[-1])
            self.peak_bytes = max(self.peak_bytes, int(live.max()))

    def costs_since(self, cost: int) -> list[OpCost]:
        """Return the work recorded from one on."""
        return self._costs[cost:]

    def asks_since(self, ask: int) -> list[tuple[int, str]]:
        """Return which workspaces were needed from one on, each behind so many events."""
        return self._asks[ask:]

    def is_outliving(self, row: int) -> bool:
        """Whether an allocation is a library's workspace."""
        return row in self._outliving

    def interruptions(self) -> tuple[int, ...]:
        """Count what may lie between events and is no allocation, free or work."""
        others = (self._waits, self._flushes, self._used_elsewhere, self._phases)
        return len(self._marks), *(len(each) for each in others)

    @property
    def shares_blocks(self) -> bool:
        """Whether some stream has used what was allocated on another."""
        return bool(self._used_elsewhere)

    def is_freed(self, row: int) -> bool:
        """Whether an allocation was freed."""
        return self._died[row] != NEVER

    def are_alive(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return of each of a row of allocations whether it was not freed."""
        died = np.array(self._died[start:stop], dtype=np.int64)
        return np.asarray(died == NEVER)

    def facts_of(self, row: int) -> Facts:
        """Return what distinguishes an allocation, but for when it was made."""
        num_bytes, _, owner, op, _, shape, stream, node, line = self._rows[
            row * _NUM_COLUMNS : (row + 1) * _NUM_COLUMNS
        ]
        name = self._owners.order[owner]
        return Facts(name, num_bytes, op, shape, stream, node, line, self._item[row])

    def allocate_like(self, facts: Facts, owner: str) -> int:
        """Record an allocation like another one, of another owner, and return its row."""
        row = len(self._died)
        _, num_bytes, op, shape, stream, node, line, item = facts
        place = (len(self._events), self._owners(owner), op, len(self._phases) - 1)
        self._rows.extend((num_bytes, *place, shape, stream, node, line))
        self._died.append(NEVER)
        self._item.append(item)
        self._events.append(row)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return row

    def set_owner(self, row: int, owner: str) -> None:
        """Say whose an allocation is."""
        self._rows[row * _NUM_COLUMNS + Column.OWNER] = self._owners(owner)

    def owner_of(self, row: int) -> str:
        """Return whose an allocation is."""
        owner: str = self._owners.order[self._rows[row * _NUM_COLUMNS + Column.OWNER]]
        return owner

    def build(self) -> Recording:
        """Copy what was recorded so far into columns."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, _NUM_COLUMNS)
        num_bytes, born, owner, op, phase, shape, stream, node, line = table.T
        died = np.array(self._died, dtype=np.int64)
        return Recording(
            events=np.array(self._events, dtype=np.int64),
            num_bytes=num_bytes.copy(),
            born=born.copy(),
            died=died,
            stream=stream.astype(np.int32),
            in_use_until=self._until(died),
            owner=owner.astype(np.int32),
            op=op.astype(np.int32),
            node=node.astype(np.int32),
            line=line.astype(np.int32),
            phase=phase.astype(np.int32),
            item=np.array(self._item, dtype=np.int32),
            shape_dtype=shape.astype(np.int32),
            phase_starts=np.array(self._phase_starts, dtype=np.int64),
            marks=np.array(self._marks, dtype=np.int64),
            cache_flushes=np.array(self._flushes, dtype=np.int64),
            costs=tuple(self._costs),
            owners=self._owners.values(),
            ops=tuple(str(op) for op in self._ops.values()),
            nodes=self._nodes.values(),
            lines=tuple(line_text(line) for line in self._lines.values()),
            phases=tuple(self._phases),
            items=self._items.values(),
            shapes=tuple(
                (str(list(shape)), str(dtype).removeprefix("torch."))
                for shape, dtype in self._shapes.values()
            ),
        )

    def _until(self, died: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return, per row, from when on others have done with it for certain, 0 for most rows."""
        until = np.zeros(len(died), dtype=np.int64)
        rows = np.array(self._used_elsewhere, dtype=np.int64)
        freed = np.where(died[rows] == NEVER, len(self._events), died[rows])
        until[rows] = done_from(freed, self._waits, self._launches, len(self._events))
        return until


def line_text(line: tuple[Any, ...] | None) -> str:
    """Write a source line as ``file:number``, and behind it what else is said of it."""
    return "" if line is None else f"{line[0].co_filename}:{line[1]}{''.join(map(str, line[2:]))}"
