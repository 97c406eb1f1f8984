"""The parts of the page about memory: the verdict, live bytes over time, items and owners."""

from brimful.measure.verdict import ACTIVATIONS, Climbed, Verdict, judge_rungs
from brimful.report.charts import Chart, matching_phases, memory_chart
from brimful.report.figures import chart_figure
from brimful.report.words import ABSENT, error_words, format_value, share_words, verdict_cells
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_bytes
from brimful.values.plan import MemoryItem
from brimful.values.results import ITEM_NAMES, Timeline
from brimful.values.timeline import limit_in_view

_COLUMNS = ("predicted", "simulated", "measured")
LABELLED_PERCENT = 9
"""A part of a bar narrower than this has no room for its share."""
MAX_OWNERS = 16
"""Allocations listed at the peak: beyond these each is a small share."""


def verdict_section(verdict: Verdict) -> Html:
    """Set the three rungs side by side with their signed errors."""
    if verdict.measured_by:
        caption = f"Bytes at the peak and per phase. Measured by: {verdict.measured_by}."
    else:
        caption = "Bytes at the peak and per phase. Not measured yet."
    strong = {"peak allocated"}
    rows = [
        markup.row(
            [markup.text(cell) for cell in verdict_cells(row)],
            right=frozenset(range(1, 6)),
            style="strong" if row.name in strong else "",
        )
        for row in verdict.rows
    ]
    return markup.table(
        caption,
        ("Item", "Predicted", "Simulated", "Measured", "sim vs pred", "meas vs sim"),
        [markup.join(rows)],
        right=frozenset(range(1, 6)),
    )


def timeline_section(climbed: Climbed) -> Html | None:
    """Draw live bytes against the event index, with the phases named."""
    simulated = climbed.simulation.timeline if climbed.simulation else None
    measured = climbed.measurement.timeline if climbed.measurement else None
    usable_bytes = climbed.usable_bytes
    chart = memory_chart(simulated, measured, usable_bytes=usable_bytes)
    if chart is None:
        return None
    notes = ["Bytes alive after every allocation and free of the first steps."]
    if simulated and measured:
        notes.append(_alignment_words(simulated, measured))
    if not any(series.label == "limit" for series in chart.series):
        notes.append(f"The limit, {format_bytes(usable_bytes)}, is far above this chart.")
    figure = chart_figure("memory", chart, _timeline_words(chart), " ".join(notes))
    return markup.join([figure, phase_list(chart)])


def _alignment_words(simulated: Timeline, measured: Timeline) -> str:
    indices = matching_phases(simulated, measured)
    if not indices:
        return "The measured run went through other phases: only its height compares."
    left_out = len(measured.phases) - sum(index is not None for index in indices)
    also = f"; {left_out} measured phases that were not simulated are left out" if left_out else ""
    return (
        "Real kernels allocate more often than pretended ones, so measured events are stretched "
        f"phase by phase until the phases line up{also}."
    )


def _timeline_words(chart: Chart) -> str:
    peaks = ", ".join(
        f"{series.label} peak {format_bytes(max(v for v in series.values if v is not None))}"
        for series in chart.series
        if series.role in {"steps", "area"}
    )
    return f"Line chart of live bytes against events: {peaks}."


def phase_list(chart: Chart) -> Html:
    """Set the phases of a chart with the peak of each."""
    rows = (
        f"<li><span>{markup.text(phase.name)}</span> "
        f"<b>{markup.text(format_bytes(phase.peak))}</b></li>"
        for phase in chart.phases
    )
    label = "Phases of the chart with the peak of each"
    return Html(f'<ol class="phases" aria-label="{label}">{"".join(rows)}</ol>')


