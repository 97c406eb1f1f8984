"""A recording as a PyTorch memory snapshot: what ``torch.cuda.memory._dump_snapshot`` would write.

Opens in https://pytorch.org/memory_viz and in ``python -m torch.cuda._memory_viz``. Addresses and
segments are those of the allocator's replay; frames are made up so that the viewers show what is
known of an allocation: class, operation, autograd node, source line, module, phase.

The file is a pickle, because the viewers read nothing else. It is written and never read here.

Source: ``THCPModule_memorySnapshot`` (``torch/csrc/cuda/Module.cpp``), ``snapshot`` and
``record_trace`` (``c10/cuda/CUDACachingAllocator.cpp``), ``torch/utils/viz/MemoryViz.js``.
"""

import pickle
from bisect import bisect_left
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from brimful.allocator.config import UNLIMITED_BYTES, AllocatorSettings, spell_settings
from brimful.allocator.pool import Change
from brimful.allocator.replay import Placed, place
from brimful.files.writing import write_bytes
from brimful.pretend.reading import classes_of, classify
from brimful.pretend.recording import Recording

PROTOCOL = 4
"""The newest that the viewer's own unpickler takes."""
FIRST_ADDRESS = 0x7F00_0000_0000
"""Added to every address: where devices' memory usually lies, and nothing lies at 0."""
NO_CATEGORY = "unknown"
"""The viewer colours by category, and stops with an error where this one does not occur."""

_Frames = list[dict[str, str | int]]


def write_snapshot(
    recording: Recording,
    path: Path,
    *,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
    until_event: int | None = None,
) -> None:
    """Write a recording as a PyTorch memory snapshot, atomically.

    ``path``: the file, by custom ``*.pickle``. ``capacity_bytes``: what the device can give it;
    None: anything. Where it runs out the snapshot ends, with PyTorch's ``oom`` entry.
    ``until_event``: the last event that the snapshot knows of, e.g. the one at the peak, so that
    its segments show what is alive then; None: the last one there is. Raises RunError: the file
    cannot be written.
    """
    snapshot = snapshot_of(
        recording, settings=settings, capacity_bytes=capacity_bytes, until_event=until_event
    )
    write_bytes(path, pickle.dumps(snapshot, protocol=PROTOCOL))


def snapshot_of(
    recording: Recording,
    *,
    settings: AllocatorSettings,
    capacity_bytes: int | None,
    until_event: int | None = None,
) -> dict[str, Any]:
    """Return what ``write_snapshot`` writes, as plain dicts and lists."""
    shown = recording if until_event is None else _until(recording, until_event)
    placed = place(shown.requests(), settings=settings, capacity_bytes=capacity_bytes)
    labels = _Labels(recording)
    trace = _trace(shown, placed, labels)
    failed = placed.replay.out_of_memory
    if failed is not None:
        limits = [x for x in (capacity_bytes, settings.allowed_bytes) if x is not None]
        row = int(shown.events[failed.event])
        trace.append(
            {
                "action": "oom",
                "device_free": min(limits) - failed.reserved_bytes,
                "size": failed.requested_bytes,
                "stream": int(shown.stream[row]),
                "time_us": failed.event,
                "frames": labels.frames(row),
            }
        )
    return {
        "segments": _segments(shown, placed, labels, settings),
        "device_traces": [trace],
        "allocator_settings": _settings(settings),
        "external_annotations": [],
    }


def _until(recording: Recording, event: int) -> Recording:
    """Leave out what happened after an event; later rows stay, and get no place."""
    flushes = recording.cache_flushes
    return replace(
        recording,
        events=recording.events[: event + 1],
        cache_flushes=flushes[flushes <= event],
    )


# -- what is said of an allocation --


class _Labels:
    """Categories and frames of rows; like rows share one list, so that the file stays small."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._item: list[int] = classify(recording).tolist()
        self._classes = classes_of(recording)
        columns = ("op", "shape_dtype", "node", "line", "owner", "phase")
        named = [getattr(recording, name).tolist() for name in columns]
        self._keys = list(zip(self._item, *named, strict=True))
        self._frames: dict[tuple[int, ...], _Frames] = {}

    def category(self, row: int) -> str:
        return self._classes[self._item[row]]

    def frames(self, row: int) -> _Frames:
        """Return frames, innermost first, as PyTorch has them."""
        key = self._keys[row]
        found = self._frames.get(key)
        if found is None:
            found = self._frames[key] = self._make(*key)
        return found

    def _make(  # noqa: PLR0913, PLR0917 - the columns of one row
        self, item: int, op: int, shape: int, node: int, line: int, owner: int, phase: int
    ) -> _Frames:
        r = self._recording
        file, _, number = r.lines[line].rpartition(":")
        frames = [_frame(r.ops[op], " ".join(r.shapes[shape]))]
        if r.nodes[node]:
            frames.append(_frame("autograd", r.nodes[node]))
        if file:
            frames.append({"filename": file, "line": int(number), "name": "source line"})
        parts = r.owners[owner].split(".") if r.owners[owner] else []
        frames += [_frame("module", ".".join(parts[:n])) for n in range(len(parts), 0, -1)]
        frames.append(_frame("phase", r.phases[phase]))
        frames.append(_frame("class", self._classes[item]))
        return frames


@cache
def _frame(kind: str, name: str) -> dict[str, str | int]:
    return {"filename": kind, "line": 0, "name": name}


# -- what happened --


def _trace(recording: Recording, placed: Placed, labels: _Labels) -> list[dict[str, Any]]:
    """Write every event as the allocator's history would have it."""
    trace: list[dict[str, Any]] = []
    changes = list(reversed(placed.changes))
    columns = (placed.addresses, recording.num_bytes, recording.stream, recording.in_use_until)
    addresses, sizes, streams, until = (column.tolist() for column in columns)
    for event, signed in enumerate(recording.events[: placed.num_events].tolist()):
        while changes and changes[-1].event <= event:
            trace.append(_change(changes.pop(), recording, labels))
        row = signed if signed >= 0 else ~signed
        if addresses[row] < 0:
            continue
        entry = {
            "action": "alloc" if signed >= 0 else "free_requested",
            "addr": FIRST_ADDRESS + addresses[row],
            "size": sizes[row],
            "stream": streams[row],
            "time_us": event,
            "frames": labels.frames(row),
        }
        if signed >= 0:
            entry["category"] = labels.category(row)
        trace.append(entry)
        if signed < 0 and until[row] <= event:
            trace.append(entry | {"action": "free_completed"})
    trace += [_change(change, recording, labels) for change in reversed(changes)]
    return trace


