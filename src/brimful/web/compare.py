"""Two questions side by side: both answers, and by how much the second differs."""

import argparse
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from brimful.cli import resolved
from brimful.cli.assumed import prices_from
from brimful.cli.main import parse
from brimful.cost.estimate import estimate
from brimful.cost.money import cost_of
from brimful.cost.reserved import predicted_reserved
from brimful.show import markup
from brimful.show.markup import Html
from brimful.show.predicted import meter_of, subject_words, verdict_of
from brimful.show.settings import settings_words
from brimful.text.terminal import forget_notes
from brimful.units import format_bytes, format_money, format_seconds
from brimful.web.models import find_model
from brimful.web.state import INFERENCE, State, arguments
from brimful.web.words import Words
from brimful.web.written import usd_of_tokens, written

_BILLION = 1e9
Number = TypeVar("Number", int, float)


class Side(NamedTuple):
    """One of both.

    Attributes:
        subject: What is asked.
        settings: How it is run.
        verdict: Whether it fits.
        memory: At its peak, in words.
        peak_bytes: Live tensors at their peak; None: unknown.
        step_s: Of one step; None: unknown, or none is taken.
        tokens_per_s: None: unknown.
        usd: For a billion tokens; None: unknown.
    """

    subject: str
    settings: str
    verdict: str
    memory: str
    peak_bytes: int | None
    step_s: float | None
    tokens_per_s: float | None
    usd: float | None


def compared(state: State, other: State, words: Words) -> Html:
    """Set both side by side.

    Raises BrimfulError: one of them is refused.
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
    args = parse("estimate", arguments(state, find_model(state).argument))
    return _of_inference(args) if state.what == INFERENCE else _of_training(args)


def _of_training(args: argparse.Namespace) -> Side:
    asked = resolved.asked(args)
    made = replace(estimate(*asked), predicted_reserved=predicted_reserved(*asked))
    cost = cost_of(asked.job, asked.cluster, made.predicted_step_s, prices_from(args))
    return Side(
        subject=subject_words(asked.job, asked.cluster),
        settings=", ".join(settings_words(asked.job, asked.strategy)),
        verdict=verdict_of(made),
        memory=meter_of(made).words,
        peak_bytes=made.predicted_peak_allocated_bytes,
        step_s=made.predicted_step_s,
        tokens_per_s=made.tokens_per_s,
        usd=cost.usd * _BILLION / cost.num_tokens if cost.usd and cost.num_tokens else None,
    )


def _of_inference(args: argparse.Namespace) -> Side:
    """Take what ``brimful estimate`` says, and the bound of its speed."""
    told = written(args)
    summary, (job, cluster) = told.answer.summary, told.asked
    assert summary.meter is not None, "memory is what it is about"
    return Side(
        subject=summary.subject,
        settings=job.weights_format,
        verdict=summary.verdict or "",
        memory=summary.meter.words,
        peak_bytes=summary.meter.used_bytes,
        step_s=None,
        tokens_per_s=told.tokens_per_s,
        usd=usd_of_tokens(args, cluster, told.tokens_per_s),
    )


def _rows(kept: Side, here: Side, words: Words) -> list[tuple[str, ...]]:
    both = (kept, here)
    peaks = [side.peak_bytes for side in both]
    steps = [side.step_s for side in both]
    rates = [side.tokens_per_s for side in both]
    rows = [
        (words["compare.asked"], kept.subject, here.subject, ""),
        (words["compare.settings"], kept.settings, here.settings, ""),
        (words["compare.verdict"], kept.verdict, here.verdict, ""),
        (words["compare.memory"], kept.memory, here.memory, ""),
        (words["figure.peak"], *(_or(peak, format_bytes) for peak in peaks), _change(*peaks)),
        (words["figure.step"], *(_or(step, format_seconds) for step in steps), _change(*steps)),
        (words["figure.speed"], *(_or(rate, "{:,.0f}".format) for rate in rates), _change(*rates)),
        (words["figure.money"], *(_or(side.usd, format_money) for side in both),
         _change(kept.usd, here.usd)),
    ]  # fmt: skip
    return [row for row in rows if any(row[1:])]


def _or(value: Number | None, spell: Callable[[Number], str]) -> str:
    return "" if value is None else spell(value)


def _change(before: float | None, after: float | None) -> str:
    """Say by how much the second is more or less; nothing where one is unknown."""
    return "" if not before or after is None else f"{after / before - 1:+.1%}"
