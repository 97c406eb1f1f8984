"""Reading the profiler's allocation events: who was alive at the peak, by address and lifetime."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch._C._profiler import _EventType

from brimful.measure.reading import Reading
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import (
    BUFFERS,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    REFERENCE,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
)
from brimful.values.timeline import thin

MARKER = "brimful:"
"""Prefix of the profiler ranges that mark phases."""
HOST_MARKER = "brimful on the host:"
"""Prefix of those inside of which what is allocated is kept on the host, and what for."""
PASSING = "brimful in passing:"
"""Prefix of those that leave nothing behind of what is allocated inside of them."""
METHOD = "profiler allocation events, CPU kernels"
STILL_ALIVE = np.iinfo(np.int64).max
_WHY = {
    PARAMETERS: "addresses of model.parameters()",
    BUFFERS: "addresses of model.buffers()",
    GRADIENTS: "addresses of parameter.grad after backward",
    OPTIMIZER_STATE: "addresses in optimizer.state",
    REFERENCE: "addresses of the second model",
    SAVED_ACTIVATIONS: "allocated in forward, alive when it ends",
    TRANSIENTS: "everything else",
}


_WHY_HOST = "allocated where the program keeps something on the host"


class Events(NamedTuple):
    """Columns of allocation events in order of time.

    Attributes:
        time_ns: When.
        address: Where.
        num_bytes: How much; negative for a free.
    """

    time_ns: NDArray[np.int64]
    address: NDArray[np.int64]
    num_bytes: NDArray[np.int64]


class Range(NamedTuple):
    """A marked phase: its name without the prefix, its first and last instant."""

    name: str
    start_ns: int
    end_ns: int


class Lifetimes(NamedTuple):
    """Columns of allocations: address, size, and the events at which each begins and ends."""

    address: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    born: NDArray[np.int64]
    died: NDArray[np.int64]

    def at(self, rows: NDArray[np.bool_]) -> "Lifetimes":
        """Return some of the allocations."""
        return Lifetimes(*(column[rows] for column in self))


class Collected(NamedTuple):
    """What a profile holds: allocation events, phases, where host memory was taken, and passing."""

    events: Events
    phases: list[Range]
    on_host: list[Range]
    passing: list[Range]


def collect(roots: Iterable[Any]) -> Collected:
    """Walk the profiler's event tree and sort out allocations and markers."""
    rows, stack = [], list(roots)
    found: dict[str, list[Range]] = {MARKER: [], HOST_MARKER: [], PASSING: []}
    while stack:
        event = stack.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            rows.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        elif (marker := next(filter(event.name.startswith, found), None)) is not None:
            name = event.name.removeprefix(marker)
            found[marker].append(Range(name, event.start_time_ns, event.end_time_ns))
        stack.extend(event.children)
    rows.sort(key=lambda row: row[0])
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    in_order = (sorted(ranges, key=lambda r: r.start_ns) for ranges in found.values())
    return Collected(Events(*table.T), *in_order)


def purposes(lives: Lifetimes, events: Events, on_host: Sequence[Range]) -> NDArray[np.int64]:
    """Say of every allocation in which range it was made: its number, or -1 for none.

    ``on_host``: ranges in order of time, of which none overlap.
    """
    if not on_host:
        return np.full(len(lives.born), -1, dtype=np.int64)
    born_ns = events.time_ns[lives.born]
    starts = np.array([r.start_ns for r in on_host], dtype=np.int64)
    ends = np.array([r.end_ns for r in on_host], dtype=np.int64)
    last = np.searchsorted(starts, born_ns, side="right") - 1
    return np.where((last >= 0) & (born_ns <= ends[last]), last, -1)


def lifetimes(events: Events, passing: Sequence[Range] = ()) -> Lifetimes:
    """Pair every allocation with its free; frees of what was allocated before are dropped.

    ``passing``: ranges of whose allocations nothing is left behind them: where no free was seen it
    was on a thread that nobody watched.
    """
    open_rows: dict[int, int] = {}
    rows: list[list[int]] = []
    pairs = zip(events.address.tolist(), events.num_bytes.tolist(), strict=True)
    for event, (address, num_bytes) in enumerate(pairs):
        if num_bytes > 0:
            if address in open_rows:  # its free was on a thread that nobody watched
                rows[open_rows[address]][3] = event
            open_rows[address] = len(rows)
            rows.append([address, num_bytes, event, STILL_ALIVE])
        elif address in open_rows:
            rows[open_rows.pop(address)][3] = event
    for start, end in np.searchsorted(events.time_ns, [r[1:] for r in passing]).reshape(-1, 2):
        for row in rows:
            if start <= row[2] < end < len(events.time_ns) and row[3] == STILL_ALIVE:
                row[3] = int(end)
    return Lifetimes(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)


def live_bytes(lives: Lifetimes, num_events: int) -> NDArray[np.int64]:
    """Return the bytes alive after each event."""
    change = np.zeros(num_events, dtype=np.int64)
    np.add.at(change, lives.born, lives.num_bytes)
    ended = lives.died != STILL_ALIVE
    np.add.at(change, lives.died[ended], -lives.num_bytes[ended])
    return np.cumsum(change)


