"""A recording as a Chrome trace, which https://ui.perfetto.dev and ``chrome://tracing`` open.

Nothing took any time, so the clock counts events: one allocation or free is one microsecond.
Tracks: live bytes in all, by class and by stream, and reserved bytes, as counters; phases, modules
and the operations of each stream as slices; the largest allocations as asynchronous slices.

Source: "Trace Event Format" (Google, the Catapult project), the JSON that Perfetto imports.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import AllocatorSettings
from brimful.allocator.replay import Placed, place
from brimful.files.writing import write_text
from brimful.pretend.reading import classes_of, classify
from brimful.pretend.recording import NEVER, Recording
from brimful.text.escaping import json_text
from brimful.units import format_bytes

TRACE_SCHEMA = "brimful.trace/1"
NUM_SAMPLES = 100_000
"""Counters of a longer recording are sampled: the lowest and the highest live total of as many
stretches as make this many samples. Slices of single operations are left out then."""
NUM_LARGEST = 200
"""Allocations that get a slice of their own."""
MEMORY, PROGRAM = 1, 2
"""Process ids: what holds bytes, and what the program does."""
PHASES, MODULES = 1, 2
FIRST_STREAM = 100
"""Thread ids of the program; stream n is ``FIRST_STREAM + n``."""
_CLOCK = "one event (allocation or free) is one microsecond; nothing was timed"

Event = dict[str, Any]


def write_trace(
    recording: Recording,
    path: Path,
    *,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
) -> None:
    """Write a recording as a Chrome trace (JSON), atomically.

    ``path``: the file, by custom ``*.json``. ``settings``: of the caching allocator, for the
    counter of reserved bytes. ``capacity_bytes``: what the device can give it; None: anything.
    Raises RunError: the file cannot be written.
    """
    trace = trace_of(recording, settings=settings, capacity_bytes=capacity_bytes)
    write_text(path, json_text(trace))


def trace_of(
    recording: Recording, *, settings: AllocatorSettings, capacity_bytes: int | None
) -> dict[str, Any]:
    """Return what ``write_trace`` writes, as plain dicts and lists."""
    placed = place(recording.requests(), settings=settings, capacity_bytes=capacity_bytes)
    item = classify(recording)
    sampled = _sampled(recording)
    events = [
        *_counters(recording, item, sampled),
        *_reserved(placed),
        *_phases(recording),
        *_modules(recording),
        *(_operations(recording) if len(sampled) == len(recording.events) else ()),
        *_largest(recording, item),
        *_marks(recording, placed),
    ]
    # In order of time, and of what begins together the outermost first.
    events.sort(key=lambda e: (e["ts"], -e.get("dur", 0)))
    return {
        "traceEvents": [*_names(recording), *events],
        "displayTimeUnit": "ns",
        "otherData": {"schema": TRACE_SCHEMA, "clock": _CLOCK, "numbers": "simulated"},
    }


# -- names of tracks --


def _names(recording: Recording) -> Iterator[Event]:
    yield _name("process_name", MEMORY, 0, "memory (simulated)")
    yield _name("process_name", PROGRAM, 0, "program (clock: events)")
    yield _name("thread_name", PROGRAM, PHASES, "phases")
    yield _name("thread_name", PROGRAM, MODULES, "modules")
    for stream in np.unique(recording.stream).tolist():
        kind = "default stream" if stream == 0 else f"stream {stream}"
        yield _name("thread_name", PROGRAM, FIRST_STREAM + stream, f"allocations, {kind}")


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "ts": 0, "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


# -- counters --


def _sampled(recording: Recording) -> NDArray[np.int64]:
    """Choose the events at which counters are written: all, or the extremes of stretches."""
    live = recording.live_bytes()
    if len(live) <= NUM_SAMPLES:
        return np.arange(len(live), dtype=np.int64)
    edges = np.linspace(0, len(live), NUM_SAMPLES // 2 + 1).astype(int)
    kept = {
        start + int(extreme)
        for start, stop in pairwise(edges.tolist())
        for extreme in (live[start:stop].argmin(), live[start:stop].argmax())
    }
    return np.array(sorted(kept), dtype=np.int64)


def _counters(
    recording: Recording, item: NDArray[np.int64], sampled: NDArray[np.int64]
) -> Iterator[Event]:
    row = np.where(recording.events >= 0, recording.events, ~recording.events)
    change = np.where(recording.events >= 0, 1, -1) * recording.num_bytes[row]
    groups = [("live bytes", np.ones(len(row), dtype=bool))]
    groups += [
        (f"live bytes: {name}", item[row] == index)
        for index, name in enumerate(classes_of(recording))
        if (item == index).any()
    ]
    streams = np.unique(recording.stream).tolist()
    if len(streams) > 1:
        groups += [(f"live bytes: stream {s}", recording.stream[row] == s) for s in streams]
    for name, chosen in groups:
        yield from _counter(name, sampled, np.cumsum(change * chosen)[sampled])


def _counter(name: str, events: NDArray[np.int64], values: NDArray[np.int64]) -> Iterator[Event]:
    """Write a counter wherever it changes."""
    new = np.flatnonzero(np.diff(values, prepend=-1))
    for event, value in zip(events[new].tolist(), values[new].tolist(), strict=True):
        yield {"ph": "C", "name": name, "pid": MEMORY, "ts": event, "args": {"bytes": value}}


def _reserved(placed: Placed) -> Iterator[Event]:
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = [change for change in placed.changes if change.action in signs]
    totals = np.cumsum([signs[c.action] * c.num_bytes for c in changes], dtype=np.int64)
    for change, total in zip(changes, totals.tolist(), strict=True):
        args = {"bytes": total}
        yield {"ph": "C", "name": "reserved bytes", "pid": MEMORY, "ts": change.event, "args": args}


# -- slices --


def _slice(name: str, tid: int, start: int, stop: int, **args: str | int) -> Event:
    event: Event = {"ph": "X", "name": name, "pid": PROGRAM, "tid": tid, "ts": start}
    return event | {"dur": stop - start} | ({"args": args} if args else {})


def _phases(recording: Recording) -> Iterator[Event]:
    live = recording.live_bytes()
    ends = [*recording.phase_starts[1:].tolist(), len(live)]
    spans = zip(recording.phases, recording.phase_starts.tolist(), ends, strict=True)
    for name, start, stop in spans:
        if start < stop:
            peak = format_bytes(int(live[start:stop].max()))
            yield _slice(name, PHASES, start, stop, simulated_peak_allocated=peak)


def _modules(recording: Recording) -> Iterator[Event]:
    """Nest the modules that allocate, path by path, from one allocation to the next."""
    paths = [tuple(owner.split(".")) if owner else () for owner in recording.owners]
    owner, phase = recording.owner.tolist(), recording.phase.tolist()
    opened: list[tuple[str, int]] = []
    phase_before, last = -1, 0
    for event in np.flatnonzero(recording.events >= 0).tolist():
        row = int(recording.events[event])
        path = paths[owner[row]]
        same = _shared(opened, path) if phase[row] == phase_before else 0
        yield from _closed(opened, same, last + 1)
        opened += [(part, event) for part in path[same:]]
        phase_before, last = phase[row], event
    yield from _closed(opened, 0, last + 1)


def _shared(opened: Sequence[tuple[str, int]], path: Sequence[str]) -> int:
    """Count the parts that a path begins with and that are open already."""
    count = 0
    for (name, _), part in zip(opened, path, strict=False):
        if name != part:
            break
        count += 1
    return count


def _closed(opened: list[tuple[str, int]], keep: int, stop: int) -> list[Event]:
    """End the innermost modules until ``keep`` are left.

    Returns their slices, outermost first: of two that begin and end together the first is outside.
    """
    parts = [name for name, _ in opened]
    slices = [
        _slice(".".join(parts[: depth + 1]), MODULES, opened[depth][1], stop)
        for depth in range(keep, len(opened))
    ]
    del opened[keep:]
    return slices


def _operations(recording: Recording) -> Iterator[Event]:
    """Give every allocation a slice on the track of its stream."""
    for event in np.flatnonzero(recording.events >= 0).tolist():
        row = int(recording.events[event])
        yield _slice(
            recording.ops[recording.op[row]],
            FIRST_STREAM + int(recording.stream[row]),
            event,
            event + 1,
            bytes=int(recording.num_bytes[row]),
            module=recording.owners[recording.owner[row]],
            line=recording.lines[recording.line[row]],
        )


def _largest(recording: Recording, item: NDArray[np.int64]) -> Iterator[Event]:
    """Give the largest allocations a slice from their birth to their death."""
    names = classes_of(recording)
    for row in np.argsort(-recording.num_bytes, kind="stable")[:NUM_LARGEST].tolist():
        if not recording.num_bytes[row]:
            continue
        shape, dtype = recording.shapes[recording.shape_dtype[row]]
        died = int(recording.died[row])
        both = {
            "cat": names[item[row]],
            "id": row,
            "name": f"{format_bytes(int(recording.num_bytes[row]))} {names[item[row]]}",
            "pid": MEMORY,
            "tid": 0,
        }
        args = {
            "bytes": int(recording.num_bytes[row]),
            "module": recording.owners[recording.owner[row]],
            "op": recording.ops[recording.op[row]],
            "node": recording.nodes[recording.node[row]],
            "line": recording.lines[recording.line[row]],
            "shape": shape,
            "dtype": dtype,
            "stream": int(recording.stream[row]),
            "phase": recording.phases[recording.phase[row]],
        }
        yield {"ph": "b", "ts": int(recording.born[row]), **both, "args": args}
        yield {"ph": "e", "ts": len(recording.events) if died == NEVER else died, **both}


def _marks(recording: Recording, placed: Placed) -> Iterator[Event]:
    live = recording.live_bytes()
    if len(live):
        peak = int(live.argmax())
        yield _mark(f"peak: {format_bytes(int(live[peak]))} live", peak)
    for event in recording.cache_flushes.tolist():
        yield _mark("empty_cache", event)
    failed = placed.replay.out_of_memory
    if failed is not None:
        yield _mark(f"out of memory, short by {format_bytes(failed.short_bytes)}", failed.event)


def _mark(name: str, event: int) -> Event:
    return {"ph": "i", "s": "g", "name": name, "pid": PROGRAM, "tid": PHASES, "ts": event}
