"""A snapshot is what PyTorch's viewers expect: their own code reads it, and its states agree."""

import pickle
import pickletools
from bisect import bisect_right
from dataclasses import replace

import pytest

from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.allocator.replay import place
from brimful.pretend.snapshot import snapshot_of, write_snapshot
from brimful.units import MIB

from .recordings import COMM_STREAM, long_run, small_run

NATIVE = PYTORCH_DEFAULTS
EXPANDABLE = replace(NATIVE, expandable_segments=True)
VIEWER_OPCODES = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT",
    "BINUNICODE", "DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1",
    "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO",
    "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip
"""What ``unpickle`` in ``torch/utils/viz/MemoryViz.js`` knows; anything else ends it."""
CASES = [
    pytest.param(settings, capacity, until, id=f"{kind}-{limit}-{end}")
    for kind, settings in (("native", NATIVE), ("expandable", EXPANDABLE))
    for limit, capacity in (("unlimited", None), ("at capacity", 190 * MIB))
    for end, until in (("whole", None), ("until event 12", 12))
]


def trace_of(snapshot):
    (trace,) = snapshot["device_traces"]
    return trace


def live_at_the_end(snapshot):
    return sum(
        block["requested_size"]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )


def check_segments(snapshot):
    """Blocks fill their segment without gaps, and its totals are theirs."""
    for segment in snapshot["segments"]:
        here = segment["address"]
        totals = dict.fromkeys(("active_allocated", "active_pending_free", "inactive"), 0)
        for block in segment["blocks"]:
            assert block["address"] == here
            assert block["requested_size"] <= block["size"]
            here += block["size"]
            totals[block["state"]] += block["size"]
        assert here == segment["address"] + segment["total_size"]
        assert segment["allocated_size"] == totals["active_allocated"]
        assert segment["active_size"] == segment["total_size"] - totals["inactive"]


class Viewer:
    """Undoes the trace from its end, as the viewer's "Allocator State History" does."""

    def __init__(self, snapshot):
        self.ranges = sorted(
            [s["address"], s["address"] + s["total_size"]] for s in snapshot["segments"]
        )
        self.blocks = {
            block["address"]: block["requested_size"]
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"] != "inactive"
        }
        self.trace = trace_of(snapshot)

    def undo_all(self):
        """Return bytes in blocks before each entry, the last first."""
        for entry in reversed(self.trace):
            self.undo(entry)
            for address, size in self.blocks.items():
                place = bisect_right(self.ranges, [address, 1 << 62]) - 1
                assert place >= 0, "a block outside every segment"
                assert address + size <= self.ranges[place][1]
            yield entry, sum(self.blocks.values())

    def undo(self, entry):
        action, address, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            assert self.blocks.pop(address) == size
        elif action == "free_requested":
            assert self.blocks[address] == size
        elif action == "free_completed":
            assert address not in self.blocks
            self.blocks[address] = size
        elif action in {"segment_alloc", "segment_map"}:
            self.unmap(address, address + size)
        elif action in {"segment_free", "segment_unmap"}:
            self.map(address, address + size)

    def map(self, first, last):
        ranges = sorted([*self.ranges, [first, last]])
        self.ranges = ranges[:1]
        for start, end in ranges[1:]:
            assert start >= self.ranges[-1][1]
            if start == self.ranges[-1][1]:
                self.ranges[-1] = [self.ranges[-1][0], end]
            else:
                self.ranges.append([start, end])

    def unmap(self, first, last):
        place = next(i for i, (a, b) in enumerate(self.ranges) if a <= first and last <= b)
        start, end = self.ranges.pop(place)
        self.ranges += [[a, b] for a, b in ((start, first), (last, end)) if a < b]
        self.ranges.sort()


def check_history(snapshot):
    viewer = Viewer(snapshot)
    for _ in viewer.undo_all():
        pass
    assert viewer.blocks == {}
    assert viewer.ranges == []


@pytest.mark.parametrize(("settings", "capacity", "until"), CASES)
def test_its_states_agree_from_the_end_to_the_beginning(settings, capacity, until):
    snapshot = snapshot_of(
        small_run(), settings=settings, capacity_bytes=capacity, until_event=until
    )
    check_segments(snapshot)
    check_history(snapshot)


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
def test_the_states_of_a_long_run_agree(settings):
    recording = long_run(1500)
    capacity = int(0.8 * recording.live_bytes().max())
    for limit in (None, capacity):
        for until in (None, 700):
            snapshot = snapshot_of(
                recording, settings=settings, capacity_bytes=limit, until_event=until
            )
            check_segments(snapshot)
            check_history(snapshot)


