"""A loop of the user's own that was watched, as a page and in the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

from brimful.files.writing import write_text
from brimful.report import memory_sections
from brimful.report.charts import loss_chart, step_time_chart
from brimful.report.curve_sections import curves_section
from brimful.report.figures import chart_figure
from brimful.report.html import REPORT_FILE, figure_list, page
from brimful.report.watched_run import WatchedRun
from brimful.report.words import error_words, format_value, rungs_sentence
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Group


def write_watched_report(run: WatchedRun, folder: Path) -> Path:
    """Write a run's page into its folder, atomically.

    Raises RunError: the folder cannot be written.
    """
    path = folder / REPORT_FILE
    write_text(path, render_watched(run))
    return path


def render_watched(run: WatchedRun) -> str:
    """Set the page: HTML that needs no other file and no network."""
    climbed = run.rungs
    candidates = (
        ("verdict", "Predicted, simulated, measured", _verdict(run)),
        ("timeline", "Memory over time", memory_sections.timeline_section(climbed)),
        ("peak", "What is alive at the peak", memory_sections.peak_section(climbed)),
        ("owners", "Largest owners at the peak", memory_sections.owners_section(climbed)),
        ("loss", "Loss", _loss(run)),
        ("curves", "Learning rate, gradients", curves_section(run.rows)),
        ("step-time", "Step time", _step_time(run)),
        ("settings", "Settings", _settings(run)),
        ("provenance", "What the numbers rest on", _provenance(run)),
    )
    sections = [(key, title, body) for key, title, body in candidates if body]
    return page(
        f"{run.title}: Brimful watched run",
        header=_header(run),
        sections=sections,
        footer="Made by brimful.watch. What was measured knows nothing of what was simulated.",
    )


def watched_lines(run: WatchedRun) -> "Group":
    """Set the verdict and what is missing of it, for a terminal."""
    from rich.console import Group

    from brimful.report.text import verdict_table

    return Group(verdict_table(run.verdict), *_missing(run), rungs_sentence(run.rungs))


def _verdict(run: WatchedRun) -> Html:
    notes = (markup.paragraph(markup.text(line), style="note") for line in _missing(run))
    return markup.join([memory_sections.verdict_section(run.verdict), *notes])


def _missing(run: WatchedRun) -> list[str]:
    told = []
    if run.estimate is None:
        told.append(f"Not predicted: {run.not_predicted}.")
    else:
        told.append("Predicted: Brimful's own loop with these settings, not this one.")
    if run.simulation is None:
        told.append(f"Not simulated: {run.not_simulated}.")
    return told


def _header(run: WatchedRun) -> Html:
    sentence = rungs_sentence(run.rungs)
    tone = "fits" if sentence.startswith("Fits") else "short"
    errors = memory_sections.peak_error_words(run.rungs)
    figures = []
    if run.estimate is not None:
        peak = format_bytes(run.estimate.predicted_peak_allocated_bytes)
        figures.append(("Predicted peak", peak, "of Brimful's own loop"))
    if run.simulation is not None:
        peak = format_bytes(run.simulation.simulated_peak_allocated_bytes)
        figures.append(("Simulated peak", peak, "of this loop"))
    measured = format_bytes(run.measurement.measured_peak_allocated_bytes)
    figures.append(("Measured peak", measured, errors["measured"]))
    step = format_value(run.measurement.measured_step_s, unit="s")
    figures.append(("Measured step", step, ""))
    count = (
        f"{format_count(run.num_parameters)} parameters, {format_count(run.num_trained)} trained"
    )
    return Html(
        '<header><p class="eyebrow">Brimful watched run</p>'
        f"<h1>{markup.text(run.title)}</h1>"
        f'<p class="machine">{markup.text(count)} on {markup.text(run.machine)}</p>'
        f'<p class="verdict {tone}">{markup.text(sentence)}</p>'
        f"{figure_list(figures)}</header>"
    )


def _loss(run: WatchedRun) -> Html | None:
    chart = loss_chart(run.rows, (), None, "module")
    if chart is None:
        return None
    words = "Loss, as the loop logged it."
    return chart_figure("loss", chart, f"Line chart of the loss. {words}", words)


def _step_time(run: WatchedRun) -> Html:
    estimate, measured_s = run.estimate, run.measurement.measured_step_s
    predicted_s = estimate.predicted_step_s if estimate else None
    pairs = [
        ("predicted", format_value(predicted_s, unit="s")),
        ("measured", format_value(measured_s, unit="s")),
    ]
    if measured_s is not None and predicted_s is not None:
        pairs.append(("measured vs predicted", error_words(measured_s, predicted_s)))
    rules = [("predicted", predicted_s)] if predicted_s is not None else []
    chart = step_time_chart(run.rows, predicted=rules)
    facts = markup.pairs(pairs)
    if chart is None:
        return facts
    words = "Seconds of a step, on average since the last log line."
    return markup.join([facts, chart_figure("step-time", chart, words, words)])


def _settings(run: WatchedRun) -> Html:
    if not run.settings:
        return Html("")
    return markup.pairs(list(run.settings), spell=markup.code)


def _provenance(run: WatchedRun) -> Html:
    rungs = {"measured": run.measurement.versions}
    if run.simulation is not None:
        rungs["simulated"] = run.simulation.versions
    rows = [(rung, ", ".join(versions)) for rung, versions in rungs.items()]
    if run.simulation is not None:
        rows.append(("simulated in", format_seconds(run.simulation.simulate_s)))
    return markup.pairs(rows)
