"""The answer to ``shop`` where no formula covers the job: what GPUs cost at least."""

from collections.abc import Sequence

from brimful.cost.least import Least
from brimful.job import Job
from brimful.search.shop.least import LeastOffer, LeastRoom
from brimful.search.shop.values import Limits
from brimful.show.predicted import job_words
from brimful.show.shop import asked_words
from brimful.show.summary import Fact, Summary
from brimful.units import format_bytes, format_count, format_days, format_money

NUM_OFFERS = 3
"""Kinds of GPU that are told."""


def shop_bound_summary(
    job: Job, num_parameters: int, offers: Sequence[LeastOffer], limits: Limits
) -> Summary:
    """Say what the run costs at least.

    Args:
        job: What is trained.
        num_parameters: Of its model.
        offers: What may meet what was asked, the cheapest first.
        limits: What was asked.
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

    Args:
        job: What is trained.
        num_parameters: Of its model.
        least: Bytes that there are at least, of all GPUs together.
        rooms: GPUs that have room for them, the cheapest hour first.
        limits: What was asked.
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
    fewest = sorted(rooms, key=lambda room: (room.num_gpus, room.usd_per_hour))
    cheapest, *others = dict.fromkeys((rooms[0], *fewest[: NUM_OFFERS - 1]))
    facts = (
        Fact("bound", bound),
        Fact("at least", f"{_room_words(cheapest)}, the cheapest hour"),
        *(Fact("", _room_words(room)) for room in others),
        Fact("unknown", "how long it takes, and so what the run costs: no formula covers it"),
    )
    return Summary("UNKNOWN", subject, None, facts)


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
