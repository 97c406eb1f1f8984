import msgspec

from brimful.report.charts import align, loss_chart, memory_chart, phase_peaks, thin
from brimful.values.results import Timeline
from brimful.values.run_files import EvalRow, TrainRow


def timeline(starts, phases, num_events, scale=1):
    return Timeline(
        event=tuple(range(num_events)),
        live_bytes=tuple(scale * (i + 1) for i in range(num_events)),
        phase_starts=tuple(starts),
        phases=tuple(phases),
    )


def test_thinning_keeps_extremes_ends_and_order():
    x, y = list(range(50_000)), [(7919 * i * i) % 50_021 for i in range(50_000)]
    kept_x, kept_y = thin((x, y), max_points=1000)
    assert len(kept_x) <= 1000
    assert (min(kept_y), max(kept_y)) == (min(y), max(y))
    assert (kept_x[0], kept_x[-1]) == (0, 49_999)
    assert kept_x == sorted(set(kept_x))


def test_phases_line_up_and_no_event_leaves_its_phase():
    simulated = timeline([0, 10], ["forward", "backward"], 30)
    measured = timeline([0, 40], ["forward", "backward"], 60)
    x, y = align(measured, simulated)
    assert x == sorted(x)
    assert x[40] == 10
    assert max(x) < 30
    assert tuple(y) == measured.live_bytes


def test_of_repeated_micro_batches_the_first_and_the_last_are_laid_in_line():
    simulated = timeline([0, 5, 10, 15, 20], ["f", "b", "f", "b", "opt"], 25)
    measured = timeline(range(0, 90, 10), ["f", "b"] * 4 + ["opt"], 90)
    x, y = align(measured, simulated)
    assert x == sorted(x)
    assert list(y) == [*range(1, 21), *range(61, 91)]


def test_a_phase_that_was_not_measured_stays_empty():
    simulated = timeline([0, 5, 10], ["load", "forward", "backward"], 30)
    measured = timeline([0, 40, 60], ["forward", "backward", "eval"], 90)
    x, y = align(measured, simulated)
    assert (x[0], x[40]) == (5, 10)
    assert max(x) < 30
    assert list(y) == list(range(1, 61))


def test_other_phases_are_left_where_they_are():
    simulated = timeline([0, 10], ["forward", "backward"], 30)
    measured = timeline([0, 40], ["load", "eval"], 60)
    assert align(measured, simulated) == (measured.event, measured.live_bytes)


def test_the_limit_is_drawn_only_where_it_does_not_flatten_the_rest():
    simulated = timeline([0], ["forward"], 30)
    near = memory_chart(simulated, None, usable_bytes=40)
    far = memory_chart(simulated, None, usable_bytes=4000)
    assert [s.label for s in near.series] == ["simulated", "limit"]
    assert [s.label for s in far.series] == ["simulated"]


def test_every_series_has_one_value_per_position():
    simulated = timeline([0, 10], ["forward", "backward"], 30)
    measured = timeline([0, 40], ["forward", "backward"], 61, scale=2)
    chart = memory_chart(simulated, measured, usable_bytes=200)
    assert all(len(series.values) == len(chart.x) for series in chart.series)
    peaks = {s.label: max(v for v in s.values if v is not None) for s in chart.series}
    assert peaks == {"simulated": 30, "measured": 122, "limit": 200}


def test_a_phase_peak_is_the_largest_sample_inside_it():
    found = phase_peaks(timeline([0, 10], ["forward", "backward"], 30))
    assert [(p.name, p.peak) for p in found] == [("forward", 10), ("backward", 30)]


def test_empty_timelines_and_logs_draw_nothing():
    empty = Timeline(event=(), live_bytes=(), phase_starts=(), phases=())
    assert memory_chart(empty, None, usable_bytes=1) is None
    assert memory_chart(None, None, usable_bytes=1) is None
    assert loss_chart((), (), None, "causal-lm") is None


def test_a_loss_that_blew_up_leaves_a_gap():
    rows = [
        TrainRow(step=i, loss=loss, learning_rate=0.1, grad_norm=None, tokens_per_s=1, step_s=1)
        for i, loss in ((1, 3.0), (2, None))
    ]
    chart = loss_chart(rows, [EvalRow(step=2, heldout_loss=2.5)], None, "causal-lm")
    assert {s.label: s.values for s in chart.series} == {
        "train": (3.0, None),
        "held out": (None, 2.5),
    }
    assert msgspec.json.encode(chart)