def peak_section(climbed: Climbed) -> Html | None:
    """Draw what is alive at the peak on every rung, with a table that is also the legend."""
    rungs = _rungs(climbed)
    if not rungs:
        return None
    usable_bytes = climbed.usable_bytes
    top = max([*(sum(items.values()) for items in rungs.values()), 1])
    in_view = limit_in_view(usable_bytes, top)
    scale = max(top, usable_bytes) if in_view else top
    marked_bytes = usable_bytes if in_view else 0
    bars = [_bar(rung, items, scale, marked_bytes) for rung, items in rungs.items()]
    bar = "The bar is" if len(bars) == 1 else "Each bar is"
    words = f"{bar} the peak; its parts are the items of the table below."
    if in_view:
        words += f" The red line is the limit, {format_bytes(usable_bytes)}."
    return Html(
        f'<figure><div class="bars">{markup.join(bars)}</div>'
        f"<figcaption>{markup.text(words)}</figcaption></figure>"
        f"{_item_table(rungs, climbed)}"
    )


def _rungs(climbed: Climbed) -> dict[str, dict[str, int]]:
    rungs = {}
    if climbed.estimate is not None:
        rungs["predicted"] = _by_name(climbed.estimate.items)
    if climbed.simulation is not None:
        rungs["simulated"] = _by_name(climbed.simulation.items)
    if climbed.measurement is not None:
        items = _by_name(climbed.measurement.items)
        merged = sum(items.pop(name) for name in _told_apart_by_module(climbed) if name in items)
        if merged:
            items[ACTIVATIONS] = items.get(ACTIVATIONS, 0) + merged
        rungs["measured"] = items
    return rungs


def _told_apart_by_module(climbed: Climbed) -> list[str]:
    # A measuring instrument knows no modules. Which items it sees as one is the verdict's business:
    # they are those that have no row of their own there.
    rows = judge_rungs(climbed).rows
    own_row = {row.name for row in rows}
    return [name for name in ITEM_NAMES if name not in own_row]


