"""Seconds of a step of Megatron-LM, by the rates that kernels of a card reach.

Products and attention by their operations, those of experts by their weights' bytes too, all else
by the bytes of the blocks that the walk asks for, each written and read; collectives by links. What
tensor parallelism sends is waited for without user buffers; what stages send too, unless they take
turns with several pieces of the model each, and what replicas send unless that is asked for
(``--overlap-*``). The head is not among what is recomputed.

Source: ``--no-overlap-p2p-communication`` in ``megatron/training/arguments.py``, whose default is
an overlap that holds for virtual stages alone; ``_checkpointed_forward`` in
``megatron/core/transformer/transformer_block.py``, which recomputes layers.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from brimful.cost.comm import overlapped_seconds
from brimful.cost.efficiency import (
    AttentionKernel,
    ProductSize,
    attention_share,
    efficiency_of,
    fused_bytes,
    product_share,
)
from brimful.hardware.cluster import Cluster, Device, matrix_rate
from brimful.hardware.datasheets import fp4_rate
from brimful.megatron.exchanges import (
    Exchanges,
    between_replicas,
    between_stages,
    within_a_stage,
)
from brimful.megatron.layout import Attention, Layout
from brimful.megatron.stage import asked_of
from brimful.megatron.states import parameters, quantised_weights, state_bytes
from brimful.values.job import FP8

if TYPE_CHECKING:
    from brimful.values.job import Precision

_BACKWARD = 2
"""Products of backward for one of forward."""
_ATTENTION_BACKWARD = 2.5
"""Products of attention's backward, which makes the scores again."""
_KERNELS: dict[Attention, AttentionKernel] = {
    "unfused": "other", "local": "other", "flash": "flash", "fused": "cudnn",
}  # fmt: skip
_OF_MULTIPLY = 2
_HALF_BYTES = 2
LAUNCHED_S = 88e-6
"""Of the host for each block that is asked for: modules and hooks in Python, and their launches.

A micro-batch takes no less than that: fitted to three runs of Qwen3 8B under tp 8 on H100, which no
link binds (``validation/efficiency_fit.py``; mean error 1.5 %), and taken of all hosts."""
_UPDATE_PASSES = 2
"""Every state is read and written."""


class Overlaps(NamedTuple):
    """What is sent beside products.

    Attributes:
        replicas: Whether replicas send beside backward.
        stages: Whether stages do, where each has several pieces of the model.
        tensors: Whether tensor parallelism does: user buffers.
    """

    replicas: bool
    stages: bool = True
    tensors: bool = False


def slowest_step_s(stages: Iterable[Layout], cluster: Cluster, overlaps: Overlaps) -> float:
    """Predict the seconds of a step: of the stage that has most to do, with what it waits for.

    Returns infinity where a rate or a link is unknown.
    """
    times = [_step_s(at, cluster, overlaps) for at in stages]
    return math.inf if any(map(math.isnan, times)) else max(times)


def sequence_flops(whole: Layout) -> float:
    """Return the operations of one sequence, forward and backward, nothing computed again.

    ``whole``: a process that has all of a model, with one sequence at once.
    """
    return (1 + _BACKWARD) * _flops(whole).total


def device_flops(stages: Sequence[Layout]) -> float:
    """Return the operations of a step of each GPU, nothing computed again: a mean of stages."""
    each = [(1 + _BACKWARD) * _flops(at).total * at.num_micro for at in stages]
    return sum(each) / len(each)


