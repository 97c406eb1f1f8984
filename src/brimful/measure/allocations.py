"""Reading the profiler's allocation events: who was alive at the peak, by address and lifetime."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch._C._profiler import _EventType

from brimful.measure.reading import Reading
from brimful.plan import MemoryItem, PhasePeak
from brimful.rungs import (
    BUFFERS,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    REFERENCE,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
)
from brimful.timeline import thin

MARKER = "brimful:"
"""Prefix of the profiler ranges that mark phases."""
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


def collect(roots: Iterable[Any]) -> tuple[Events, list[Range]]:
    """Walk the profiler's event tree and sort out allocations and markers."""
    rows, ranges, stack = [], [], list(roots)
    while stack:
        event = stack.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            rows.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        elif event.name.startswith(MARKER):
            name = event.name.removeprefix(MARKER)
            ranges.append(Range(name, event.start_time_ns, event.end_time_ns))
        stack.extend(event.children)
    rows.sort(key=lambda row: row[0])
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Events(*table.T), sorted(ranges, key=lambda r: r.start_ns)


def lifetimes(events: Events) -> Lifetimes:
    """Pair every allocation with its free; frees of what was allocated before are dropped."""
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

    Args:
        lives: The allocations.
        spans: Name, first and last event of every marked phase.
        lasting: Addresses of what is alive at the end, by class.
        gradients: Addresses of the gradients at the end of each backward.
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
    roots: Iterable[Any], *, lasting: Mapping[str, set[int]], gradients: Sequence[set[int]]
) -> Reading:
    """Turn the profiler's events into a reading.

    Args:
        roots: The profiler's event tree.
        lasting: Addresses of what is alive at the end, by class.
        gradients: Addresses of the gradients at the end of each backward, in order.
    """
    events, ranges = collect(roots)
    lives = lifetimes(events)
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
    )


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
