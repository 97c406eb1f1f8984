"""Seconds of what processes of Megatron-LM send each other in a step.

What is gathered is quantised before, where products are in fp8; what is reduced is of 16 bits. With
user buffers (``--tp-comm-overlap``) exchanges of tensor parallelism run beside the products that
they are of: a gathered input or gradient goes around a ring while pieces of it are multiplied, a
result is reduced in four pieces, of which the last has nothing to run beside, and what backward
gathers and reduces runs beside products that need neither.

Source: ``initialize_ub`` (its ``methods`` and ``num_splits``) in
``transformer_engine/pytorch/module/base.py`` of 2.20; ``megatron/core/transformer/moe/
token_dispatcher.py``. Latent attention's projections up have no buffers.
"""

from collections import Counter
from typing import NamedTuple

from msgspec.structs import replace

from brimful.cost.comm import Collective, collective_seconds
from brimful.hardware.cluster import Cluster
from brimful.megatron import deepep
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout
from brimful.megatron.states import buffers

_SPLITS = 4
"""Pieces in which a result is reduced (``pipeline``)."""


class Exchanges(NamedTuple):
    """Seconds of exchanges of a micro-batch on a stage, forward and backward.

    Attributes:
        waited: That nothing runs beside.
        beside: That run beside products of dense layers, where user buffers are used.
        tail: Of these, what is left when there is nothing more to run beside.
    """

    waited: float
    beside: float = 0.0
    tail: float = 0.0

    def __add__(self, other: "Exchanges") -> "Exchanges":  # type: ignore[override]  # no tuples' sum
        """Add both up."""
        return Exchanges(*(one + two for one, two in zip(self, other, strict=True)))


def within_a_stage(at: Layout, cluster: Cluster) -> Exchanges:
    """Return what processes of a stage send each other for a micro-batch."""
    found = Exchanges(_of_sequences(at, cluster))
    kinds = Counter(
        (at.experts.layers[number], bool(at.recipe and at.recipe.is_plain(number, at.num_layers)))
        for number in at.numbers_here
    )
    for (is_mixture, is_plain), num in kinds.items():
        of = replace(at, recipe=None) if is_plain else at
        each = _of_attention(of, cluster)
        if not is_mixture or at.experts.shared_ffn:
            each += _of_two_products(of, cluster)
        if is_mixture:
            each += Exchanges(_of_experts(of, cluster))
        found += Exchanges(*(num * seconds for seconds in each))
    return found


def between_stages(at: Layout, cluster: Cluster) -> float:
    """Return the seconds in which a micro-batch and its gradient reach the next stages."""
    if at.pp == 1:
        return 0.0
    stride, num_bytes = at.tp * at.cp * at.dp, at.between * at.hidden * HALF_BYTES
    return 2 * at.vp * _seconds("send", num_bytes, 2, cluster, stride)


def between_replicas(at: Layout, cluster: Cluster) -> float:
    """Return the seconds of what replicas send once a step: gradients, and new parameters."""
    own, ranks = buffers(at), at.dp * at.cp
    gradients = sum(sum(each.elements) for each in own) * at.grads_bytes
    if not at.distributed_optimizer:
        return _seconds("all-reduce", gradients, ranks, cluster, at.tp)
    # What is in no buffer of parameters is gathered in 16 bits, where gradients are.
    gathered = sum(sum(each.elements) * (each.parameter_bytes or HALF_BYTES) for each in own)
    reduced = _seconds("reduce-scatter", gradients, ranks, cluster, at.tp)
    return reduced + _seconds("all-gather", gathered, ranks, cluster, at.tp)


def _seconds(
    kind: Collective, num_bytes: float, ranks: int, cluster: Cluster, stride: int = 1
) -> float:
    if ranks < 2:  # noqa: PLR2004 - alone
        return 0.0
    return float(collective_seconds(kind, num_bytes, ranks, cluster, stride))