def classify(
    lives: Lifetimes,
    spans: Sequence[tuple[str, int, int]],
    *,
    lasting: Mapping[str, set[int]],
    gradients: Sequence[set[int]],
) -> NDArray[np.int64]:
    """Give every allocation the index in ``_WHY`` of its class.

    ``spans``: name, first and last event of every marked phase. ``lasting``: addresses of what is
    alive at the end, by class. ``gradients``: addresses of the gradients at the end of each
    backward.
    """
    names = list(_WHY)
    item = np.full(len(lives.born), names.index(TRANSIENTS))
    for name, start, stop in spans:
        if name.endswith("forward"):
            saved = (lives.born >= start) & (lives.born < stop) & (lives.died >= stop)
            item[saved] = names.index(SAVED_ACTIVATIONS)
    ends = [stop for name, _, stop in spans if name.endswith("backward")]
    for stop, known in zip(ends, gradients, strict=True):
        alive = (lives.born < stop) & (lives.died >= stop)
        item[alive & np.isin(lives.address, list(known))] = names.index(GRADIENTS)
    at_end = lives.died == STILL_ALIVE
    for name, known in lasting.items():
        item[at_end & np.isin(lives.address, list(known))] = names.index(name)
    return item


def read_allocations(
    roots: Iterable[Any],
    *,
    lasting: Mapping[str, set[int]],
    gradients: Sequence[set[int]],
    until_next: bool = False,
) -> Reading:
    """Turn the profiler's events into a reading.

    ``lasting``: addresses of what is alive at the end, by class. ``gradients``: addresses of the
    gradients at the end of each backward, in order. ``until_next``: whether markers say when a
    phase begins only: it lasts until the next one.
    """
    events, ranges, on_host, passing = collect(roots)
    if until_next:
        ends = [*(r.start_ns for r in ranges[1:]), STILL_ALIVE]
        ranges = [r._replace(end_ns=end) for r, end in zip(ranges, ends, strict=True)]
    every = lifetimes(events, passing)
    made_in = purposes(every, events, on_host)
    lives, away = every.at(made_in < 0), every.at(made_in >= 0)
    live = live_bytes(lives, len(events.time_ns))
    starts = np.searchsorted(events.time_ns, [r.start_ns for r in ranges]).tolist()
    stops = np.searchsorted(events.time_ns, [r.end_ns for r in ranges]).tolist()
    spans = [(r.name, a, b) for r, a, b in zip(ranges, starts, stops, strict=True)]
    peak = int(live.argmax())
    return Reading(
        method=METHOD,
        items=_items(lives, classify(lives, spans, lasting=lasting, gradients=gradients), peak),
        phases=_phases(live, spans),
        measured_peak_allocated_bytes=int(live[peak]),
        measured_peak_reserved_bytes=None,
        timeline=thin(
            live, phase_starts=[0, *starts], phases=["load", *(name for name, _, _ in spans)]
        ),
        **_host_fields(away, [on_host[i].name for i in made_in[made_in >= 0]], len(live)),
    )


def _host_fields(away: Lifetimes, purposes: Sequence[str], num_events: int) -> dict[str, Any]:
    """Return what was kept on the host at its highest, by purpose; nothing where none was."""
    if not purposes:
        return {}
    live = live_bytes(away, num_events)
    peak = int(live.argmax())
    alive = (away.born <= peak) & (away.died > peak)
    totals = dict.fromkeys(purposes, 0)
    for name, num_bytes, is_there in zip(purposes, away.num_bytes, alive, strict=True):
        totals[name] += int(num_bytes) * bool(is_there)
    return {
        "host": tuple(
            MemoryItem(name=name, phase="step 2+", num_bytes=total, where="host", why=_WHY_HOST)
            for name, total in totals.items()
            if total
        ),
        "measured_peak_host_bytes": int(live[peak]),
    }


def _items(lives: Lifetimes, item: NDArray[np.int64], peak: int) -> tuple[MemoryItem, ...]:
    alive = (lives.born <= peak) & (lives.died > peak)
    totals = np.bincount(item[alive], weights=lives.num_bytes[alive], minlength=len(_WHY))
    return tuple(
        MemoryItem(name=name, phase="step 2+", num_bytes=int(total), where="device", why=why)
        for (name, why), total in zip(_WHY.items(), totals, strict=True)
        if total or name != REFERENCE
    )


def _phases(
    live: NDArray[np.int64], spans: Sequence[tuple[str, int, int]]
) -> tuple[PhasePeak, ...]:
    second = next((start for name, start, _ in spans if name.startswith("step 2")), len(live))
    bounds = {"load": (0, spans[0][1]), "step 1": (spans[0][1], second)}
    if second < len(live):
        bounds["step 2+"] = (second, len(live))
    return tuple(
        PhasePeak(phase=name, num_bytes=int(live[a:b].max(initial=0)), where=name)
        for name, (a, b) in bounds.items()
    )
