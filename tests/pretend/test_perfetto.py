"""A trace keeps to the Trace Event Format, and its counters are the recording's own numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.allocator.replay import replay
from brimful.pretend import perfetto
from brimful.pretend.perfetto import trace_of, write_trace
from brimful.pretend.reading import classify
from brimful.units import MIB
from brimful.values.results import ITEM_NAMES

from .recordings import COMM_STREAM, LAYERS, long_run, small_run

NATIVE = PYTORCH_DEFAULTS
EXPANDABLE = replace(NATIVE, expandable_segments=True)
NEEDED = {
    "M": {"name", "pid", "tid", "args"},
    "C": {"name", "pid", "ts", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "b": {"name", "pid", "ts", "cat", "id"},
    "e": {"name", "pid", "ts", "cat", "id"},
    "i": {"name", "pid", "tid", "ts", "s"},
}
"""Fields that the Trace Event Format wants of each kind of event."""


def events_of(recording, kind, *, settings=NATIVE, capacity_bytes=None):
    trace = trace_of(recording, settings=settings, capacity_bytes=capacity_bytes)
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def counter(recording, name, **how):
    """Return a counter's value after each event of the recording."""
    values = np.zeros(len(recording.events) + 1, dtype=np.int64)
    for event in events_of(recording, "C", **how):
        if event["name"] == name:
            values[event["ts"] :] = event["args"]["bytes"]
    return values[:-1]


@pytest.mark.parametrize("num_events", [0, 2000])
def test_every_event_has_what_the_format_wants(num_events):
    recording = long_run(num_events) if num_events else small_run()
    trace = trace_of(recording, settings=NATIVE, capacity_bytes=None)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    for event in trace["traceEvents"]:
        assert NEEDED[event["ph"]] <= set(event), event
        assert isinstance(event["name"], str)
        for number in ("ts", "dur", "pid", "tid"):
            assert isinstance(event.get(number, 0), int)
            assert event.get(number, 0) >= 0


def test_time_never_goes_back_and_counts_events():
    trace = trace_of(long_run(2000), settings=NATIVE, capacity_bytes=None)
    times = [event["ts"] for event in trace["traceEvents"]]
    assert times == sorted(times)
    assert times[-1] <= 2000
    assert "one event" in trace["otherData"]["clock"]


def test_the_file_is_json(tmp_path):
    path = tmp_path / "trace.json"
    write_trace(small_run(), path, settings=NATIVE, capacity_bytes=None)
    expected = trace_of(small_run(), settings=NATIVE, capacity_bytes=None)
    assert json.loads(path.read_text()) == expected


def test_an_empty_recording_is_an_empty_trace():
    trace = trace_of(long_run(0), settings=NATIVE, capacity_bytes=None)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M"}


# -- counters --


@pytest.mark.parametrize("recording", [small_run(), long_run(3000)], ids=["small", "long"])
def test_the_live_counter_is_live_bytes(recording):
    live = recording.live_bytes()
    assert counter(recording, "live bytes").tolist() == live.tolist()
    item = classify(recording)
    by_class = [counter(recording, f"live bytes: {ITEM_NAMES[index]}") for index in np.unique(item)]
    assert sum(by_class).tolist() == live.tolist()
    by_stream = [
        counter(recording, f"live bytes: stream {stream}") for stream in np.unique(recording.stream)
    ]
    assert sum(by_stream).tolist() == live.tolist()


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE], ids=["native", "expandable"])
@pytest.mark.parametrize("capacity", [None, 190 * MIB])
def test_the_reserved_counter_is_that_of_the_replay(settings, capacity):
    recording = small_run()
    how = {"settings": settings, "capacity_bytes": capacity}
    expected = replay(recording.requests(), **how).peak_reserved_bytes
    values = [
        e["args"]["bytes"]
        for e in events_of(recording, "C", **how)
        if e["name"] == "reserved bytes"
    ]
    assert max(values) == expected
    assert (counter(recording, "reserved bytes", **how) >= 0).all()


