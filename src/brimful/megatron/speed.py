"""Seconds of a step of Megatron-LM, by the rates that kernels of a card reach.

Products and attention by their operations, all else by the bytes of the blocks that the walk
asks for, each written and read; collectives by links. What tensor parallelism sends is waited for;
what stages send too, unless they take turns with several pieces of the model each, and what
replicas send unless that is asked for (``--overlap-*``). The head is not among what is recomputed.

Source: ``--no-overlap-p2p-communication`` in ``megatron/training/arguments.py``, whose default is
an overlap that holds for virtual stages alone; ``_checkpointed_forward`` in
``megatron/core/transformer/transformer_block.py``, which recomputes layers.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brimful.cost.comm import Collective, collective_seconds
from brimful.cost.efficiency import ProductSize, efficiency_of, product_share
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.stage import moved_bytes
from brimful.megatron.states import model_bytes, moment_bytes, parameters, quantised_weights
from brimful.values.job import FP8

if TYPE_CHECKING:
    from brimful.values.job import Precision

_BACKWARD = 2
"""Products of backward for one of forward."""
_ATTENTION_BACKWARD = 2.5
"""Products of attention's backward, which makes the scores again."""
_OF_MULTIPLY = 2
_UPDATE_PASSES = 2
"""Every state is read and written."""


class Overlaps(NamedTuple):
    """What is sent beside products.

    Attributes:
        replicas: Whether replicas send beside backward.
        stages: Whether stages do, where each has several pieces of the model.
    """

    replicas: bool
    stages: bool = True


def slowest_step_s(stages: Iterable[Layout], cluster: Cluster, overlaps: Overlaps) -> float:
    """Predict the seconds of a step: of the stage that has most to do, with what it waits for.

    Args:
        stages: A process of each kind.
        cluster: On what.
        overlaps: What is sent beside products.

    Returns:
        Infinity where a rate or a link is unknown.
    """
    times = [_step_s(at, cluster, overlaps) for at in stages]
    return math.inf if any(map(math.isnan, times)) else max(times)


def sequence_flops(whole: Layout) -> float:
    """Return the operations of one sequence, forward and backward, nothing computed again.

    Args:
        whole: A process that has all of a model, with one sequence at once.
    """
    return (1 + _BACKWARD) * sum(_flops(whole))


def device_flops(stages: Sequence[Layout]) -> float:
    """Return the operations of a step of each GPU, nothing computed again: the mean of all stages.

    Args:
        stages: Every stage of the pipeline.
    """
    each = [(1 + _BACKWARD) * sum(_flops(at)) * at.num_micro for at in stages]
    return sum(each) / len(each)


def _step_s(at: Layout, cluster: Cluster, overlaps: Overlaps) -> float:
    device = cluster.device
    precision: Precision = "bf16" if at.is_half else "fp32"
    share = efficiency_of(device)
    size = ProductSize(at.tokens, at.hidden / at.tp)
    rate = matrix_rate(device, precision)
    if not rate:
        return math.nan
    flops = _flops(at)
    again = _share_again(at)
    passes = 1 + _BACKWARD + again
    reached = rate * float(product_share(device, precision, size))
    compute = (passes * flops.products + (1 + _BACKWARD) * flops.of_head) / reached
    if flops.in_fp8:
        reached = matrix_rate(device, FP8) * share.engine_fp8_share
        compute += passes * flops.in_fp8 / reached if reached else math.nan
    again = max(again, float(at.recomputes("core_attn")))
    compute += (1 + _ATTENTION_BACKWARD + again) * flops.attended / (rate * share.attention_share)
    moved = 2 * moved_bytes(at) / (device.memory_bytes_per_s * share.memory_share)
    micro = compute + moved
    waited = _waited(at, cluster) * (1 + _share_again(at) / 2)
    sent = _sent(at, cluster)
    bubble = (micro + waited + sent) * (at.pp - 1) / at.vp
    replicas = _replicas(at, cluster)
    is_beside = overlaps.stages and at.vp > 1
    sent = max(0.0, sent - micro) if is_beside else sent
    backward = at.num_micro * micro * _BACKWARD / 3
    exposed = max(0.0, replicas - backward) if overlaps.replicas else replicas
    states = sum(model_bytes(at)) + sum(moment_bytes(at))
    update = _UPDATE_PASSES * states / (device.memory_bytes_per_s * share.memory_share)
    return at.num_micro * (micro + waited + sent) + bubble + exposed + update


