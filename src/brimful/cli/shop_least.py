"""What GPUs cost at least, before anything is known of a job but its parameters."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from brimful.cli import defaults
from brimful.cost.least import least_flops_per_token
from brimful.models.config import known_count
from brimful.search.shop.least import LeastOffer, LeastRoom, least_offers, least_rooms
from brimful.search.shop.values import Limits
from brimful.show.shop import NUM_NAMED
from brimful.show.shop_bound import NUM_OFFERS, least_lines
from brimful.text.terminal import say
from brimful.units import shown_in

if TYPE_CHECKING:
    from brimful.cost.money import Prices
    from brimful.values.job import Job


class Offered(NamedTuple):
    """What may do at least: with days and dollars, or where nobody knows these with room alone."""

    offers: Sequence[LeastOffer] | None
    rooms: Sequence[LeastRoom]


def tell_shop_least(
    args: argparse.Namespace, job: "Job", kinds: Sequence[str], prices: "Prices"
) -> None:
    """Say in few lines what GPUs cost at least, before anything is traced."""
    if (num_parameters := known_count(job.model)) is None:
        return
    with shown_in(args.currency):
        every = len(kinds) <= NUM_NAMED
        for line in least_lines(
            *offered(args, job, num_parameters, kinds, prices),
            most=len(kinds) if every else NUM_OFFERS,
        ):
            say(line, file=sys.stderr, flush=True)


def cheapest_kinds(
    args: argparse.Namespace, job: "Job", kinds: Sequence[str], prices: "Prices"
) -> tuple[str, ...]:
    """Return the few kinds that cost least at least; those that were given where nobody knows."""
    if (num_parameters := known_count(job.model)) is None:
        return tuple(kinds[:NUM_OFFERS])
    offers, rooms = offered(args, job, num_parameters, kinds, prices)
    return tuple(each.kind for each in (offers or rooms)[:NUM_OFFERS])


def offered(
    args: argparse.Namespace,
    job: "Job",
    num_parameters: int,
    kinds: Sequence[str],
    prices: "Prices",
) -> Offered:
    """List what may do at least, the cheapest first.

    ``args``: the flags of ``shop``.
    """
    limits, most = Limits(args.deadline, args.money_budget), args.max_gpus or defaults.MOST_GPUS
    rents = {kind: prices.gpus[kind].usd_per_gpu_hour for kind in kinds if kind in prices.gpus}
    if least_flops_per_token(job, num_parameters) is None:
        return Offered(None, least_rooms(job, num_parameters, rents, most=most))
    return Offered(least_offers(job, num_parameters, rents, limits=limits, most=most), ())
