"""A ``PretendReport`` as one page: no network, no server, nothing beside the file."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from brimful.files import write_text
from brimful.pretend.report_values import ModuleBytes, PretendReport
from brimful.report import markup
from brimful.report.charts import limit_in_view, memory_chart
from brimful.report.figures import chart_figure
from brimful.report.html import Section, figure_list, page
from brimful.report.markup import Html
from brimful.report.pretend import NO_MODULE, fit_lines, note_lines, total_pairs
from brimful.report.words import share_words
from brimful.units import format_bytes


def write_pretend_report(report: PretendReport, path: Path) -> None:
    """Write a report as a page, atomically.

    Args:
        report: What was simulated.
        path: The file, by custom ``*.html``.

    Raises:
        RunError: The file cannot be written.
    """
    write_text(path, render_pretend_report(report))


def render_pretend_report(report: PretendReport) -> str:
    """Set the page of a report: HTML that needs no other file and no network."""
    return page(
        f"{report.card}: Brimful pretend report",
        header=_header(report),
        sections=_sections(report),
        footer="Made by brimful pretend. Nothing here was measured.",
    )


def _header(report: PretendReport) -> Html:
    sentence, *rest = fit_lines(report)
    peaks = (
        ("Simulated peak", report.simulated_peak_allocated_bytes, f"in {report.peak_phase}"),
        ("Reserved", report.reserved.simulated_peak_reserved_bytes, "if it can have all"),
        ("Limit", report.at_capacity.capacity_bytes, "for the allocator"),
        ("Host tensors", report.host.simulated_peak_bytes, ""),
    )
    figures = figure_list(
        [(name, format_bytes(num_bytes), note) for name, num_bytes, note in peaks]
    )
    return Html(
        "<header>"
        f"{markup.paragraph(markup.text(report.statement))}"
        '<p class="eyebrow">Brimful pretend report</p>'
        f"<h1>{markup.text(report.card)}</h1>"
        f'<p class="verdict {"fits" if report.fits else "short"}">{markup.text(sentence)}</p>'
        f"{markup.join(markup.paragraph(markup.text(line)) for line in rest)}"
        f"{figures}"
        "</header>"
    )


def _sections(report: PretendReport) -> list[Section]:
    sections = [
        ("timeline", "Memory over time", _timeline(report)),
        ("peak", "What is alive at the peak", _items(report)),
        ("owners", "Whose it is", _owners(report)),
        ("tensors", "Largest tensors at the peak", _tensors(report)),
    ]
    if report.kept is not None:
        sections.append(("kept", f"Kept for backward by {report.kept.phase}", _kept(report)))
    sections.append(("totals", "Totals", markup.pairs(total_pairs(report))))
    notes = [
        Html(f"<h3>{markup.text(title)}</h3>{markup.bullets(lines)}")
        for title, lines in note_lines(report)
    ]
    sections.append(("notes", "What the numbers rest on", markup.join(notes)))
    return sections


def _timeline(report: PretendReport) -> Html:
    limit_bytes = report.at_capacity.capacity_bytes
    chart = memory_chart(report.timeline, None, usable_bytes=limit_bytes)
    assert chart is not None
    caption = "Bytes alive after every allocation and free."
    if not limit_in_view(limit_bytes, report.simulated_peak_allocated_bytes):
        caption += f" The limit, {format_bytes(limit_bytes)}, is far above this chart."
    words = (
        "Line chart of live bytes against events: simulated peak "
        f"{format_bytes(report.simulated_peak_allocated_bytes)}."
    )
    return markup.join([chart_figure("memory", chart, words, caption), _phase_list(report)])


def _phase_list(report: PretendReport) -> Html:
    rows = (
        f"<li><span>{markup.text(phase.phase)}</span> "
        f"<b>{markup.text(format_bytes(phase.num_bytes))}</b></li>"
        for phase in report.phases
    )
    label = "Phases with the peak of each"
    return Html(f'<ol class="phases" aria-label="{label}">{"".join(rows)}</ol>')


def _items(report: PretendReport) -> Html:
    total = report.simulated_peak_allocated_bytes
    rows = [
        (
            _named(item.name),
            *_bytes_cells(item.num_bytes, total),
            markup.text(item.why),
        )
        for item in report.items
    ]
    rows.append((markup.text("total"), *_bytes_cells(total, total), Html("")))
    return _table("Items at the peak", ("Item", "Bytes", "Share", "Why"), rows)


def _named(item: str) -> Html:
    colour = markup.style_class("item", item)
    return Html(f'<i class="swatch {colour}" aria-hidden="true"></i>{markup.text(item)}')


def _bytes_cells(num_bytes: int, total: int) -> tuple[Html, Html]:
    return markup.text(format_bytes(num_bytes)), markup.text(share_words(num_bytes, total))


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Html]]) -> Html:
    right = frozenset({1, 2})
    body = markup.join(markup.row(row, right=right) for row in rows)
    return markup.table(caption, headings, [body], right=right)


def _module_row(part: ModuleBytes, total: int, note: str) -> tuple[Html, ...]:
    cells = _bytes_cells(part.num_bytes, total)
    name = markup.code(part.module or NO_MODULE)
    return (name, *cells, markup.text(str(part.num_modules)), markup.text(note))


def _owners(report: PretendReport) -> Html:
    total = report.simulated_peak_allocated_bytes
    rows = []
    for owner in report.owners:
        items = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in owner.items)
        rows.append(_module_row(owner.whole, total, items))
        parts = [part for part in owner.parts if part.module != owner.whole.module]
        rows += [_module_row(part, total, "") for part in parts]
    caption = "What is alive at the peak by module; below each part of the program its modules."
    return _table(caption, ("Module", "Bytes", "Share", "Modules", "Items"), rows)


def _tensors(report: PretendReport) -> Html:
    total = report.simulated_peak_allocated_bytes
    rows = [
        (
            markup.code(alike.module or NO_MODULE),
            *_bytes_cells(alike.num_bytes, total),
            markup.text(str(alike.num_tensors)),
            markup.text(alike.one.item),
            markup.code(f"{alike.one.shape} {alike.one.dtype}"),
            markup.code(" ".join(filter(None, (alike.one.op, alike.one.node)))),
            markup.code(alike.one.line),
        )
        for alike in report.alike
    ]
    headings = ("Module", "Bytes", "Share", "Count", "Item", "Shape", "Operation", "Line")
    return _table("Like allocations together, the largest first.", headings, rows)


def _kept(report: PretendReport) -> Html:
    kept = report.kept
    assert kept is not None
    rows = [_module_row(part, kept.num_bytes, "")[:-1] for part in kept.modules]
    caption = f"Saved activations at the end of the forward pass: {format_bytes(kept.num_bytes)}."
    return _table(caption, ("Module", "Bytes", "Share", "Modules"), rows)
