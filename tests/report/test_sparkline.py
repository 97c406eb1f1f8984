"""The curve in one line: its highest column is full, and every step is named where it begins."""

from brimful.report.sparkline import sparkline
from brimful.values.results import Timeline


def timeline(live, starts=(0,), phases=("load",)):
    events = tuple(range(len(live)))
    return Timeline(event=events, live_bytes=tuple(live), phase_starts=starts, phases=phases)


def test_heights():
    curve, _ = sparkline(timeline([0, 1, 4, 8, 2]), width=5)
    assert curve == " ▁▄█▂"


def test_columns_without_a_sample_are_as_high_as_the_one_before():
    curve, _ = sparkline(timeline([8, 4]), width=6)
    assert curve == "███▄▄▄"


def test_many_events_in_a_column_show_their_highest():
    curve, _ = sparkline(timeline([1, 8, 1, 4, 1, 1]), width=2)
    assert curve == "█▄"


def test_steps_are_named_once_and_never_overlap():
    phases = ("load", "step 1 forward", "step 1 backward", "step 2 forward", "step 3 forward")
    said = timeline([1] * 100, (0, 20, 30, 60, 62), phases)
    _, steps = sparkline(said, width=50)
    assert steps == "load      step 1              step 2"


def test_nothing_at_all():
    assert sparkline(timeline([], (), ()), width=4) == ("    ", "")
