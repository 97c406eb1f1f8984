"""What GPUs cost at least, for a job that no formula covers: a bound by what parameters say.

Memory by their states alone, time by their matrix products alone at the data sheet's rate. What is
too dear or too slow here is so in truth; what is not may still be.
"""

from collections.abc import Mapping
from typing import NamedTuple

from brimful.cost.estimate import allocatable_bytes
from brimful.cost.least import least_bytes, least_flops_per_token
from brimful.cost.money import HOUR_S
from brimful.hardware.cluster import Device, matrix_rate
from brimful.hardware.gpus import gpus
from brimful.search.shop.values import DAY_S, Limits
from brimful.values.job import Job


class LeastRoom(NamedTuple):
    """So many GPUs of one kind as have room for the states, whatever they take.

    Attributes:
        kind: The GPU.
        num_gpus: The fewest, if all of them share everything evenly.
        usd_per_hour: Of all of them.
    """

    kind: str
    num_gpus: int
    usd_per_hour: float


class LeastOffer(NamedTuple):
    """So many GPUs of one kind.

    Attributes:
        kind: The GPU.
        num_gpus: The fewest that have room for the states, and may meet the deadline.
        days: That the run takes at least.
        usd: That it costs at least.
    """

    kind: str
    num_gpus: int
    days: float
    usd: float


def least_offers(
    job: Job, num_parameters: int, rents: Mapping[str, float], *, limits: Limits, most: int
) -> list[LeastOffer]:
    """List what may meet what was asked, the cheapest first; empty: nothing can.

    ``job``: what is trained; it needs no formula, but a count of operations for each token.
    """
    flops = least_flops_per_token(job, num_parameters)
    assert flops is not None, "asked before"
    whole = flops * job.tokens_per_step * job.num_steps
    states = least_bytes(job, num_parameters).total
    found = []
    for kind, usd_per_hour in rents.items():
        device = gpus()[kind]
        rate = matrix_rate(device, job.precision)
        if not rate:
            continue
        alone_s = whole / rate
        number = _fewest(states, device, alone_s, limits.deadline_s)
        usd = alone_s / HOUR_S * usd_per_hour
        is_dear = limits.budget_usd is not None and usd > limits.budget_usd
        if number <= most and not is_dear:
            found.append(LeastOffer(kind, number, alone_s / number / DAY_S, usd))
    return sorted(found, key=lambda offer: offer.usd)


def least_rooms(
    job: Job, num_parameters: int, rents: Mapping[str, float], *, most: int
) -> list[LeastRoom]:
    """List the fewest GPUs of each kind that have room for the states, the cheapest hour first.

    ``job``: what is trained; it needs no formula.
    """
    states = least_bytes(job, num_parameters).total
    found = []
    for kind, usd_per_hour in rents.items():
        number = -(-states // allocatable_bytes(gpus()[kind]))
        if number <= most:
            found.append(LeastRoom(kind, number, number * usd_per_hour))
    return sorted(found, key=lambda room: (room.usd_per_hour, room.num_gpus))


def _fewest(states: int, device: Device, alone_s: float, deadline_s: float | None) -> int:
    """Return the least power of two of GPUs that may hold the states and meet a deadline."""
    number = 1
    while states / number > allocatable_bytes(device):
        number *= 2
    while deadline_s is not None and alone_s / number > deadline_s:
        number *= 2
    return number
