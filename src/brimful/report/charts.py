"""Charts as values: thinned, laid on one axis, and ready to be drawn by the page's script."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from brimful.values.job import Task
from brimful.values.results import Timeline
from brimful.values.run_files import DataSummary, EvalRow, LoopRow, TrainRow
from brimful.values.task_words import judged_by, loss_unit
from brimful.values.timeline import limit_in_view

MAX_POINTS = 4000
"""A logged line is thinned to about this many points; no screen shows more."""
STEP_TIME_HEADROOM = 1.6
"""The step-time axis ends at this many medians, so that a slow first step does not set it."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line, set of points or horizontal rule; None where it has no value."""

    label: str
    role: Literal["line", "steps", "area", "points", "rule"]
    tone: str
    values: tuple[float | None, ...]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the horizontal axis with its name and the largest value in it.

    Attributes:
        start: Where it begins.
        name: As the timeline calls it.
        peak: The largest value in it.
        owners: Whose the bytes are at the highest instant of the phases of this name.
    """

    start: float
    name: str
    peak: float
    owners: tuple[tuple[str, int], ...] = ()


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart: one horizontal axis, several series, perhaps phases.

    Attributes:
        x: Positions, increasing.
        x_label: What they count.
        unit: Unit of the vertical axis.
        y_label: What it shows.
        y_max: Where it ends; None lets the values decide.
        from_zero: Whether it starts at zero.
        series: What is drawn.
        phases: Named stretches; may be empty.
    """

    x: tuple[float, ...]
    x_label: str
    unit: Literal["bytes", "s", "nats", "doublings", "number"]
    y_label: str
    y_max: float | None
    from_zero: bool
    series: tuple[Series, ...]
    phases: tuple[Phase, ...]


Points = tuple[Sequence[float], Sequence[float]]
"""Positions and values."""


