"""How tokens are routed to experts: what memory of devices that part them hangs on.

Knows no torch. ``build.parallel.routing`` asks it wherever no value is real.
"""

from typing import NamedTuple

from brimful.models.mixtures import known_experts
from brimful.values.job import Job


class Routing(NamedTuple):
    """Rows that a device's experts get; a row is a token at one of the experts that it chose.

    Attributes:
        share: Rows received per row sent, where ``received`` says nothing: 1 is balanced.
        received: Rows of each forward pass of each sparse block, [blocks][passes]; after the last
            one the first is the next. Empty: ``share`` says.
    """

    share: float = 1.0
    received: tuple[tuple[int, ...], ...] = ()


BALANCED = Routing()


def worst(job: Job, ep: int) -> Routing:
    """Return the routing of a device whose experts every token of its group chooses first.

    All devices of the group have as many tokens. A token sends no more rows to a device than it
    chooses experts, nor than the device has.
    """
    experts = known_experts(job.model)
    choices = experts.num_experts_per_token
    most = min(choices, experts.num_experts // ep)
    return Routing(share=ep * most / choices)


class Replay:
    """Answers with the rows of a routing, pass by pass; see ``build.parallel.routing.Assumed``."""

    def __init__(self, routing: Routing) -> None:
        """Stand before the first forward pass."""
        self._routing = routing
        self._passes: dict[tuple[int, bool], int] = {}

    def __call__(self, block: int, num_sent: int, is_recomputed: bool) -> int:  # noqa: FBT001
        """Return the rows that this device gets in the next pass of a block.

        ``block``: number of the sparse block among the model's, from 0. ``is_recomputed``: whether
        it is run once more, in the order of the first time.
        """
        if not self._routing.received:
            return round(num_sent * self._routing.share)
        passes = self._routing.received[block]
        turn = self._passes.get((block, is_recomputed), 0)
        self._passes[block, is_recomputed] = turn + 1
        return passes[turn % len(passes)]
