"""The answer to ``shop`` where no formula covers the job: what GPUs cost at least."""

from collections.abc import Iterator, Sequence

from brimful.cost.least import Least
from brimful.search.shop.least import LeastOffer, LeastRoom
from brimful.search.shop.values import Limits
from brimful.show.predicted import job_words
from brimful.show.shop import asked_words
from brimful.show.summary import Fact, Summary
from brimful.units import format_bytes, format_count, format_days, format_money
from brimful.values.job import Job

NUM_OFFERS = 3
"""Kinds of GPU that are told."""


def shop_bound_summary(
    job: Job, num_parameters: int, offers: Sequence[LeastOffer], limits: Limits
) -> Summary:
    """Say what the run costs at least.

    ``offers``: what may meet what was asked, the cheapest first.
    """
    tokens = format_count(job.num_steps * job.tokens_per_step)
    subject = f"{job_words(job)}, {tokens} tokens: {asked_words(limits, None)}"
    how = (
        f"counted from {format_count(num_parameters)} parameters: room for their states, and time "
        "for their matrix products at the data sheet's rate; nothing else"
    )
    if not offers:
        none = "no GPU with a price meets that, even so"
        return Summary("NO", subject, None, (Fact("bound", how), Fact("take", none)))
    return Summary(
        "UNKNOWN",
        subject,
        None,
        (
            Fact("bound", how),
            *(
                Fact("" if place else "at least", _told(each))
                for place, each in enumerate(offers[:NUM_OFFERS])
            ),
            *_enough(offers[0], limits),
        ),
    )


def shop_room_summary(
    job: Job, num_parameters: int, least: Least, rooms: Sequence[LeastRoom], limits: Limits
) -> Summary:
    """Say how many GPUs hold the states, where nobody knows how much work a token is.

    ``least``: bytes that there are at least, of all GPUs together. ``rooms``: GPUs that have room
    for them, the cheapest hour first.
    """
    tokens = format_count(job.num_steps * job.tokens_per_step)
    subject = f"{job_words(job)}, {tokens} tokens: {asked_words(limits, None)}"
    each = f"{least.total / num_parameters:.3g} bytes of each of {format_count(num_parameters)}"
    bound = (
        f"{format_bytes(least.total)} of parameters, gradients and optimizer state, {each} "
        f"parameters; activations come on top"
    )
    if not rooms:
        none = "no number of any GPU that has a price holds even that"
        return Summary("NO", subject, None, (Fact("bound", bound), Fact("take", none)))
    cheapest, *others = _named_rooms(rooms)
    facts = (
        Fact("bound", bound),
        Fact("at least", f"{_room_words(cheapest)}, the cheapest hour"),
        *(Fact("", _room_words(room)) for room in others),
        Fact("unknown", "how long it takes, and so what the run costs: no formula covers it"),
    )
    return Summary("UNKNOWN", subject, None, facts)


def least_lines(
    offers: Sequence[LeastOffer] | None, rooms: Sequence[LeastRoom], *, most: int = NUM_OFFERS
) -> Iterator[str]:
    """Yield what is sure before anything is traced, a line each.

    ``offers``: what may meet what was asked, the cheapest first; None: nobody knows how long.
    ``rooms``: of such, GPUs that have room for the states, the cheapest hour first. ``most``: how
    many are told.
    """
    words = [_told(each) for each in offers or ()] or list(map(_room_words, _named_rooms(rooms)))
    what = "the states alone" if offers is None else "the states and matrix products alone"
    if words:
        yield f"at least, by {what}: {words[0]}"
    for more in words[1:most]:
        yield f"  or {more}"


def _named_rooms(rooms: Sequence[LeastRoom]) -> list[LeastRoom]:
    """Return the cheapest hour, and the fewest GPUs; nothing of nothing."""
    fewest = sorted(rooms, key=lambda room: (room.num_gpus, room.usd_per_hour))
    return list(dict.fromkeys((*rooms[:1], *fewest[: NUM_OFFERS - 1])))


def _room_words(room: LeastRoom) -> str:
    return f"{room.num_gpus}x{room.kind}: {format_money(room.usd_per_hour)} an hour"


def _told(offer: LeastOffer) -> str:
    count = f"{offer.num_gpus}x" if offer.num_gpus > 1 else ""
    return f"{count}{offer.kind}: {format_days(offer.days)} and {format_money(offer.usd)}"


def _enough(offer: LeastOffer, limits: Limits) -> tuple[Fact, ...]:
    """Say at which share of the data sheet's rate the money pays for the run."""
    if not limits.budget_usd:
        return (Fact("in truth", "two to four times that at 50 to 25% of that rate (its MFU)"),)
    share = offer.usd / limits.budget_usd
    words = (
        f"{format_money(limits.budget_usd)} pay for all of it on {offer.kind} if it reaches "
        f"{share:.0%} of that rate (its MFU)"
    )
    return (Fact("enough", words),)
