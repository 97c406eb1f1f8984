"""Every GPU of the table side by side: whether a job fits, with which settings, speed and price.

Every kind is searched by live tensors first, which takes a moment each; then the cheapest of those
that fit are replayed, as ``brimful plan`` replays them.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from brimful.cli import inference, resolved
from brimful.cli.assumed import prices_from
from brimful.cli.main import parse
from brimful.cli.searching import asked, why_untold
from brimful.cost.decoding import decoding_of
from brimful.cost.money import cost_of
from brimful.errors import BrimfulError, InputError
from brimful.hardware.cluster import spelled
from brimful.hardware.gpus import gpus
from brimful.hardware.names import split_counts
from brimful.search.holding import hold
from brimful.search.solve import Solution, solve
from brimful.show import markup
from brimful.show.markup import Html
from brimful.show.predicted import short_gpu, verdict_of
from brimful.show.settings import settings_words
from brimful.show.summary import Verdict
from brimful.text.escaping import one_line
from brimful.text.terminal import forget_notes
from brimful.units import format_bytes, format_money
from brimful.web.models import find_model
from brimful.web.state import GPUS, INFERENCE, PROGRAM, State, arguments, query_of
from brimful.web.sweeps import inference_peak
from brimful.web.taken import taken
from brimful.web.words import Words
from brimful.web.written import usd_of_tokens

_BILLION = 1e9
NUM_REPLAYED = 12
"""Of the cheapest that fit by live tensors, how many are replayed: half a second to one each."""
RIGHT = frozenset({3, 4, 5, 6})


class Offer(NamedTuple):
    """What one kind of GPU can do with a job.

    Attributes:
        gpu: Its name.
        description: What its maker calls it.
        verdict: Whether the best that was found fits.
        is_replayed: Whether that is by the allocator's replay, or by live tensors alone.
        is_last: Whether nothing better will be said of it.
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
    is_replayed: bool
    settings: str
    peak_bytes: int
    tokens_per_s: float | None
    usd_per_gpu_hour: float | None
    usd: float | None
    state: State
    is_last: bool = False


class _Searched(NamedTuple):
    """One kind as it was searched by live tensors."""

    offer: Offer
    args: argparse.Namespace
    found: Solution


def offers(state: State) -> Iterator[Offer]:
    """Yield what every kind of GPU can do, those with a price first; some twice, then replayed.

    ``state``: the question; as many of each kind as it names are looked at. Raises BrimfulError: it
    is refused for every kind.
    """
    counts = split_counts(state.given[GPUS])
    nodes, each = counts.num_nodes, counts.per_node
    count = f"{nodes}x{each}x" if nodes > 1 else f"{each}x" if each > 1 else ""
    model = find_model(state).argument
    if state.what == INFERENCE:
        prices = prices_from(parse("estimate", arguments(state, model))).gpus
        for name in sorted(gpus(), key=lambda name: name not in prices):
            yield _written(state.changed(**{GPUS: f"{count}{name}", "tp": ""}), model, name)
        return
    args = parse("plan", arguments(_for_any(state), model, verb="plan"))
    if untold := why_untold(args):
        raise InputError(f"{untold.partition(';')[0]}; trace it first, then compare")
    prices = prices_from(args).gpus
    fitting: list[_Searched] = []
    for name in sorted(gpus(), key=lambda name: name not in prices):
        searched = _searched(state.changed(**{GPUS: f"{count}{name}"}), model, name)
        yield searched if isinstance(searched, Offer) else searched.offer
        if (
            isinstance(searched, _Searched)
            and searched.offer.usd
            and searched.offer.verdict == "FITS"
        ):
            fitting.append(searched)
    fitting.sort(key=lambda one: one.offer.usd or 0.0)
    for one in fitting[:NUM_REPLAYED]:
        yield _replayed(state, one)


def _for_any(state: State) -> State:
    """Return the question without the program that is to run it: kinds are compared by our own."""
    return state.changed(**{PROGRAM: ""})


