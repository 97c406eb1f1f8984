"""Parameters, gradients and optimizer states of a stage.

Source: ``megatron/core/distributed/param_and_grad_buffer.py``, ``core/optimizer/``.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from brimful.megatron.blocks import Block, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout


def layer_parameters(at: Layout, *, is_mixture: bool) -> tuple[list[int], list[int]]:
    """Elements of each parameter of a layer on this process, and of those of experts alone."""
    norm = [at.hidden] * at.norm_vectors
    of_attention = [*norm, *(_latent(at) if at.latent.is_used else _attention(at)), *norm]
    if not is_mixture:
        return of_attention + _mlp(at, at.ffn // at.tp), []
    shared = _mlp(at, at.experts.shared_ffn // at.tp) if at.experts.shared_ffn else []
    router = at.experts.num * at.hidden
    each = _mlp(at, at.experts.ffn // at.experts.etp)
    return [*of_attention, router, *shared], each * at.experts.here


def _attention(at: Layout) -> list[int]:
    qkv = at.queries + 2 * at.keys
    return [
        at.hidden * qkv, *([qkv] if at.qkv_bias else []),
        at.queries * at.hidden, *([at.hidden] if at.has_bias else []),
        *([at.channels] * 2 * at.norm_vectors if at.norms_heads else []),
    ]  # fmt: skip


def _latent(at: Layout) -> list[int]:
    """Projections down, which every process has whole, and those up, which are cut by heads."""
    latent, heads = at.latent, at.heads // at.tp
    of_query = heads * (latent.width + latent.positions)
    ranks = [latent.query_rank, latent.key_rank] if latent.is_normed else []
    return [
        *([at.hidden * latent.query_rank] if latent.query_rank else []),
        (latent.query_rank or at.hidden) * of_query,
        at.hidden * (latent.key_rank + latent.positions),
        latent.key_rank * heads * (latent.width + latent.value_width),
        *(rank for rank in ranks if rank for _ in range(at.norm_vectors)),
        heads * latent.value_width * at.hidden,
    ]


def _mlp(at: Layout, width: int) -> list[int]:
    wide = width * (2 if at.is_gated else 1)
    return [
        at.hidden * wide, *([wide] if at.has_bias else []),
        width * at.hidden, *([at.hidden] if at.has_bias else []),
    ]  # fmt: skip


@lru_cache(maxsize=4096)
def quantised_weights(at: Layout) -> tuple[list[int], list[int]]:
    """Elements of each matrix of the stage that is multiplied in fp8, and of those of experts."""
    found: list[int] = []
    of_experts: list[int] = []
    for number in at.numbers_here if at.recipe else ():
        if at.recipe and at.recipe.is_plain(number, at.num_layers):
            continue
        found += [at.hidden * (at.queries + 2 * at.keys), at.queries * at.hidden]
        if at.experts.layers[number]:
            of_experts += _matrices(at, at.experts.ffn // at.experts.etp) * at.experts.here
        else:
            found += _matrices(at, at.ffn // at.tp)
    return found, of_experts


def _matrices(at: Layout, width: int) -> list[int]:
    return [at.hidden * width * (2 if at.is_gated else 1), width * at.hidden]


@lru_cache(maxsize=4096)
def parameters(at: Layout) -> tuple[list[int], list[int]]:
    """Elements of each parameter of the stage, and of those of experts alone."""
    rows = at.vocab // at.tp * at.hidden
    found: list[int] = []
    of_experts: list[int] = []
    for number in at.numbers_here:
        plain, experts = layer_parameters(at, is_mixture=at.experts.layers[number])
        found += plain
        of_experts += experts
    if at.decoder is not None:
        plain, _ = layer_parameters(at.decoder, is_mixture=False)
        norm = [at.hidden] * at.norm_vectors
        each = [*plain, *norm, *_attention(at)]  # another attention, to the encoder's result
        found += [*(each * at.decoder.num_layers), *norm, at.vocab // at.tp]
    if at.is_first:
        found += [rows, *([at.max_positions * at.hidden] if at.has_positions else [])]
        found += [2 * at.hidden] if at.has_binary_head else []
    if at.is_last:
        found += [at.hidden] * at.norm_vectors
        found += [rows] if not at.is_tied or not at.is_first else []
        found += _head_of_bert(at) if at.is_bert else []
    return found, of_experts


def _head_of_bert(at: Layout) -> list[int]:
    """A product, a norm, the output's bias; a pooler and its two classes."""
    square = [at.hidden * at.hidden, at.hidden]
    binary = [*square, 2 * at.hidden, 2] if at.has_binary_head else []
    return [*square, at.hidden, at.hidden, at.vocab // at.tp, *binary]


def model_bytes(at: Layout) -> list[int]:
    """Bytes of parameters, gradients and fp32 copies, allocation by allocation."""
    m = Memory()
    return [block.num_bytes for block in load(m, at)]


def load(m: Memory, at: Layout) -> list[Block]:
    """Build the model and its optimizer; return what lasts.

    Gradients lie in one buffer, those of experts in another, and under a distributed optimizer
    parameters too, which are built each by itself before. fp32 copies are made of copies.
    """
    of_parameter = HALF_BYTES if at.is_half else FLOAT_BYTES
    groups = [elements for elements in parameters(at) if elements]
    own = [m.new(n * of_parameter) for elements in groups for n in elements]
    lasting = [] if at.distributed_optimizer else own
    for num in map(sum, groups):
        if at.distributed_optimizer:
            lasting.append(m.new(num * of_parameter))
        lasting.append(m.new(num * at.grads_bytes))
    if at.distributed_optimizer:
        m.drop(*own)
    for num in _updated(at) if at.is_half else ():
        copy = m.new(num * of_parameter)
        lasting.append(m.new(num * FLOAT_BYTES))
        m.drop(copy)
    return lasting


def moment_bytes(at: Layout) -> list[int]:
    """Bytes of the optimizer's two moments, which its first step makes."""
    return [n * FLOAT_BYTES for n in _updated(at) for _ in range(2)]


def gradient_copies(at: Layout) -> list[int]:
    """Bytes of gradients in fp32, made by a step of those in 16 bits; they go with the next one."""
    if at.grads_bytes == FLOAT_BYTES or not at.is_half:
        return []
    return [n * FLOAT_BYTES for n in _updated(at)]


def _updated(at: Layout) -> list[int]:
    """Elements of each tensor that this process updates: all parameters, or its part of a buffer.

    A buffer has the last parameters first, and is cut evenly: the first process has its beginning.
    """
    plain, experts = parameters(at)
    if not at.distributed_optimizer:
        return plain + experts
    replicas = at.dp * at.cp
    of_experts = at.dp * at.cp * at.tp // (at.experts.ep * at.experts.etp)
    return [
        piece
        for elements, num in ((plain, replicas), (experts, of_experts))
        for piece in _beginning(elements, max(1, num // at.optimizer_instances))
    ]


def _beginning(elements: Sequence[int], parts: int) -> Iterator[int]:
    left = -(-sum(elements) // parts)
    for num in reversed(elements):
        if left <= 0:
            return
        yield min(num, left)
        left -= num