def test_allocations_and_frees_add_up_to_live_bytes():
    recording = small_run()
    snapshot = snapshot_of(recording, settings=NATIVE, capacity_bytes=None)
    live, after = 0, {}
    for entry in trace_of(snapshot):
        live += {"alloc": 1, "free_requested": -1}.get(entry["action"], 0) * entry["size"]
        after[entry["time_us"]] = live
    assert [
        after[event] for event in range(len(recording.events))
    ] == recording.live_bytes().tolist()
    assert live_at_the_end(snapshot) == recording.live_bytes()[-1]


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
def test_segments_are_those_of_the_replay(settings):
    recording = small_run()
    peak = int(recording.live_bytes().argmax())
    snapshot = snapshot_of(recording, settings=settings, capacity_bytes=None, until_event=peak)
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    placed = place(recording.requests(), settings=settings, capacity_bytes=None)
    assert reserved == placed.replay.peak_reserved_bytes
    assert live_at_the_end(snapshot) == recording.live_bytes()[peak]
    assert {segment["stream"] for segment in snapshot["segments"]} == {0, COMM_STREAM}
    assert {segment["is_expandable"] for segment in snapshot["segments"]} == {
        settings.expandable_segments
    }


def test_a_block_that_another_stream_uses_is_pending():
    # Event 12 frees the first gathered weight, whose stream is waited for later.
    snapshot = snapshot_of(small_run(), settings=NATIVE, capacity_bytes=None, until_event=12)
    pending = [
        (segment["stream"], block["requested_size"])
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_pending_free"
    ]
    assert pending == [(COMM_STREAM, 40 * MIB)]
    assert trace_of(snapshot)[-1]["action"] == "free_requested"


def test_running_out_is_the_last_entry():
    snapshot = snapshot_of(small_run(), settings=NATIVE, capacity_bytes=180 * MIB)
    last = trace_of(snapshot)[-1]
    assert (last["action"], last["size"]) == ("oom", 48 * MIB)
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert last["device_free"] == 180 * MIB - reserved
    assert [entry["action"] for entry in trace_of(snapshot)].count("oom") == 1


def test_frames_say_what_is_known_innermost_first():
    snapshot = snapshot_of(small_run(), settings=NATIVE, capacity_bytes=None)
    entry = next(e for e in trace_of(snapshot) if e["action"] == "alloc" and e["time_us"] == 11)
    assert entry["category"] == "gradients"
    assert [(f["filename"], f["line"], f["name"]) for f in entry["frames"]] == [
        ("aten.mm.default", 0, "[12582912] bfloat16"),
        ("autograd", 0, "MmBackward0"),
        ("train.py", 12, "source line"),
        ("module", 0, "model.layers.1.mlp"),
        ("module", 0, "model.layers.1"),
        ("module", 0, "model.layers"),
        ("module", 0, "model"),
        ("phase", 0, "step 1 backward"),
        ("class", 0, "gradients"),
    ]


def test_the_category_without_which_the_viewer_stops_is_there():
    # annotate_snapshot in MemoryViz.js misspells a name where it would add it.
    trace = trace_of(snapshot_of(small_run(), settings=NATIVE, capacity_bytes=None))
    assert trace[0]["category"] == "unknown"
    allocated = {entry["category"] for entry in trace if entry["action"] == "alloc"}
    assert "unknown" not in allocated


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
def test_the_file_has_nothing_that_the_viewer_cannot_read(tmp_path, settings):
    path = tmp_path / "snapshot.pickle"
    write_snapshot(long_run(3000), path, settings=settings, capacity_bytes=None)
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert opcodes <= VIEWER_OPCODES
    snapshot = pickle.loads(path.read_bytes())  # noqa: S301 - our own, just written
    assert snapshot == snapshot_of(long_run(3000), settings=settings, capacity_bytes=None)
    addresses = [entry["addr"] for entry in trace_of(snapshot)]
    assert max(addresses) < 2**53


def test_like_frames_are_written_once(tmp_path):
    # As in PyTorch's own files; else a long run's snapshot would be frames and nothing else.
    path = tmp_path / "snapshot.pickle"
    write_snapshot(small_run(), path, settings=NATIVE, capacity_bytes=None)
    assert path.read_bytes().count(b"MmBackward0") == 1


def test_settings_are_spelled_as_in_the_environment():
    settings = replace(EXPANDABLE, max_split_size_bytes=64 * MIB)
    spelled = snapshot_of(small_run(), settings=settings, capacity_bytes=None)
    assert spelled["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == (
        "expandable_segments:True,max_split_size_mb:64"
    )


def identity(lines):
    return lines


@pytest.mark.torch
@pytest.mark.parametrize(("settings", "capacity", "until"), CASES)
def test_pytorchs_own_viewer_takes_it(settings, capacity, until):
    import torch.cuda._memory_viz as viz

    recording = small_run()
    snapshot = snapshot_of(recording, settings=settings, capacity_bytes=capacity, until_event=until)
    summary = viz.segsum(snapshot)
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    assert f"total_reserved: {reserved / MIB:3.1f}MiB" in summary
    story = viz.trace(snapshot)
    assert ("raise OutOfMemoryError" in story) == (trace_of(snapshot)[-1]["action"] == "oom")
    flames = viz.memory(snapshot, format_flamegraph=identity)
    assert "class:0:parameters;phase:0:load;module:0:model;module:0:model.layers;" in flames
    assert viz.segments(snapshot, format_flamegraph=identity).count("stream_") >= 2
    for page in (viz.trace_plot(snapshot), viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page