def _searched(state: State, model: str, name: str) -> Offer | _Searched:
    forget_notes()
    described = short_gpu(gpus()[name].description)
    none = Offer(name, described, "UNKNOWN", False, "", 0, None, None, None, state)
    try:
        args = parse("plan", arguments(_for_any(state), model, verb="plan"))
        question = asked(args)
        if question.untold:
            return none._replace(
                settings=question.untold.partition("(")[0].partition(";")[0].strip()
            )
        found = solve(
            question.job, question.cluster, question.pins,
            attention=question.attention, objective="time", also=question.also,
        )  # fmt: skip
    except BrimfulError as error:
        return none._replace(settings=one_line(str(error)))
    return _Searched(_filled(none, args, found), args, found)


def _replayed(state: State, one: _Searched) -> Offer:
    """Replay the best, and the next ones while none holds, as ``brimful plan`` does."""
    held = hold(one.found)
    offer = _filled(one.offer._replace(state=state), one.args, held.solution)
    made = held.solution.plan.estimate
    verdict = "UNKNOWN" if made is None else verdict_of(made)
    is_replayed = held.reserved is not None
    return offer._replace(verdict=verdict, is_replayed=is_replayed, is_last=is_replayed)


def _written(state: State, model: str, name: str) -> Offer:
    """Say what one kind can do with a model that writes text."""
    forget_notes()
    none = Offer(
        name, short_gpu(gpus()[name].description), "UNKNOWN", False, "", 0, None, None, None, state
    )
    try:
        args = parse("estimate", arguments(state, model))
        job, cluster = inference.asked(args)
        peak, usable = inference_peak(job, cluster)
        decoding = decoding_of(job, cluster)
    except BrimfulError as error:
        return none._replace(settings=one_line(str(error)))
    rate = None if decoding is None else decoding.most_tokens_per_s
    price = prices_from(args).gpus.get(cluster.name)
    return none._replace(
        verdict="FITS" if peak <= usable else "NO",
        settings=job.weights_format,
        peak_bytes=peak,
        tokens_per_s=rate,
        usd_per_gpu_hour=None if price is None else price.usd_per_gpu_hour,
        usd=usd_of_tokens(args, cluster, rate),
        is_last=True,
    )


def _filled(offer: Offer, args: argparse.Namespace, found: Solution) -> Offer:
    """Fill in what was found of a kind."""
    plan, best = found.plan, found.record.rows[0]
    made = plan.estimate
    cost = cost_of(plan.job, plan.cluster, best.step_s, prices_from(args))
    usd = cost.usd * _BILLION / cost.num_tokens if cost.usd and cost.num_tokens else None
    now = resolved.Asked(plan.job, plan.cluster, plan.strategy)
    named = offer.state.changed(**{GPUS: spelled(plan.cluster)})
    return offer._replace(
        verdict="FITS" if best.fits else "NO",
        settings=", ".join(settings_words(plan.job, plan.strategy)),
        peak_bytes=best.peak_bytes,
        tokens_per_s=None if made is None else made.tokens_per_s,
        usd_per_gpu_hour=cost.usd_per_gpu_hour,
        usd=usd,
        state=named.changed(**taken(now)),
    )


def offer_row(offer: Offer, words: Words) -> Html:
    """Set one kind of GPU as a row, its name the link that takes it."""
    href = markup.text(f"/?{query_of(offer.state, lang=words.language)}")
    name = f'<a href="{href}" data-take="1">{markup.text(offer.description)}</a>'
    price, rate = offer.usd_per_gpu_hour, offer.tokens_per_s
    cells = [
        Html(name),
        Html(f'<b class="word {offer.verdict.lower()}">{offer.verdict}</b>{_how(offer, words)}'),
        markup.text(offer.settings),
        markup.text(format_bytes(offer.peak_bytes) if offer.peak_bytes else ""),
        markup.text("" if rate is None else f"{rate:,.0f}"),
        markup.text("" if price is None else f"{price:.2f}"),
        markup.text("" if offer.usd is None else format_money(offer.usd)),
    ]
    return markup.row(cells, right=RIGHT)


def _how(offer: Offer, words: Words) -> Html:
    if offer.verdict == "UNKNOWN":
        return Html("")
    key = "market.replayed" if offer.is_replayed else "market.tensors"
    return Html(f" <small>{markup.text(words[key])}</small>")


def offers_table(words: Words, caption: str) -> Html:
    """Set the table without its rows, which come one by one."""
    headings = tuple(words[f"market.column.{place}"] for place in range(7))
    return markup.table(caption, headings, [Html("")], right=RIGHT)
