"""The few shapes that text is laid out in for the terminal; see ``text.py`` for what is."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from brimful.report.words import share_words
from brimful.units import format_bytes
from brimful.values.plan import MemoryItem, PhasePeak

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table


def plain_table(title: str) -> "Table":
    """Make a table without lines: it reads well on a terminal, in a pipe and in an issue."""
    from rich.table import Table
    from rich.text import Text

    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="dim",
    )


def add_row(table: "Table", cells: Iterable[str], *, style: str = "") -> None:
    """Add a row of plain text."""
    from rich.text import Text

    # Text and not str: names come from users, and rich would read [brackets] as markup. And rich
    # cuts a long word unless it is told to fold it.
    table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)


def filled_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Lay out rows under headings; the first column names, the others are figures."""
    table = plain_table(title)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", overflow="fold")
    for row in rows:
        add_row(table, row)
    return table


def pairs_table(pairs: Sequence[tuple[str, str]], *, title: str) -> "Table":
    """Lay out names and values."""
    grid = plain_table(title)
    grid.show_header = False
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(ratio=1)
    for name, value in pairs:
        add_row(grid, (name, value))
    return grid


def line_of(words: str) -> "RenderableType":
    """Lay out one sentence, indented, folded where it is longer than the page."""
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(words, overflow="fold"), (0, 0, 0, 2))


def bullets(title: str, lines: Sequence[str]) -> "Group":
    """Lay out sentences under a heading, each on a line of its own."""
    from rich.console import Group
    from rich.text import Text

    rows = [line_of(line) for line in lines or ("none",)]
    return Group(Text(title, style="bold"), *rows)


def items_table(items: Sequence[MemoryItem], title: str) -> "Table":
    """Lay out what is alive, by item, and the sum."""
    table = plain_table(title)
    table.add_column("item", max_width=27)
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    table.add_column("why", ratio=1)
    total = sum(item.num_bytes for item in items)
    for item in items:
        share = share_words(item.num_bytes, total)
        add_row(table, (item.name, format_bytes(item.num_bytes), share, item.why))
    add_row(table, ("total", format_bytes(total), share_words(total, total), ""), style="bold")
    return table


def phases_table(phases: Iterable[PhasePeak], rung: str, *, where: str) -> "Table":
    """Lay out the peak of every phase; ``where`` heads the column of what it is reached by."""
    table = plain_table(f"Peak of every phase ({rung})")
    table.add_column("phase")
    table.add_column("peak", justify="right")
    table.add_column(where, ratio=1)
    for phase in phases:
        add_row(table, (phase.phase, format_bytes(phase.num_bytes), phase.where))
    return table