def _by_name(items: tuple[MemoryItem, ...]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for item in items:
        totals[item.name] = totals.get(item.name, 0) + item.num_bytes
    return totals


def _order(names: set[str]) -> list[str]:
    known = (*ITEM_NAMES, ACTIVATIONS)
    return [name for name in known if name in names] + sorted(names - set(known))


def _bar(rung: str, items: dict[str, int], scale: float, limit_bytes: float) -> Html:
    total = sum(items.values())
    parts = []
    for name in _order(set(items)):
        width = 100 * items[name] / scale
        if width <= 0:
            continue
        words = markup.text(f"{name}: {format_bytes(items[name])}")
        share = f"{100 * items[name] / total:.0f} %" if width >= LABELLED_PERCENT else ""
        style = markup.style_class("item", name)
        parts.append(
            f'<span class="part {style}" style="width:{width:.3f}%" title="{words}">{share}</span>'
        )
    limit = f'<i class="limit" style="left:{100 * limit_bytes / scale:.3f}%"></i>'
    spoken = ", ".join(f"{name} {format_bytes(items[name])}" for name in _order(set(items)))
    label = markup.text(f"{rung}: {format_bytes(total)} at the peak: {spoken}")
    return Html(
        f'<div class="bar-row"><span class="bar-name">{rung}</span>'
        f'<div class="bar" role="img" aria-label="{label}">{"".join(parts)}'
        f"{limit if limit_bytes else ''}</div>"
        f'<span class="bar-total">{format_bytes(total)}</span></div>'
    )


def _item_table(rungs: dict[str, dict[str, int]], climbed: Climbed) -> Html:
    names = _order({name for items in rungs.values() for name in items} - {ACTIVATIONS})
    parts = [name for name in names if name in _told_apart_by_module(climbed)]
    reasons = _reasons(climbed)
    lowest = next(iter(rungs))
    columns = (lowest,) if len(rungs) == 1 else _COLUMNS
    total = sum(rungs[lowest].values())
    rows = []
    for name in names:
        if parts and name == parts[0] and ACTIVATIONS in rungs.get("measured", {}):
            rows.append(_together_row(rungs, parts, total))
        found = {rung: rungs.get(rung, {}).get(name) for rung in columns}
        indent = name in parts and "measured" in rungs
        rows.append(
            _item_row(name, found, total, reasons.get(name, ""), style="part-of" if indent else "")
        )
    totals = {rung: sum(rungs[rung].values()) if rung in rungs else None for rung in columns}
    rows.append(_item_row("total", totals, total, "", style="strong"))
    return markup.table(
        f"Items at the peak; the share is of the {lowest} peak.",
        ("Item", *(rung.capitalize() for rung in columns), "Share", "Why"),
        [markup.join(rows)],
        right=frozenset(range(1, len(columns) + 2)),
    )


def _together_row(rungs: dict[str, dict[str, int]], parts: list[str], total: int) -> Html:
    found: dict[str, int | None] = {
        rung: sum(rungs[rung].get(part, 0) for part in parts) if rung in rungs else None
        for rung in _COLUMNS
    }
    found["measured"] = rungs["measured"][ACTIVATIONS]
    why = f"the next {len(parts)} rows together; the instrument sees them as one"
    return _item_row(ACTIVATIONS, found, total, why)


def _item_row(
    name: str, found: dict[str, int | None], total: int, why: str, *, style: str = ""
) -> Html:
    lowest = next((value for value in found.values() if value is not None), None)
    share = ABSENT if lowest is None else share_words(lowest, total)
    swatch = (
        f'<i class="swatch {markup.style_class("item", name)}" aria-hidden="true"></i>'
        if name != "total"
        else ""
    )
    cells = [
        Html(f"{swatch}{markup.text(name)}"),
        *(markup.text(format_value(num_bytes, unit="bytes")) for num_bytes in found.values()),
        markup.text(share),
        markup.text(why),
    ]
    return markup.row(cells, right=frozenset(range(1, len(found) + 2)), style=style)


def _reasons(climbed: Climbed) -> dict[str, str]:
    items = list(climbed.estimate.items) if climbed.estimate else []
    if climbed.simulation is not None:
        items += climbed.simulation.items
    reasons: dict[str, str] = {}
    for item in items:
        reasons.setdefault(item.name, item.why)
    return reasons


def owners_section(climbed: Climbed) -> Html | None:
    """List the largest allocations that are alive at the simulated peak."""
    simulation = climbed.simulation
    if simulation is None or not simulation.owners:
        return None
    peak_bytes = simulation.simulated_peak_allocated_bytes
    shown = simulation.owners[:MAX_OWNERS]
    together = sum(owner.num_bytes for owner in shown)
    rows = [
        markup.row(
            [
                markup.code(owner.module or "(no module)"),
                markup.text(format_bytes(owner.num_bytes)),
                markup.text(share_words(owner.num_bytes, peak_bytes)),
                markup.text(owner.item),
                markup.code(owner.op),
                markup.code(owner.shape),
                markup.code(owner.dtype),
            ],
            right=frozenset({1, 2}),
        )
        for owner in shown
    ]
    caption = (
        f"The {len(shown)} largest allocations alive at the simulated peak: "
        f"{format_bytes(together)}, {share_words(together, peak_bytes)} of it."
    )
    return markup.table(
        caption,
        ("Module", "Bytes", "Share", "Item", "Operation", "Shape", "Type"),
        [markup.join(rows)],
        right=frozenset({1, 2}),
    )


def peak_error_words(climbed: Climbed) -> dict[str, str]:
    """Print the error of each climbed rung's peak against the rung before it."""
    estimate = climbed.estimate
    predicted = estimate.predicted_peak_allocated_bytes if estimate else None
    simulation, measurement = climbed.simulation, climbed.measurement
    simulated = simulation.simulated_peak_allocated_bytes if simulation else None
    measured = measurement.measured_peak_allocated_bytes if measurement else None
    before, name = (simulated, "simulated") if simulated is not None else (predicted, "predicted")
    return {
        "simulated": f"{error_words(simulated, predicted)} against predicted",
        "measured": f"{error_words(measured, before)} against {name}",
    }