def _step_s(at: Layout, cluster: Cluster, overlaps: Overlaps) -> float:
    device = cluster.device
    precision: Precision = "fp32"
    if at.is_half:  # Volta and Turing have no units for bf16, whose rate there is unknown
        precision = "fp16" if at.is_fp16 else "bf16"
    share = efficiency_of(device)
    rate = matrix_rate(device, precision)
    if not rate:
        return math.nan
    flops = _flops(at)
    again = _share_again(at)
    passes = 1 + _BACKWARD + again
    size = ProductSize(at.tokens, at.hidden / at.tp)
    plain = rate * float(product_share(device, precision, size))
    engine = share.engine_half_share if at.transformer_engine and at.is_half else 0.0
    reached = rate * engine or plain
    narrow = matrix_rate(device, FP8) * share.engine_fp8_share or math.nan
    if at.recipe and at.recipe.is_fp4:
        narrow = fp4_rate(device.name) * share.engine_fp4_share or math.nan
    in_narrow = flops.narrow / narrow if flops.narrow else 0.0
    dense = flops.dense_share * (flops.products / reached + in_narrow)
    of_experts = (1 - flops.dense_share) * (flops.products / plain + in_narrow)
    of_layers = dense + of_experts + _experts_read_s(at, device)
    compute = passes * of_layers + (1 + _BACKWARD) * flops.of_head / reached
    again = max(again, float(at.recomputes("core_attn")))
    attended = attention_share(device, _KERNELS[at.attention], at.key_len, at.channels)
    compute += (1 + _ATTENTION_BACKWARD + again) * flops.attended / (rate * float(attended))
    asked = asked_of(at)
    moved = _moved_s(2 * asked.num_bytes, device)
    inside, by_products = within_a_stage(at, cluster), passes * dense
    waited = inside.waited + _beside(inside, by_products if overlaps.tensors else 0.0)
    waited *= 1 + _share_again(at) / 2
    micro = max(compute + moved + waited, asked.num_blocks * LAUNCHED_S)
    sent = between_stages(at, cluster)
    bubble = (micro + sent) * (at.pp - 1) / at.vp
    replicas = between_replicas(at, cluster)
    is_beside = overlaps.stages and at.vp > 1
    sent = max(0.0, sent - (micro - waited)) if is_beside else sent
    backward = at.num_micro * (micro - waited) * _BACKWARD / 3
    exposed = max(0.0, replicas - backward) if overlaps.replicas else replicas
    update = _moved_s(_UPDATE_PASSES * state_bytes(at), device)
    return at.num_micro * (micro + sent) + bubble + exposed + update


def _experts_read_s(at: Layout, device: Device) -> float:
    """Return the seconds in which the weights of experts are read for one pass.

    A product of few rows waits for its weights: those of an expert are read for its own rows,
    those of a dense layer for all tokens, which is little beside what is computed.
    """
    _, of_experts = parameters(at)
    narrow = sum(quantised_weights(at)[1])
    num_bytes = _HALF_BYTES * (sum(of_experts) - narrow) + narrow
    return _moved_s(num_bytes, device)


def _moved_s(num_bytes: float, device: Device) -> float:
    reached = device.memory_bytes_per_s * efficiency_of(device).memory_share
    return float(fused_bytes(num_bytes, device) / reached)


def _beside(inside: Exchanges, products: float) -> float:
    """Return how much longer products take beside exchanges, and what is left of these."""
    if not products:
        return inside.beside
    hidden = inside.beside - inside.tail
    return (
        float(overlapped_seconds(np.asarray(products), np.asarray(hidden))) - products + inside.tail
    )


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
        narrow: Of those in fp8 or fp4.
        of_head: Of the output layer's, which is never recomputed.
        attended: Of attention.
        dense_share: Of layers' products, those that are not experts'.
    """

    products: float
    narrow: float
    of_head: float
    attended: float
    dense_share: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.products + self.narrow + self.of_head + self.attended


def _flops(at: Layout) -> _Operations:
    plain, of_experts = parameters(at)
    embedding = at.vocab // at.tp * at.hidden
    dense = sum(n for n in plain if n > at.hidden * 2)
    dense -= at.max_positions * at.hidden if at.is_first and at.has_positions else 0
    dense -= embedding if at.is_first and not (at.is_last and at.is_tied) else 0
    dense -= embedding if at.predicts_more and at.is_last and not at.is_first else 0
    of_head = embedding if at.is_last else 0
    products = _multiplied(at, dense - of_head, sum(of_experts))
    narrow = _multiplied(at, *map(sum, quantised_weights(at)))
    width = at.latent.width + at.latent.positions if at.latent.is_used else at.channels
    values = at.latent.value_width if at.latent.is_used else at.channels
    attended = _OF_MULTIPLY * _pairs(at) * at.heads // at.tp * (width + values)
    head = _OF_MULTIPLY * at.tokens * of_head * (1 + at.predicts_more)
    share = _multiplied(at, dense - of_head, 0) / products if products else 1.0
    return _Operations(products - narrow, narrow, head, attended, share)


def _pairs(at: Layout) -> float:
    """Return how many keys all queries look at, in all layers.

    Of s tokens with a window of w that is w - w^2 / 2s on average: half of all without a window.
    """
    windows = (min(at.windows[number] or at.key_len, at.key_len) for number in at.numbers_here)
    return at.tokens * sum(window - window**2 / (2 * at.key_len) for window in windows)


def _multiplied(at: Layout, dense: int, of_experts: int) -> float:
    """Return the operations of all tokens by weights, of experts by those that come to them."""
    used = of_experts * at.routed / (at.tokens * at.experts.here) if of_experts else 0.0
    return _OF_MULTIPLY * at.tokens * (dense + used)