def _share_again(at: Layout) -> float:
    """Return which share of the stage's layers runs forward twice."""
    if at.recompute != "full":
        return 0.0
    if at.recompute_method != "block":
        return 1.0
    layers = at.layers_here / at.vp
    return min(at.recompute_layers, layers) / layers


class _Operations(NamedTuple):
    """Forward's operations of one micro-batch on a stage.

    Attributes:
        products: Of layers' products in 16 bits, and in fp32 where nothing is narrower.
        in_fp8: Of those in fp8.
        of_head: Of the output layer's, which is never recomputed.
        attended: Of attention.
    """

    products: float
    in_fp8: float
    of_head: float
    attended: float


def _flops(at: Layout) -> _Operations:
    plain, of_experts = parameters(at)
    embedding = at.vocab // at.tp * at.hidden
    dense = sum(n for n in plain if n > at.hidden * 2)
    dense -= at.max_positions * at.hidden if at.is_first and at.has_positions else 0
    dense -= embedding if at.is_first and not (at.is_last and at.is_tied) else 0
    of_head = embedding if at.is_last else 0
    products = _multiplied(at, dense - of_head, sum(of_experts))
    in_fp8 = _multiplied(at, *map(sum, quantised_weights(at)))
    width = at.latent.width + at.latent.positions if at.latent.is_used else at.channels
    values = at.latent.value_width if at.latent.is_used else at.channels
    causal = 0.5
    pairs = at.tokens * at.key_len * causal
    attended = _OF_MULTIPLY * pairs * at.heads // at.tp * (width + values) * at.layers_here
    head = _OF_MULTIPLY * at.tokens * of_head
    return _Operations(products - in_fp8, in_fp8, head, attended)


def _multiplied(at: Layout, dense: int, of_experts: int) -> float:
    """Return the operations of all tokens by weights, of experts by those that come to them."""
    used = of_experts * at.routed / (at.tokens * at.experts.here) if of_experts else 0.0
    return _OF_MULTIPLY * at.tokens * (dense + used)


def _waited(at: Layout, cluster: Cluster) -> float:
    """Return the seconds that a micro-batch waits for, forward and backward, on the stage."""
    rows = at.tokens * at.hidden * HALF_BYTES

    def of(kind: Collective, num_bytes: float, ranks: int, stride: int = 1) -> float:
        if ranks < 2:  # noqa: PLR2004 - alone
            return 0.0
        return float(collective_seconds(kind, num_bytes, ranks, cluster, stride))

    seconds = 0.0
    if at.tp > 1 and at.sequence_parallel:
        # Before and behind both products of a layer, and once more for weights' gradients.
        seconds += (
            at.layers_here
            * 2
            * (3 * of("all-gather", rows, at.tp) + 2 * of("reduce-scatter", rows, at.tp))
        )
    elif at.tp > 1:
        seconds += at.layers_here * 4 * of("all-reduce", rows, at.tp)
    if at.experts.num and at.experts.ep > 1:
        sent = at.between * at.experts.topk * at.hidden * HALF_BYTES
        mixtures = sum(at.experts.layers[number] for number in at.numbers_here)
        seconds += 4 * mixtures * of("all-to-all", sent, at.experts.ep)
    if at.cp > 1:
        keys = 2 * at.tokens * at.keys * HALF_BYTES
        seconds += at.layers_here * 3 * (at.cp - 1) * of("send", keys, 2, at.tp)
    return seconds


def _sent(at: Layout, cluster: Cluster) -> float:
    """Return the seconds in which a micro-batch and its gradient reach the next stages."""
    if at.pp == 1:
        return 0.0
    stride, num_bytes = at.tp * at.cp * at.dp, at.between * at.hidden * HALF_BYTES
    return 2 * at.vp * float(collective_seconds("send", num_bytes, 2, cluster, stride))


def _replicas(at: Layout, cluster: Cluster) -> float:
    """Return the seconds of what replicas send once a step: gradients, and new parameters."""
    num = sum(map(sum, parameters(at)))
    ranks = at.dp * at.cp
    if ranks < 2:  # noqa: PLR2004 - alone
        return 0.0
    if not at.distributed_optimizer:
        return float(collective_seconds("all-reduce", num * at.grads_bytes, ranks, cluster, at.tp))
    reduced = collective_seconds("reduce-scatter", num * at.grads_bytes, ranks, cluster, at.tp)
    gathered = collective_seconds("all-gather", num * HALF_BYTES, ranks, cluster, at.tp)
    return float(np.asarray(reduced) + np.asarray(gathered))
