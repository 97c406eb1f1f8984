"""One run as one page: no network, no server, nothing beside the file."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from brimful.files.writing import write_text
from brimful.measure.verdict import Verdict, judge
from brimful.report import memory_sections, run_sections, time_sections
from brimful.report.curve_sections import curves_section, loss_section
from brimful.report.experts_section import experts_section
from brimful.report.ledger_section import ledger_section
from brimful.report.precision_section import precision_section
from brimful.report.run_folder import RunFolder, read_run_folder
from brimful.report.words import (
    error_words,
    format_value,
    machine_words,
    num_parameters_words,
    plan_words,
    verdict_sentence,
)
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_bytes, format_seconds

REPORT_FILE = "report.html"


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run's folder, atomically.

    Raises FileFormatError: there is no such folder, it holds no plan, or a part of it is broken.
    Raises RunError: the folder cannot be written.
    """
    page = render_report(read_run_folder(run_dir))
    path = run_dir / REPORT_FILE
    write_text(path, page)
    return path


def render_report(folder: RunFolder) -> str:
    """Set the page of a run.

    ``folder``: the run; parts that are not there yet are left out. Returns HTML that needs no other
    file and no network.
    """
    return page(
        f"{folder.plan.job.model.name}: Brimful run report",
        header=_header(folder),
        sections=sections_of(folder),
        footer=f"Made by brimful report from {folder.run_dir.name}.",
    )


Section = tuple[str, str, Html]
"""Its key in links, its title, its body."""


def page(title: str, *, header: Html, sections: list[Section], footer: str, about: str = "") -> str:
    """Put a page together: HTML that needs no other file and no network.

    ``about``: what a link to the page shows below its title.
    """
    return Template(_asset("page.html")).substitute(
        title=markup.text(title),
        about=markup.text(about or title),
        style=_asset("uPlot.min.css") + _asset("report.css"),
        header=header,
        contents=_contents(sections),
        body=markup.join(markup.section(*section) for section in sections),
        footer=markup.text(footer),
        script=_asset("uPlot.iife.min.js") + _asset("report.js"),
        licence=markup.text(_asset("uPlot.LICENSE.txt")),
    )


def _asset(name: str) -> str:
    return resources.files("brimful.report").joinpath("assets", name).read_text("utf-8")


def _verdict(folder: RunFolder) -> Verdict:
    return folder.verdict or judge(
        folder.plan, folder.simulation, folder.measurement, takeovers=folder.takeovers
    )


def sections_of(folder: RunFolder) -> list[Section]:
    """Set what there is to be said of a run; parts that are not there yet are left out."""
    verdict = memory_sections.verdict_section(_verdict(folder))
    estimate = folder.plan.estimate
    candidates = (
        ("verdict", "Predicted, simulated, measured", verdict),
        ("events", "Losses and fallbacks", run_sections.events_section(folder)),
        ("timeline", "Memory over time", memory_sections.timeline_section(folder.rungs)),
        ("peak", "What is alive at the peak", memory_sections.peak_section(folder.rungs)),
        ("owners", "Largest owners at the peak", memory_sections.owners_section(folder.rungs)),
        ("totals", "Reserved and process", run_sections.bands_section(folder)),
        ("plans", "Strategies considered", run_sections.search_section(folder)),
        ("ledger", "Savings, switch by switch", ledger_section(folder.plan)),
        ("loss", "Loss", loss_section(folder)),
        ("curves", "Learning rate, gradients, loss scale", curves_section(folder.train_rows)),
        ("experts", "Load of the experts", experts_section(folder)),
        ("breakdown", "Where a step's time goes", time_sections.breakdown_section(estimate)),
        ("pipeline", "What each stage does when", time_sections.pipeline_section(folder.plan)),
        ("step-time", "Step time", time_sections.step_time_section(folder)),
        ("precision", "Precision", precision_section(folder)),
        ("inputs", "Inputs in full", run_sections.inputs_section(folder)),
        ("provenance", "What the numbers rest on", run_sections.provenance_section(folder)),
    )
    return [(key, title, body) for key, title, body in candidates if body is not None]


def _contents(sections: list[Section]) -> Html:
    links = (f'<li><a href="#{key}">{markup.text(title)}</a></li>' for key, title, _ in sections)
    return Html(f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>')


def _header(folder: RunFolder) -> Html:
    plan = folder.plan
    sentence = verdict_sentence(plan, folder.simulation, folder.measurement)
    tone = "fits" if sentence.startswith("Fits") else "short"
    return Html(
        "<header>"
        '<p class="eyebrow">Brimful run report</p>'
        f"<h1>{markup.text(plan.job.model.name)}</h1>"
        f'<p class="machine">{markup.text(num_parameters_words(plan.job))} on '
        f"{markup.text(machine_words(plan.cluster))}</p>"
        f'<p class="plan">{markup.text(plan_words(plan))}</p>'
        f'<p class="verdict {tone}">{markup.text(sentence)}</p>'
        f"{_key_figures(folder)}"
        f"{_missing(folder)}"
        "</header>"
    )


def _key_figures(folder: RunFolder) -> Html:
    estimate, simulation, measurement = folder.plan.estimate, folder.simulation, folder.measurement
    errors = memory_sections.peak_error_words(folder.rungs)
    predicted = estimate.predicted_peak_allocated_bytes if estimate else None
    figures = [("Predicted peak", format_value(predicted, unit="bytes"), "")]
    if simulation is not None:
        peak = format_bytes(simulation.simulated_peak_allocated_bytes)
        figures.append(("Simulated peak", peak, errors["simulated"]))
    if measurement is not None:
        peak = format_bytes(measurement.measured_peak_allocated_bytes)
        figures.append(("Measured peak", peak, errors["measured"]))
    figures.append(_step_figure(folder))
    heldout = [row.heldout_loss for row in folder.eval_rows if row.heldout_loss is not None]
    if heldout:
        entropy = f"unigram entropy {folder.data.unigram_entropy:.3f}" if folder.data else ""
        figures.append(("Held-out loss", f"{heldout[-1]:.3f}", entropy))
    return figure_list(figures)


def figure_list(figures: Sequence[tuple[str, str, str]]) -> Html:
    """Set large figures in a row: name, value, a note of a few words."""
    cells = (
        f"<div><dt>{markup.text(name)}</dt><dd>{markup.text(value)}"
        f"<small>{markup.text(note)}</small></dd></div>"
        for name, value, note in figures
    )
    return Html(f'<dl class="figures">{"".join(cells)}</dl>')


def _step_figure(folder: RunFolder) -> tuple[str, str, str]:
    estimate = folder.plan.estimate
    predicted_s = estimate.predicted_step_s if estimate else None
    measured_s = folder.measurement.measured_step_s if folder.measurement else None
    if measured_s is None:
        return ("Predicted step", format_value(predicted_s, unit="s"), "")
    error = error_words(measured_s, predicted_s)
    note = f"{error} against predicted" if predicted_s is not None else ""
    return ("Measured step", format_seconds(measured_s), note)


def _missing(folder: RunFolder) -> Html:
    parts = {
        "not simulated yet (brimful simulate)": folder.simulation is None,
        "not measured yet (brimful train)": folder.measurement is None,
        "no loss logged yet": not folder.train_rows and not folder.eval_rows,
    }
    absent = [words for words, is_absent in parts.items() if is_absent]
    if not absent:
        return Html("")
    return markup.paragraph(
        markup.text(f"Left out of this page: {', '.join(absent)}."), style="note"
    )