def _change(change: Change, recording: Recording, labels: _Labels) -> dict[str, Any]:
    completed = change.action == "free_completed"
    entry: dict[str, Any] = {
        "action": change.action,
        "addr": FIRST_ADDRESS + change.address,
        "size": int(recording.num_bytes[change.row]) if completed else change.num_bytes,
        "stream": change.stream,
        "time_us": change.event,
        "frames": labels.frames(change.row) if completed else [],
    }
    if not completed:
        entry["category"] = NO_CATEGORY
    return entry


# -- what there is at the end --


def _segments(
    recording: Recording, placed: Placed, labels: _Labels, settings: AllocatorSettings
) -> list[dict[str, Any]]:
    blocks = _blocks(recording, placed)
    starts = [address for address, _, _ in blocks]
    segments = []
    for first, last, change in _ranges(placed.changes):
        inside = blocks[bisect_left(starts, first) : bisect_left(starts, last)]
        entries = _fill(first, last, inside, recording, placed, labels)
        allocated = [e["size"] for e in entries if e["state"] == "active_allocated"]
        segments.append(
            {
                "device": 0,
                "address": FIRST_ADDRESS + first,
                "total_size": last - first,
                "allocated_size": sum(allocated),
                "active_size": sum(e["size"] for e in entries if e["state"] != "inactive"),
                "requested_size": sum(e["requested_size"] for e in entries),
                "stream": change.stream,
                "segment_type": "small" if change.is_small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": settings.expandable_segments,
                "frames": [],
                "blocks": entries,
            }
        )
    return segments


def _blocks(recording: Recording, placed: Placed) -> list[tuple[int, int, bool]]:
    """List the blocks in use at the end: address, row, and whether another stream still uses it."""
    events = recording.events[: placed.num_events]
    freed_at = {int(~row): event for event, row in enumerate(events.tolist()) if row < 0}
    completed = {change.row for change in placed.changes if change.action == "free_completed"}
    blocks = []
    for row in events[events >= 0].tolist():
        if placed.addresses[row] < 0 or row in completed:
            continue
        event = freed_at.get(row)
        if event is None or recording.in_use_until[row] > event:
            blocks.append((int(placed.addresses[row]), row, event is not None))
    return sorted(blocks)


def _fill(  # noqa: PLR0913, PLR0917 - a segment and what is in it
    first: int,
    last: int,
    inside: list[tuple[int, int, bool]],
    recording: Recording,
    placed: Placed,
    labels: _Labels,
) -> list[dict[str, Any]]:
    """Write a segment as blocks without gaps."""
    entries: list[dict[str, Any]] = []
    here = first
    for address, row, pending in inside:
        if address > here:
            entries.append(_free_block(here, address - here))
        size = int(placed.block_bytes[row])
        entries.append(
            {
                "address": FIRST_ADDRESS + address,
                "size": size,
                "requested_size": int(recording.num_bytes[row]),
                "state": "active_pending_free" if pending else "active_allocated",
                "frames": labels.frames(row),
            }
        )
        here = address + size
    if here < last:
        entries.append(_free_block(here, last - here))
    return entries


def _free_block(address: int, size: int) -> dict[str, Any]:
    return {
        "address": FIRST_ADDRESS + address,
        "size": size,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }


def _ranges(changes: tuple[Change, ...]) -> list[tuple[int, int, Change]]:
    """Return the mapped ranges at the end, by address; those that touch are one, as in PyTorch."""
    mapped: dict[int, tuple[int, Change]] = {}
    for change in changes:
        end = change.address + change.num_bytes
        if change.action in {"segment_alloc", "segment_map"}:
            mapped[change.address] = (end, change)
        elif change.action in {"segment_free", "segment_unmap"}:
            _cut(mapped, change.address, end)
    merged: list[tuple[int, int, Change]] = []
    for start, (end, change) in sorted(mapped.items(), key=lambda pair: pair[0]):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end, change)
        else:
            merged.append((start, end, change))
    return merged


def _cut(mapped: dict[int, tuple[int, Change]], first: int, last: int) -> None:
    """Take a range out of the mapped ones."""
    touched = [s for s, (end, _) in mapped.items() if s < last and end > first]
    for start in touched:
        end, change = mapped.pop(start)
        if start < first:
            mapped[start] = (first, change)
        if end > last:
            mapped[last] = (end, change)


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    unlimited = settings.max_split_size_bytes == UNLIMITED_BYTES
    divisions = settings.roundup_power2_divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": spell_settings(settings),
        "max_split_size": -1 if unlimited else settings.max_split_size_bytes,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << i): parts for i, parts in enumerate(divisions)},
    }
