"""Two runs on one page: what they took, what they learnt, and which inputs differ."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median

from brimful.files.writing import write_text
from brimful.measure.verdict import ACTIVATIONS, judge
from brimful.report.charts import Chart, Series, exactly, memory_lines, points_of, thin, union
from brimful.report.figures import chart_figure
from brimful.report.html import Section, figure_list, page
from brimful.report.run_folder import RunFolder
from brimful.report.words import (
    ABSENT,
    cluster_inputs,
    error_words,
    format_value,
    job_inputs,
    strategy_inputs,
    verdict_sentence,
)
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_bytes, format_count
from brimful.values.results import Timeline
from brimful.values.run_files import EvalRow, TrainRow

Figures = dict[str, tuple[float | None, str]]
"""By name: a value, and how to spell it: ``bytes``, ``s``, ``tokens/s`` or empty for a number."""
_TONES = ("measured", "simulated")


def write_against(folder: RunFolder, other: RunFolder, path: Path) -> None:
    """Write the page, atomically.

    Raises RunError: the file cannot be written.
    """
    write_text(path, render_against(folder, other))


def render_against(folder: RunFolder, other: RunFolder) -> str:
    """Set the page: HTML that needs no other file and no network."""
    names = names_of(folder, other)
    candidates = (
        ("figures", "Figures", _figures_section(folder, other, names)),
        ("differences", "What differs", _differences_section(folder, other, names)),
        ("timeline", "Memory over time", _memory_section(folder, other, names)),
        ("items", "Item by item", _items_section(folder, other, names)),
        ("loss", "Loss", _loss_section(folder, other, names)),
    )
    sections: list[Section] = [(k, title, body) for k, title, body in candidates if body]
    return page(
        f"{names[0]} against {names[1]}: Brimful",
        header=_header(folder, other, names),
        sections=sections,
        footer=f"Made by brimful report {names[0]} --against {names[1]}.",
    )


def names_of(folder: RunFolder, other: RunFolder) -> tuple[str, str]:
    """Call two runs by their folders, or by their paths where these are called alike."""
    short = folder.run_dir.resolve().name, other.run_dir.resolve().name
    return short if short[0] != short[1] else (str(folder.run_dir), str(other.run_dir))


def figures_of(folder: RunFolder) -> Figures:
    """Collect what two runs can be compared by; None where it is not known of this one."""
    estimate, simulation, measured = folder.rungs[:3]
    train = [row for row in folder.train_rows if row.loss is not None]
    heldout = [row.heldout_loss for row in folder.eval_rows]
    speeds = [row.tokens_per_s for row in folder.train_rows]
    return {
        "predicted peak": (estimate.predicted_peak_allocated_bytes if estimate else None, "bytes"),
        "simulated peak": (
            simulation.simulated_peak_allocated_bytes if simulation else None,
            "bytes",
        ),
        "measured peak": (measured.measured_peak_allocated_bytes if measured else None, "bytes"),
        "predicted step": (estimate.predicted_step_s if estimate else None, "s"),
        "measured step": (measured.measured_step_s if measured else None, "s"),
        "median speed": (median(speeds) if speeds else None, "tokens/s"),
        "steps": (len(folder.train_rows) or None, ""),
        "last training loss": (train[-1].loss if train else None, ""),
        "last held-out loss": (heldout[-1] if heldout else None, ""),
        "lowest held-out loss": (min(heldout, default=None), ""),
    }


def _spelled(value: float | None, unit: str) -> str:
    if value is None:
        return ABSENT
    if unit == "tokens/s":
        return f"{format_count(value)} tokens/s"
    if unit in ("bytes", "s"):
        return format_value(value, unit="bytes" if unit == "bytes" else "s")
    return f"{value:.6g}"


def figure_rows(folder: RunFolder, other: RunFolder) -> list[tuple[str, str, str, str]]:
    """Spell each figure of both runs, and by how much the first is more than the second."""
    ours, theirs = figures_of(folder), figures_of(other)
    rows = []
    for name, (value, unit) in ours.items():
        against = theirs[name][0]
        if value is not None or against is not None:
            error = error_words(value, against)
            rows.append((name, _spelled(value, unit), _spelled(against, unit), error))
    return rows


def differences(folder: RunFolder, other: RunFolder) -> list[tuple[str, str, str]]:
    """List every input whose value differs."""
    ours, theirs = _inputs(folder), _inputs(other)
    names = dict.fromkeys([*ours, *theirs])
    pairs = [(name, ours.get(name, ABSENT), theirs.get(name, ABSENT)) for name in names]
    return [row for row in pairs if row[1] != row[2]]


def _inputs(folder: RunFolder) -> dict[str, str]:
    plan = folder.plan
    return dict(
        [
            *job_inputs(plan.job),
            *strategy_inputs(plan.strategy),
            *cluster_inputs(plan.cluster, plan.job.precision),
        ]
    )


def _header(folder: RunFolder, other: RunFolder, names: tuple[str, str]) -> Html:
    rows = {row[0]: row for row in figure_rows(folder, other)}
    shown = [row for name in ("measured peak", "measured step", "last held-out loss")
             if (row := rows.get(name))]  # fmt: skip
    figures = [(name, f"{ours}", f"{theirs} ({error})") for name, ours, theirs, error in shown]
    told = "".join(
        f"<p><b>{markup.text(name)}</b>: {markup.text(_sentence(run))}</p>"
        for name, run in zip(names, (folder, other), strict=True)
    )
    return Html(
        '<header><p class="eyebrow">Brimful: two runs</p>'
        f"<h1>{markup.text(names[0])} against {markup.text(names[1])}</h1>"
        f"{told}{figure_list(figures) if figures else ''}</header>"
    )


def _sentence(run: RunFolder) -> str:
    return verdict_sentence(run.plan, run.simulation, run.measurement)


def _table(caption: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Html:
    right = frozenset({1, 2, 3})
    body = markup.join(markup.row([markup.text(c) for c in row], right=right) for row in rows)
    return markup.table(caption, headings, [body], right=right)


def _figures_section(folder: RunFolder, other: RunFolder, names: tuple[str, str]) -> Html:
    caption = f"The last column: by how much {names[0]} is above {names[1]}."
    return _table(caption, ("Figure", *names, "Difference"), figure_rows(folder, other))


def _differences_section(folder: RunFolder, other: RunFolder, names: tuple[str, str]) -> Html:
    rows = differences(folder, other)
    if not rows:
        return markup.paragraph(markup.text("Every input has the same value."))
    body = markup.join(
        markup.row([markup.code(row[0]), markup.code(row[1]), markup.code(row[2])],
                   right=frozenset())
        for row in rows
    )  # fmt: skip
    return markup.table(
        f"{len(rows)} inputs differ; all others are the same.",
        ("Input", *names),
        [body],
        right=frozenset(),
    )


def _memory_section(folder: RunFolder, other: RunFolder, names: tuple[str, str]) -> Html | None:
    lines = [_timeline(run) for run in (folder, other)]
    if lines[0] is None or lines[1] is None:
        return None
    chart = memory_lines(dict(zip(names, (lines[0], lines[1]), strict=True)), tones=_TONES)
    words = (
        f"Live bytes of the first steps; peaks {format_bytes(max(lines[0].live_bytes))} and "
        f"{format_bytes(max(lines[1].live_bytes))}. Events of {names[1]} are stretched phase by "
        f"phase where the phases are alike."
    )
    return chart_figure("memory", chart, f"Line chart of live bytes. {words}", words)


def _timeline(run: RunFolder) -> Timeline | None:
    """Return the highest rung's timeline."""
    measured = run.measurement.timeline if run.measurement else None
    simulated = run.simulation.timeline if run.simulation else None
    return measured or simulated