def _of_two_products(at: Layout, cluster: Cluster) -> Exchanges:
    """Exchange around two products, of which the first has its columns cut and the second its rows.

    Forward gathers the input and reduces the result; backward gathers the gradient and the input
    once more, and reduces the input's gradient.
    """
    wide = at.tokens * at.hidden
    if not at.sequence_parallel:
        return Exchanges(2 * _seconds("all-reduce", wide * HALF_BYTES, at.tp, cluster))
    reduced = _seconds("reduce-scatter", wide * HALF_BYTES, at.tp, cluster)
    inputs = _seconds("all-gather", _quantised(at, wide), at.tp, cluster)
    gradient = _seconds("all-gather", _gradient(at, wide), at.tp, cluster)
    return Exchanges(0.0, 2 * (reduced + inputs) + gradient, reduced / _SPLITS)


def _of_attention(at: Layout, cluster: Cluster) -> Exchanges:
    """Exchange around attention; latent attention gathers latents, and positions.

    Where processes share a group, what is projected is gathered, and its gradient reduced.
    """
    if not at.latent.is_used or not at.sequence_parallel:
        return _of_two_products(at, cluster) + Exchanges(_of_shared_groups(at, cluster))
    latent, wide = at.latent, at.tokens * at.hidden
    narrow = at.tokens * ((latent.query_rank or at.hidden) + latent.key_rank)
    positions = at.tokens * latent.positions * HALF_BYTES
    reduced = (wide + narrow) * HALF_BYTES + positions
    gathered = 2 * _quantised(at, narrow) + positions + _gradient(at, wide)
    return Exchanges(
        _seconds("reduce-scatter", reduced, at.tp, cluster)
        + _seconds("all-gather", gathered, at.tp, cluster)
    )


def _of_shared_groups(at: Layout, cluster: Cluster) -> float:
    if not at.shares_groups:
        return 0.0
    num_bytes = at.tokens * at.projected * at.tp * HALF_BYTES
    return sum(
        _seconds(kind, num_bytes, at.tp, cluster) for kind in ("all-gather", "reduce-scatter")
    )


def _quantised(at: Layout, num: int) -> int:
    return at.recipe.rows(num) if at.recipe else num * HALF_BYTES


def _gradient(at: Layout, num: int) -> int:
    """Return the bytes of a gradient: blocks are gathered along rows and along columns."""
    if at.recipe is None or at.recipe.has_one_scale:
        return _quantised(at, num)
    return at.recipe.rows(num) + at.recipe.columns(num)


def _of_experts(at: Layout, cluster: Cluster) -> float:
    """Return how long tokens take to experts and back, forward and backward.

    Where several processes cut an expert, what came is gathered, and results are added up in fp32.
    """
    experts = at.experts
    if experts.dispatcher == "allgather":
        num_bytes, ranks = at.gathered * at.hidden * HALF_BYTES, experts.ep * experts.etp
        each = [
            _seconds(kind, num_bytes, ranks, cluster) for kind in ("all-gather", "reduce-scatter")
        ]
        return 2 * sum(each)
    if experts.dispatcher == deepep.DISPATCHER:
        return 4 * _of_deepep(at, cluster)
    copies, arrived = (n * at.hidden for n in (at.between * experts.topk, at.routed))
    sent = _seconds("all-to-all", copies * HALF_BYTES, experts.ep, cluster)
    gathered = _seconds("all-gather", arrived * HALF_BYTES, experts.etp, cluster)
    added = _seconds("reduce-scatter", arrived * FLOAT_BYTES, experts.etp, cluster)
    return 4 * sent + 2 * (gathered + added)


def _of_deepep(at: Layout, cluster: Cluster) -> float:
    """Return how long tokens take one way: once to each node that has experts of theirs.

    From there they go on to processes by NVLink, while others arrive.
    """
    ranks, num_bytes = at.experts.ep * at.experts.etp, at.hidden * HALF_BYTES
    linked = min(ranks, cluster.devices_per_node)
    inside = _seconds("all-to-all", at.arrived * num_bytes, linked, cluster)
    nodes = -(-ranks // linked)
    sent = at.between * nodes * at.experts.share_of(at.experts.num // nodes)
    return max(inside, _seconds("all-to-all", sent * num_bytes, nodes, cluster, linked))


def _of_sequences(at: Layout, cluster: Cluster) -> float:
    """Return how long keys and values go around the processes that share a sequence."""
    keys = 2 * at.tokens * at.keys * HALF_BYTES
    each = _seconds("send", keys, min(at.cp, 2), cluster, at.tp)
    return len(at.numbers_here) * 3 * (at.cp - 1) * each
