"""The page of an answer: what the terminal says first, memory over time, and every table."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from brimful.report.charts import Chart, memory_chart
from brimful.report.figures import chart_figure
from brimful.report.html import Section, page
from brimful.report.memory_sections import phase_list
from brimful.show import markup
from brimful.show.answer import Answer
from brimful.show.markup import Html
from brimful.show.summary import Fact, Meter, Summary
from brimful.units import format_bytes
from brimful.values.results import Timeline
from brimful.values.timeline import limit_in_view

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_TONES = {"FITS": "fits", "NO": "short"}


def answer_page(answer: Answer, *, command: str) -> str:
    """Set the page of an answer.

    Returns HTML that needs no other file and no network.
    """
    summary = answer.summary
    verdict = summary.verdict or "ANSWER"
    return page(
        f"{verdict}: {summary.subject}",
        about="" if summary.meter is None else summary.meter.words,
        header=answer_header(summary, answer.facts, command),
        sections=_sections(answer),
        footer=f"Made by {command}",
    )


def answer_header(summary: Summary, facts: Iterable[Fact], command: str, *, level: int = 1) -> Html:
    """Set what an answer says first: verdict, question, memory, what else is to be known."""
    verdict = summary.verdict or "ANSWER"
    told = verdict if summary.meter is None else f"{verdict}: {summary.meter.words}"
    said = [(fact.label, fact.text) for fact in (*summary.facts, *facts)]
    return Html(
        "<header>"
        '<p class="eyebrow">Brimful answer</p>'
        f"<h{level}>{markup.text(summary.subject)}</h{level}>"
        f'<p class="verdict {_TONES.get(verdict, "")}">{markup.text(told)}</p>'
        f"{'' if summary.meter is None else _bar(summary.meter)}"
        f"{markup.pairs(said)}"
        f"<pre>$ {markup.text(command)}</pre>"
        "</header>"
    )


def _bar(meter: Meter) -> Html:
    """Draw what is used of what there is: full, with what is missing in another colour."""
    share = meter.share if meter.share <= 1 else 1 / meter.share
    over = f'<span class="over" style="width:{100 * (1 - share):.1f}%"></span>'
    return Html(
        f'<div class="meter" role="img" aria-label="{markup.text(meter.words)}">'
        f'<span style="width:{100 * share:.1f}%"></span>{over if meter.share > 1 else ""}</div>'
    )


def _sections(answer: Answer) -> list[Section]:
    meter = answer.summary.meter
    sections: list[Section] = []
    if answer.timeline is not None and meter is not None:
        drawn = _timeline(answer.timeline, meter.usable_bytes)
        sections += [("timeline", "Memory over time", drawn)] if drawn else []
    details = markup.join(laid_out(answer.tables))
    return [*sections, ("details", "In full", details)] if details else sections


def _timeline(timeline: Timeline, limit_bytes: int) -> Html | None:
    chart: Chart | None = memory_chart(timeline, None, usable_bytes=limit_bytes)
    if chart is None:
        return None
    peak = max(timeline.live_bytes)
    caption = "Bytes of live tensors after every allocation and free, simulated."
    if not limit_in_view(limit_bytes, peak):
        caption += f" The limit, {format_bytes(limit_bytes)}, is far above this chart."
    words = f"Line chart of live bytes against events: simulated peak {format_bytes(peak)}."
    return markup.join([chart_figure("memory", chart, words, caption), phase_list(chart)])


def laid_out(parts: "Iterable[RenderableType]") -> Iterator[Html]:
    """Set as markup what the terminal prints.

    ``parts``: sentences, tables, groups and paddings of them; nothing else is printed by a verb.
    Yields escaped markup, in the same order.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for part in parts:
        match part:
            case Group():
                yield from laid_out(part.renderables)
            case Padding():  # a bullet
                yield markup.paragraph(markup.text(str(part.renderable)))
            case Table():
                yield _table(part)
            case Text() if str(part.style).startswith("bold"):
                yield Html(f"<h3>{markup.text(part.plain)}</h3>")
            case Text():
                yield from [markup.paragraph(markup.text(part.plain))] if part.plain else []
            case str():
                yield from _lines(part)
            case _:
                raise TypeError(f"{type(part).__name__} has no markup yet")


def _lines(text: str) -> Iterator[Html]:
    """Set a sentence; what has lines of its own, as a drawing has, keeps them."""
    if "\n" in text.strip("\n"):
        yield Html(f"<pre>{markup.text(text)}</pre>")
    elif text.strip():
        yield markup.paragraph(markup.text(text.strip()))


def _table(table: "Table") -> Html:
    title = str(table.title or "")
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows: list[Sequence[str]] = list(zip(*columns, strict=True))
    if not table.show_header:
        heading = Html(f"<h3>{markup.text(title)}</h3>" if title else "")
        return markup.join([heading, markup.pairs([(row[0], " ".join(row[1:])) for row in rows])])
    right = frozenset(
        place for place, column in enumerate(table.columns) if column.justify == "right"
    )
    body = markup.join(markup.row([*map(markup.text, row)], right=right) for row in rows)
    headings = [str(column.header) for column in table.columns]
    return markup.table(title, headings, [body], right=right)