def _items_section(folder: RunFolder, other: RunFolder, names: tuple[str, str]) -> Html:
    """Compare the rows of both verdicts on the highest rung that both have climbed."""
    both = [{row.name: row for row in judge(*run).rows} for run in
            ((r.plan, r.simulation, r.measurement) for r in (folder, other))]  # fmt: skip
    is_measured = all(run.measurement is not None for run in (folder, other))
    is_simulated = all(run.simulation is not None for run in (folder, other))
    rung = "measured" if is_measured else "simulated" if is_simulated else "predicted"
    rows = []
    for name, row in both[0].items():
        if row.unit == "bytes" and name in both[1]:
            ours, theirs = getattr(row, rung), getattr(both[1][name], rung)
            if ours is not None or theirs is not None:
                cells = (_spelled(ours, "bytes"), _spelled(theirs, "bytes"))
                rows.append((name, *cells, error_words(ours, theirs)))
    caption = f"Bytes at the peak and per phase, {rung}; {ACTIVATIONS} are one where measured."
    return _table(caption, ("Item", *names, "Difference"), rows)


def _loss_section(folder: RunFolder, other: RunFolder, names: tuple[str, str]) -> Html | None:
    series = {}
    for name, run in zip(names, (folder, other), strict=True):
        series[f"{name}, train"] = thin(points_of(_losses(run.train_rows)))
        series[f"{name}, held out"] = points_of(_heldout(run.eval_rows))
    known = {label: points for label, points in series.items() if points[0]}
    if not known:
        return None
    x = union(list(known.values()))
    chart = Chart(
        x=x,
        x_label="step",
        unit="nats",
        y_label="loss",
        y_max=None,
        from_zero=False,
        series=tuple(
            Series(
                label=label,
                role="points" if label.endswith("held out") else "line",
                tone=_TONES[0] if label.startswith(f"{names[0]},") else _TONES[1],
                values=exactly(points, x),
            )
            for label, points in known.items()
        ),
        phases=(),
    )
    words = "Losses of both runs by step; points are held-out losses."
    return chart_figure("loss", chart, f"Line chart. {words}", words)


def _losses(rows: tuple[TrainRow, ...]) -> list[tuple[int, float | None]]:
    return [(row.step, row.loss) for row in rows]


def _heldout(rows: tuple[EvalRow, ...]) -> list[tuple[int, float | None]]:
    return [(row.step, row.heldout_loss) for row in rows]