def thin(points: Points, *, max_points: int = MAX_POINTS) -> Points:
    """Leave out points between which nothing of note happens.

    Returns of every stretch of the axis its first, lowest, highest and last point: no extreme is
    lost.
    """
    x, y = points
    if len(x) <= max_points:
        return points
    stride = -(-4 * len(x) // max_points)
    kept: list[int] = []
    for start in range(0, len(x), stride):
        bucket = range(start, min(start + stride, len(x)))
        lowest, highest = min(bucket, key=y.__getitem__), max(bucket, key=y.__getitem__)
        kept.extend(sorted({bucket[0], lowest, highest, bucket[-1]}))
    return [x[i] for i in kept], [y[i] for i in kept]


def matching_phases(simulated: Timeline, measured: Timeline) -> list[int | None]:
    """Find the measured phase that each simulated phase stands for.

    A simulation runs only the first micro-batches of a step, since the others repeat them. Of a
    phase that the real run repeats more often, the first ones and the last one are taken.

    Returns an index into the measured phases for each simulated one, increasing; None for a phase
    that was not measured. Empty where the two have no phase in common, or not in the same order.
    """
    chosen: dict[str, list[int]] = {}
    for name in dict.fromkeys(simulated.phases):
        found = [i for i, other in enumerate(measured.phases) if other == name]
        num_shared = min(simulated.phases.count(name), len(found))
        chosen[name] = [*found[: num_shared - 1], found[-1]] if found else []
    indices = [chosen[name].pop(0) if chosen[name] else None for name in simulated.phases]
    known = [index for index in indices if index is not None]
    return indices if known and known == sorted(known) else []


def align(measured: Timeline, simulated: Timeline) -> Points:
    """Place measured events on the simulated axis, phase by phase.

    Real kernels allocate more often than pretended ones, so equal events have unequal positions.
    Within a phase positions are stretched evenly; phase boundaries fall on each other.

    Returns positions and live bytes of the measured samples; as they are where the phases differ.
    """
    indices = matching_phases(simulated, measured)
    if not indices:
        return measured.event, measured.live_bytes
    old, new = _phase_spans(measured), _phase_spans(simulated)
    x: list[float] = []
    y: list[float] = []
    for (start, end), index in zip(new, indices, strict=True):
        if index is None:
            continue
        first, last = (bisect_left(measured.event, edge) for edge in old[index])
        stretch = (end - start) / max(old[index][1] - old[index][0], 1)
        x += [start + stretch * (event - old[index][0]) for event in measured.event[first:last]]
        y += measured.live_bytes[first:last]
    return [round(position, 2) for position in x], y


def _phase_spans(timeline: Timeline) -> list[tuple[int, int]]:
    last = max(timeline.event[-1], timeline.phase_starts[-1]) + 1
    return list(zip(timeline.phase_starts, [*timeline.phase_starts[1:], last], strict=True))


_MEMORY_ROLES: dict[str, Literal["steps", "area"]] = {"simulated": "steps", "measured": "area"}


def memory_chart(
    simulated: Timeline | None, measured: Timeline | None, *, usable_bytes: int
) -> Chart | None:
    """Draw live bytes against the event index.

    ``simulated``: the second rung's timeline, or None. ``measured``: the third rung's, or None.
    ``usable_bytes``: the limit, drawn as a rule where it is near enough to be seen. Returns the
    chart, or None where there is no timeline.
    """
    timelines = [timeline for timeline in (simulated, measured) if timeline and timeline.event]
    if not timelines:
        return None
    lines: list[tuple[str, Points]] = []
    # The measurement is an area, so that a simulation that agrees with it is still seen on it.
    if measured is not None and measured.event:
        lines.append(("measured", align(measured, timelines[0])))
    if simulated is not None and simulated.event:
        lines.append(("simulated", (simulated.event, simulated.live_bytes)))
    x = union([points for _, points in lines])
    series = [
        Series(label=label, role=_MEMORY_ROLES[label], tone=label, values=_on_axis(points, x))
        for label, points in lines
    ]
    if limit_in_view(usable_bytes, max(max(points[1]) for _, points in lines)):
        series.append(_rule("limit", "limit", usable_bytes, x))
    return Chart(
        x=x,
        x_label="event (allocation or free)",
        unit="bytes",
        y_label="live bytes",
        y_max=None,
        from_zero=True,
        series=tuple(series),
        phases=phase_peaks(timelines[0]),
    )


def memory_lines(timelines: Mapping[str, Timeline], *, tones: Sequence[str]) -> Chart:
    """Draw live bytes of several runs on the first one's axis.

    ``timelines``: by label, at least one; the others are stretched phase by phase where they can.
    """
    first = next(iter(timelines.values()))
    lines = {
        label: (line.event, line.live_bytes) if line is first else align(line, first)
        for label, line in timelines.items()
    }
    x = union(list(lines.values()))
    roles: tuple[Literal["area"], Literal["steps"]] = ("area", "steps")
    series = tuple(
        Series(label=label, role=roles[place > 0], tone=tone, values=_on_axis(points, x))
        for place, ((label, points), tone) in enumerate(zip(lines.items(), tones, strict=True))
    )
    return Chart(
        x=x,
        x_label="event (allocation or free)",
        unit="bytes",
        y_label="live bytes",
        y_max=None,
        from_zero=True,
        series=series,
        phases=phase_peaks(first),
    )


def phase_peaks(timeline: Timeline) -> tuple[Phase, ...]:
    """Find the largest number of live bytes in each phase of a timeline."""
    ends = [*timeline.phase_starts[1:], float("inf")]
    phases = []
    owners = {found.phase: found.owners for found in timeline.owners}
    for start, end, name in zip(timeline.phase_starts, ends, timeline.phases, strict=True):
        first, last = bisect_left(timeline.event, start), bisect_left(timeline.event, end)
        peak = max(timeline.live_bytes[first:last], default=0)
        phases.append(Phase(start=start, name=name, peak=peak, owners=owners.get(name, ())))
    return tuple(phases)


def loss_chart(
    train_rows: Sequence[TrainRow | LoopRow],
    eval_rows: Sequence[EvalRow],
    data: DataSummary | None,
    task: Task,
) -> Chart | None:
    """Draw the training loss, the held-out loss and that of knowing frequencies alone.

    ``train_rows``: one per step. ``eval_rows``: one per evaluation. ``data``: holds the entropy, or
    None. ``task``: what is trained; names the unit. Returns the chart, or None where nothing was
    logged.
    """
    train = thin(points_of([(row.step, row.loss) for row in train_rows]))
    heldout = points_of([(row.step, row.heldout_loss) for row in eval_rows])
    x = union([train, heldout])
    if not x:
        return None
    series = [
        Series(label="train", role="line", tone="measured", values=exactly(train, x)),
        Series(label="held out", role="points", tone="simulated", values=exactly(heldout, x)),
    ]
    if data is not None:
        series.append(_rule(judged_by(task), "mark", data.unigram_entropy, x))
    return Chart(
        x=x,
        x_label="step",
        unit="nats",
        y_label=f"loss,{loss_unit(task)}".rstrip(","),
        y_max=None,
        from_zero=False,
        series=tuple(line for line in series if any(v is not None for v in line.values)),
        phases=(),
    )


def loss_scale_chart(train_rows: Sequence[TrainRow]) -> Chart | None:
    """Draw the loss scale as a power of two, and the steps that were skipped.

    ``train_rows``: one per step. Returns the chart, or None where no loss was scaled.
    """
    powers = {r.step: math.log2(r.loss_scale) for r in train_rows if r.loss_scale}
    if not powers:
        return None
    skipped = [row.step for row in train_rows if row.skipped and row.step in powers]
    line = thin((list(powers), list(powers.values())))
    points = thin((skipped, [powers[step] for step in skipped]))
    x = union([line, points])
    series = [Series(label="loss scale", role="steps", tone="measured", values=_on_axis(line, x))]
    if skipped:
        values = exactly(points, x)
        series.append(Series(label="skipped", role="points", tone="limit", values=values))
    return Chart(
        x=x,
        x_label="step",
        unit="doublings",
        y_label="loss scale, power of two",
        y_max=None,
        from_zero=False,
        series=tuple(series),
        phases=(),
    )


def learning_rate_chart(rows: Sequence[TrainRow | LoopRow]) -> Chart | None:
    """Draw the learning rate of every step; None where none is known."""
    return _line_chart("learning rate", [(row.step, row.learning_rate) for row in rows])


def gradient_norm_chart(rows: Sequence[TrainRow | LoopRow]) -> Chart | None:
    """Draw the gradients' global norm before clipping; None where none is known."""
    return _line_chart("gradient norm", [(row.step, row.grad_norm) for row in rows])


def _line_chart(label: str, pairs: Sequence[tuple[int, float | None]]) -> Chart | None:
    x, y = thin(points_of(pairs))
    if not x:
        return None
    return Chart(
        x=tuple(x),
        x_label="step",
        unit="number",
        y_label=label,
        y_max=None,
        from_zero=True,
        series=(Series(label=label, role="line", tone="measured", values=tuple(y)),),
        phases=(),
    )


def step_time_chart(
    train_rows: Sequence[TrainRow | LoopRow], *, predicted: Sequence[tuple[str, float]]
) -> Chart | None:
    """Draw the seconds of every step with the prediction as rules.

    ``train_rows``: one per step. ``predicted``: label and seconds of each rule. Returns the chart,
    or None where no step was logged.
    """
    known = points_of([(row.step, row.step_s) for row in train_rows])
    if not known[0]:
        return None
    points = thin(known)
    x = tuple(points[0])
    median = sorted(known[1])[len(known[1]) // 2]
    tones = {"predicted": "simulated"}
    rules = [_rule(label, tones.get(label, "mark"), value, x) for label, value in predicted]
    line = Series(label="measured", role="line", tone="measured", values=tuple(points[1]))
    return Chart(
        x=x,
        x_label="step",
        unit="s",
        y_label="step time",
        y_max=max([STEP_TIME_HEADROOM * median, *(1.05 * value for _, value in predicted)]),
        from_zero=True,
        series=(line, *rules),
        phases=(),
    )


def points_of(pairs: Sequence[tuple[int, float | None]]) -> Points:
    """Leave out steps without a value."""
    known = [(step, value) for step, value in pairs if value is not None]
    return [step for step, _ in known], [value for _, value in known]


def union(lines: Sequence[Points]) -> tuple[float, ...]:
    """Return every position of any of the lines, increasing."""
    return tuple(sorted({position for x, _ in lines for position in x}))


def _rule(label: str, tone: str, value: float, x: Sequence[float]) -> Series:
    return Series(label=label, role="rule", tone=tone, values=(value,) * len(x))


def exactly(points: Points, x: Sequence[float]) -> tuple[float | None, ...]:
    """Put a line on an axis; None between its own positions."""
    known = dict(zip(*points, strict=True))
    return tuple(known.get(position) for position in x)


def _on_axis(points: Points, x: Sequence[float]) -> tuple[float | None, ...]:
    # Live bytes stay what they were until the next event: the last value holds.
    positions, values = points
    filled: list[float | None] = []
    for position in x:
        at = bisect_right(positions, position) - 1
        inside = at >= 0 and position <= positions[-1]
        filled.append(values[at] if inside else None)
    return tuple(filled)
