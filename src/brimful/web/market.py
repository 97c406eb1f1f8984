"""Every GPU of the table side by side: whether a job fits, with which settings, speed and price.

Each is searched as ``brimful plan`` searches, by formulas and their replay.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from brimful.cli import flags
from brimful.cli.assumed import prices_from
from brimful.cli.main import parse
from brimful.cli.searching import search, why_untold
from brimful.cost.money import cost_of
from brimful.errors import BrimfulError, InputError
from brimful.escaping import one_line
from brimful.hardware.gpus import gpus
from brimful.hardware.names import split_counts
from brimful.search.budget import Budget
from brimful.search.solve import Solution
from brimful.show import markup
from brimful.show.markup import Html
from brimful.show.plan import plan_summary
from brimful.show.predicted import short_gpu
from brimful.show.settings import settings_words
from brimful.show.summary import Verdict
from brimful.terminal import forget_notes
from brimful.units import format_bytes, format_money
from brimful.web.models import find_model
from brimful.web.state import GPUS, State, arguments, query_of
from brimful.web.taken import taken
from brimful.web.words import Words

_BILLION = 1e9
RIGHT = frozenset({3, 4, 5, 6})


class Offer(NamedTuple):
    """What one kind of GPU can do with a job.

    Attributes:
        gpu: Its name.
        description: What its maker calls it.
        verdict: Whether the best that was found fits.
        settings: The best, in words; of what is refused, why.
        peak_bytes: Live tensors of it; 0: unknown.
        tokens_per_s: Of all devices; None: unknown.
        usd_per_gpu_hour: The price; None: unknown.
        usd: For a billion tokens; None: unknown.
        state: The question that has these settings.
    """

    gpu: str
    description: str
    verdict: Verdict
    settings: str
    peak_bytes: int
    tokens_per_s: float | None
    usd_per_gpu_hour: float | None
    usd: float | None
    state: State


def offers(state: State) -> Iterator[Offer]:
    """Yield what every kind of GPU can do, those with a price first.

    Args:
        state: The question; as many of each kind as it names are looked at.

    Raises:
        BrimfulError: It is refused for every kind.
    """
    if state.what == "inference":
        raise InputError("what=inference is not compared on this page yet; choose a training")
    counts = split_counts(state.given[GPUS])
    model = find_model(state).argument
    args = parse("plan", arguments(state, model, verb="plan"))
    if untold := why_untold(args):
        raise InputError(f"{untold.partition(';')[0]}; trace it first, then compare")
    prices = prices_from(args).gpus
    for name in sorted(gpus(), key=lambda name: name not in prices):
        nodes, each = counts.num_nodes, counts.per_node
        count = f"{nodes}x{each}x" if nodes > 1 else f"{each}x" if each > 1 else ""
        yield _offer(state.changed(**{GPUS: f"{count}{name}"}), model, name)


def _offer(state: State, model: str, name: str) -> Offer:
    forget_notes()
    described = short_gpu(gpus()[name].description)
    try:
        args = parse("plan", [*arguments(state, model, verb="plan"), "--no-proof"])
        if untold := why_untold(args):
            return _none(state, name, described, untold)
        found = search(args, Budget(1))
    except BrimfulError as error:
        return _none(state, name, described, one_line(str(error)))
    return _found(args, state, name, described, found)


def _none(state: State, name: str, described: str, why: str) -> Offer:
    return Offer(name, described, "UNKNOWN", why, 0, None, None, None, state)


def _found(
    args: argparse.Namespace, state: State, name: str, described: str, found: Solution
) -> Offer:
    plan, best = found.plan, found.record.rows[0]
    made = plan.estimate
    cost = cost_of(plan.job, plan.cluster, best.step_s, prices_from(args))
    usd = cost.usd * _BILLION / cost.num_tokens if cost.usd and cost.num_tokens else None
    return Offer(
        gpu=name,
        description=described,
        verdict=plan_summary(found, ()).verdict or "UNKNOWN",
        settings=", ".join(settings_words(plan.job, plan.strategy)),
        peak_bytes=best.peak_bytes,
        tokens_per_s=None if made is None else made.tokens_per_s,
        usd_per_gpu_hour=cost.usd_per_gpu_hour,
        usd=usd,
        state=state.changed(**taken(flags.Asked(plan.job, plan.cluster, plan.strategy))),
    )


def offer_row(offer: Offer, words: Words) -> Html:
    """Set one kind of GPU as a row, its name the link that takes it."""
    href = markup.text(f"/?{query_of(offer.state, lang=words.language)}")
    name = f'<a href="{href}" data-take="1">{markup.text(offer.description)}</a>'
    price, rate = offer.usd_per_gpu_hour, offer.tokens_per_s
    cells = [
        Html(name),
        Html(f'<b class="word {offer.verdict.lower()}">{offer.verdict}</b>'),
        markup.text(offer.settings),
        markup.text(format_bytes(offer.peak_bytes) if offer.peak_bytes else ""),
        markup.text("" if rate is None else f"{rate:,.0f}"),
        markup.text("" if price is None else f"{price:.2f}"),
        markup.text("" if offer.usd is None else format_money(offer.usd)),
    ]
    return markup.row(cells, right=RIGHT)


def offers_table(words: Words, caption: str) -> Html:
    """Set the table without its rows, which come one by one."""
    headings = tuple(words[f"market.column.{place}"] for place in range(7))
    return markup.table(caption, headings, [Html("")], right=RIGHT)