def test_a_long_recording_is_sampled_and_keeps_its_peak(monkeypatch):
    recording = long_run(20_000)
    monkeypatch.setattr(perfetto, "NUM_SAMPLES", 1000)
    counters = [e for e in events_of(recording, "C") if e["name"] == "live bytes"]
    assert len(counters) <= 1000
    live = recording.live_bytes()
    assert max(event["args"]["bytes"] for event in counters) == live.max()
    assert all(live[event["ts"]] == event["args"]["bytes"] for event in counters)
    tracks = {event["tid"] for event in events_of(recording, "X")}
    assert tracks == {perfetto.PHASES, perfetto.MODULES}


# -- slices --


def slices(recording, track):
    return [event for event in events_of(recording, "X") if event["tid"] == track]


def test_phases_follow_each_other():
    found = [(e["name"], e["ts"], e["dur"]) for e in slices(small_run(), perfetto.PHASES)]
    assert found == [
        ("load", 0, 3),
        ("step 1 forward", 3, 7),
        ("step 1 backward", 10, 9),
        ("step 1 optimizer", 19, 4),
    ]


@pytest.mark.parametrize("recording", [small_run(), long_run(3000)], ids=["small", "long"])
def test_slices_of_a_track_nest(recording):
    for track in {event["tid"] for event in events_of(recording, "X")}:
        opened = []
        for event in slices(recording, track):
            start, stop = event["ts"], event["ts"] + event["dur"]
            while opened and opened[-1] <= start:
                opened.pop()
            assert not opened or stop <= opened[-1], event
            opened.append(stop)


def test_modules_nest_by_path():
    found = [(e["name"], e["ts"], e["dur"]) for e in slices(small_run(), perfetto.MODULES)]
    # Loading: the first layer's weight, the second's, then a workspace that is no module's.
    assert found[:4] == [
        ("model", 0, 2),
        ("model.layers", 0, 2),
        ("model.layers.0", 0, 1),
        ("model.layers.0.mlp", 0, 1),
    ]
    assert {name for name, _, _ in found} >= {*LAYERS, "loss"}


def test_allocations_stand_on_the_track_of_their_stream():
    found = slices(small_run(), perfetto.FIRST_STREAM + COMM_STREAM)
    assert [(e["name"], e["ts"], e["args"]["bytes"]) for e in found] == [
        ("c10d.all_gather", 10, 40 * MIB),
        ("c10d.all_gather", 14, 40 * MIB),
    ]
    names = {e["args"]["name"] for e in events_of(small_run(), "M")}
    assert {f"allocations, stream {COMM_STREAM}", "allocations, default stream"} <= names


def test_the_largest_allocations_begin_and_end():
    recording = small_run()
    begins, ends = events_of(recording, "b"), events_of(recording, "e")
    assert [event["id"] for event in begins] == sorted(event["id"] for event in begins)
    assert {(e["id"], e["cat"], e["name"]) for e in begins} == {
        (e["id"], e["cat"], e["name"]) for e in ends
    }
    died = {event["id"]: event["ts"] for event in ends}
    for event in begins:
        row = event["id"]
        assert event["ts"] == recording.born[row]
        assert died[row] == (recording.died[row] if recording.died[row] >= 0 else 23)
        assert event["args"]["bytes"] == recording.num_bytes[row]
    gathered = next(event for event in begins if event["ts"] == 10)
    assert gathered["args"]["line"] == "train.py:12"
    assert gathered["args"]["stream"] == COMM_STREAM


def test_only_so_many_allocations_have_a_slice():
    assert len(events_of(long_run(3000), "b")) == perfetto.NUM_LARGEST


def test_peak_flushes_and_running_out_are_marked():
    marks = [(e["name"], e["ts"]) for e in events_of(small_run(), "i")]
    assert marks == [("peak: 192.01 MiB live", 20), ("empty_cache", 21)]
    short = [e["name"] for e in events_of(small_run(), "i", capacity_bytes=180 * MIB)]
    assert "out of memory, short by 14.00 MiB" in short
