"""Two questions side by side: both answers, and by how much the second differs."""

from collections.abc import Callable
from typing import NamedTuple

from brimful.cli import flags
from brimful.cli.assumed import prices_from
from brimful.cli.main import parse
from brimful.cost.estimate import estimate
from brimful.cost.money import cost_of
from brimful.cost.reserved import predicted_reserved
from brimful.errors import InputError
from brimful.plan import Estimate
from brimful.show import markup
from brimful.show.markup import Html
from brimful.show.predicted import meter_of, subject_words, verdict_of
from brimful.show.settings import settings_words
from brimful.terminal import forget_notes
from brimful.units import format_bytes, format_money, format_seconds
from brimful.web.models import find_model
from brimful.web.state import State, arguments
from brimful.web.words import Words

_BILLION = 1e9


class Side(NamedTuple):
    """One of both.

    Attributes:
        asked: The question, resolved.
        made: Its prediction, replayed.
        usd: For a billion tokens; None: unknown.
    """

    asked: flags.Asked
    made: Estimate
    usd: float | None


def compared(state: State, other: State, words: Words) -> Html:
    """Set both side by side.

    Args:
        state: What the page asks.
        other: What was kept to be compared with it.
        words: The language of the page.

    Raises:
        BrimfulError: One of them is refused.
    """
    kept, here = _side(other), _side(state)
    rows = [
        markup.row([markup.text(cell) for cell in cells], right=frozenset({3}))
        for cells in _rows(kept, here, words)
    ]
    headings = ("", words["compare.kept"], words["compare.here"], words["compare.change"])
    return markup.table(
        words["compare.caption"], headings, [markup.join(rows)], right=frozenset({3})
    )


def _side(state: State) -> Side:
    forget_notes()
    if state.what == "inference":
        raise InputError("what=inference is not compared on this page yet; choose a training")
    args = parse("estimate", arguments(state, find_model(state).argument))
    asked = flags.asked(args)
    made = estimate(*asked)
    reserved = predicted_reserved(*asked)
    from msgspec.structs import replace

    cost = cost_of(asked.job, asked.cluster, made.predicted_step_s, prices_from(args))
    usd = cost.usd * _BILLION / cost.num_tokens if cost.usd and cost.num_tokens else None
    return Side(asked, replace(made, predicted_reserved=reserved), usd)


def _rows(kept: Side, here: Side, words: Words) -> list[tuple[str, ...]]:
    both = (kept, here)
    asked = [subject_words(side.asked.job, side.asked.cluster) for side in both]
    how = [", ".join(settings_words(side.asked.job, side.asked.strategy)) for side in both]
    verdicts = [verdict_of(side.made) for side in both]
    memory = [meter_of(side.made).words for side in both]
    peaks = [side.made.predicted_peak_allocated_bytes for side in both]
    steps = [side.made.predicted_step_s for side in both]
    rates = [side.made.tokens_per_s for side in both]
    return [
        (words["compare.asked"], *asked, ""),
        (words["compare.settings"], *how, ""),
        (words["compare.verdict"], *verdicts, ""),
        (words["compare.memory"], *memory, ""),
        (words["figure.peak"], *map(format_bytes, peaks), _change(*peaks)),
        (words["figure.step"], *(_or(step, format_seconds) for step in steps), _change(*steps)),
        (words["figure.speed"], *(_or(rate, "{:,.0f}".format) for rate in rates), _change(*rates)),
        (words["figure.money"], *(_or(side.usd, format_money) for side in both),
         _change(kept.usd, here.usd)),
    ]  # fmt: skip


def _or(value: float | None, spell: Callable[[float], str]) -> str:
    return "" if value is None else spell(value)


def _change(before: float | None, after: float | None) -> str:
    """Say by how much the second is more or less; nothing where one is unknown."""
    return "" if not before or after is None else f"{after / before - 1:+.1%}"
