"""What a verb answers, whole: its summary, what it rests on, and every table behind it."""

from typing import TYPE_CHECKING, NamedTuple

from brimful.show.summary import Fact, Summary
from brimful.values.results import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType


class Answer(NamedTuple):
    """An answer, from which terminal and page are rendered.

    Attributes:
        summary: What comes first.
        facts: What is said below it: the proof, what was assumed, the next command.
        tables: What ``-v`` prints, one after the other: sentences, tables and groups of them.
        timeline: Live bytes event by event, of the rung that answered; None: there is none.
    """

    summary: Summary
    facts: tuple[Fact, ...]
    tables: "Sequence[RenderableType]"
    timeline: Timeline | None = None
