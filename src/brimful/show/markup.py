"""Escaped HTML and the few shapes that the page is made of. Knows nothing of runs."""

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NewType

import msgspec

from brimful.text.escaping import json_text, visible

Html = NewType("Html", str)
"""Markup that is safe to put into a page; plain ``str`` is text that has not been escaped yet."""
_UNPLAIN = re.compile(r"[^a-z0-9]")


def text(value: str) -> Html:
    """Escape text for use between tags and in quoted attributes, of HTML and of SVG.

    What does not show is spelled: XML has no control characters, and a name must not turn the
    text beside it around.
    """
    return Html(escape(visible(value), quote=True))


def embedded(value: msgspec.Struct) -> Html:
    """Spell a value as JSON that no HTML parser can mistake for the end of its script."""
    return Html(json_text(value, also="<>&"))


def style_class(kind: str, name: str) -> Html:
    """Name the class of a thing, which the style sheet colours by name, and grey if unknown."""
    return Html(f"{kind}-{_UNPLAIN.sub('-', name.lower())}")


def join(parts: Iterable[Html], separator: str = "") -> Html:
    """Put pieces of markup one after the other."""
    return Html(separator.join(parts))


def code(value: str) -> Html:
    """Set a name in code type and let it break after dots, slashes and underscores."""
    soft = str(text(value))
    for mark in (".", "/", "_"):
        soft = soft.replace(mark, f"{mark}<wbr>")
    return Html(f"<code>{soft}</code>")


def paragraph(content: Html, *, style: str = "") -> Html:
    """Set a paragraph; ``style`` is a class of the page's style sheet."""
    attribute = f' class="{style}"' if style else ""
    return Html(f"<p{attribute}>{content}</p>")


def section(key: str, title: str, content: Html) -> Html:
    """Set a section with its heading; ``key`` is the anchor."""
    return Html(
        f'<section id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{text(title)}</h2>{content}</section>'
    )


def pairs(items: Sequence[tuple[str, str]], *, spell: Callable[[str], Html] = text) -> Html:
    """Set a list of names and values; ``spell=code`` sets the names in code type."""
    rows = (f"<div><dt>{spell(name)}</dt><dd>{text(value)}</dd></div>" for name, value in items)
    return Html(f'<dl class="pairs">{"".join(rows)}</dl>')


def bullets(items: Iterable[str]) -> Html:
    """Set a plain list."""
    return Html(f"<ul>{''.join(f'<li>{text(item)}</li>' for item in items)}</ul>")


def row(cells: Sequence[Html], *, right: frozenset[int], style: str = "") -> Html:
    """Set a table row whose first cell is its header; columns in ``right`` hold numbers."""
    spelled = []
    for column, cell in enumerate(cells):
        number = ' class="n"' if column in right else ""
        spelled.append(
            f'<th scope="row"{number}>{cell}</th>' if column == 0 else f"<td{number}>{cell}</td>"
        )
    attribute = f' class="{style}"' if style else ""
    return Html(f"<tr{attribute}>{''.join(spelled)}</tr>")


def table(
    caption: str, headings: Sequence[str], bodies: Sequence[Html], *, right: frozenset[int]
) -> Html:
    """Set a table in a box of its own, which scrolls when the page is narrower than the table.

    ``headings``: one per column. ``bodies``: the rows of each ``tbody``. Returns the table in its
    scrolling box, which the keyboard can reach.
    """
    head = "".join(
        f'<th scope="col"{" class=n" if column in right else ""}>{text(heading)}</th>'
        for column, heading in enumerate(headings)
    )
    rows = "".join(f"<tbody>{body}</tbody>" for body in bodies)
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table><caption><span>{text(caption)}</span></caption><thead><tr>{head}</tr></thead>{rows}</table></div>"
    )
