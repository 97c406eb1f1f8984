"""Parameters, gradients and optimizer states of a stage.

Source: ``megatron/core/distributed/param_and_grad_buffer.py``, ``core/optimizer/``.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import replace

from brimful.megatron.blocks import Block, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout

Shape = tuple[int, int]
"""Rows and columns of a matrix on a process."""


def layer_parameters(at: Layout, *, is_mixture: bool) -> tuple[list[int], list[int]]:
    """Elements of each parameter of a layer on this process, and of those of experts alone."""
    norm = [at.hidden] * at.norm_vectors
    of_attention = [*norm, *(_latent(at) if at.latent.is_used else _attention(at)), *norm]
    if not is_mixture:
        return of_attention + _mlp(at, at.ffn // at.tp), []
    shared = _mlp(at, at.experts.shared_ffn // at.tp) if at.experts.shared_ffn else []
    router = [at.experts.num * at.hidden, *([at.experts.num] if at.has_bias else [])]
    each = _mlp(at, at.experts.width)
    return [*of_attention, *router, *shared], each * at.experts.here


def attention_shapes(at: Layout) -> list[Shape]:
    """Return [rows, columns] of the matrices of an attention on this process.

    Of latent attention the projections down are whole, and those up are cut by heads.
    """
    if not at.latent.is_used:
        return [(at.projected, at.hidden), (at.hidden, at.queries)]
    latent, heads = at.latent, at.heads // at.tp
    rank = latent.query_rank or at.hidden
    return [
        *([(rank, at.hidden)] if latent.query_rank else []),
        (heads * (latent.width + latent.positions), rank),
        (latent.key_rank + latent.positions, at.hidden),
        (heads * (latent.width + latent.value_width), latent.key_rank),
        (at.hidden, heads * latent.value_width),
    ]


def mlp_shapes(at: Layout, width: int) -> list[Shape]:
    """Return [rows, columns] of the two matrices of an MLP, or of an expert.

    ``width``: of what is between them, of one half where it is gated.
    """
    return [(width * at.num_halves, at.hidden), (at.hidden, width)]


def joining_shape(at: Layout) -> Shape:
    """Return [rows, columns] of what projects a token and the embedding of the next back."""
    return at.hidden // at.tp, 2 * at.hidden


def _attention(at: Layout) -> list[int]:
    qkv, out = map(math.prod, attention_shapes(at))
    return [
        qkv, *([at.projected] if at.qkv_bias else []),
        out, *([at.hidden] if at.has_bias else []),
        *([at.channels] * 2 * at.norm_vectors if at.norms_heads else []),
        *([at.heads // at.tp] if at.learns_offset else []),
    ]  # fmt: skip


def _latent(at: Layout) -> list[int]:
    *before, out = map(math.prod, attention_shapes(at))
    ranks = at.latent.query_rank or at.hidden, at.latent.key_rank  # a norm before each product up
    norms = (rank for rank in ranks for _ in range(at.norm_vectors) if at.latent.is_normed)
    return [*before, *norms, out]


def _mlp(at: Layout, width: int) -> list[int]:
    first, second = mlp_shapes(at, width)
    return [
        math.prod(first), *([first[0]] if at.has_bias else []),
        math.prod(second), *([at.hidden] if at.has_bias else []),
    ]  # fmt: skip


def _at_rest(at: Layout) -> Layout:
    """Return a process whose states are the same, whatever its micro-batches and recomputation."""
    return replace(
        at, micro_batch=1, num_micro=1, group=1,
        recompute="", recompute_layers=1, recompute_method="uniform", recompute_modules=(),
    )  # fmt: skip


def quantised_weights(at: Layout) -> tuple[list[int], list[int]]:
    """Elements of each matrix of the stage that is multiplied in fp8, and of those of experts."""
    return _quantised_weights(_at_rest(at))


@lru_cache(maxsize=4096)
def _quantised_weights(at: Layout) -> tuple[list[int], list[int]]:
    found: list[Shape] = []
    of_experts: list[Shape] = []
    for number in at.numbers_here if at.recipe else ():
        if at.recipe and at.recipe.is_plain(number, at.num_layers):
            continue
        found += attention_shapes(at)
        if at.experts.layers[number]:
            of_experts += mlp_shapes(at, at.experts.width) * at.experts.here
            found += mlp_shapes(at, at.experts.shared_ffn // at.tp) if at.experts.shared_ffn else []
        else:
            found += mlp_shapes(at, at.ffn // at.tp)
    if at.recipe and at.predicts_more and at.is_last:
        found.append(joining_shape(at))
    return [math.prod(each) for each in found], [math.prod(each) for each in of_experts]


def parameters(at: Layout) -> tuple[list[int], list[int]]:
    """Elements of each parameter of the stage, and of those of experts alone."""
    return _parameters(_at_rest(at))


@lru_cache(maxsize=4096)
def _parameters(at: Layout) -> tuple[list[int], list[int]]:
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
    if at.is_last and at.predicts_more:  # three norms, what joins, and an embedding of its own
        found += [*([at.hidden] * 3 * at.norm_vectors), math.prod(joining_shape(at))]
        found += [] if at.is_first else [rows]
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


def state_bytes(at: Layout) -> int:
    """Bytes of parameters, gradients, fp32 copies and moments together."""
    return _state_bytes(_at_rest(at))


@lru_cache(maxsize=4096)
def _state_bytes(at: Layout) -> int:
    return sum(model_bytes(at)) + sum(moment_bytes(at))


def model_bytes(at: Layout) -> list[int]:
    """Bytes of parameters, gradients and fp32 copies, allocation by allocation."""
    own = [] if at.distributed_optimizer else _own_bytes(at)
    return [
        *own,
        *_buffer_bytes(at),
        *_narrow_bytes(at),
        *(FLOAT_BYTES * num for num in _copied(at)),
    ]


class Buffer(NamedTuple):
    """Parameters whose gradients lie in one buffer.

    Attributes:
        elements: Of each.
        parameter_bytes: Of an element, in a buffer of parameters; 0: these are in none.
        replicas: Processes over which it is sharded.
    """

    elements: Sequence[int]
    parameter_bytes: int
    replicas: int


def buffers(at: Layout) -> list[Buffer]:
    """Return the buffers of a process: of dense layers and of experts, each of one type."""
    return _buffers(_at_rest(at))


@lru_cache(maxsize=4096)
def _buffers(at: Layout) -> list[Buffer]:
    of_parameter = _parameter_bytes(at)
    of_experts = at.dp * at.cp * at.tp // (at.experts.ep * at.experts.etp)
    gathered = at.recipe if at.recipe and at.recipe.gathers_parameters else None
    narrow = quantised_weights(at) if gathered else ([], [])
    found: list[Buffer] = []
    for elements, quantised, num in zip(
        parameters(at), narrow, (at.dp * at.cp, of_experts), strict=True
    ):
        replicas = max(1, num // at.optimizer_instances)
        rest = _without(elements, quantised) if quantised else elements
        if gathered and quantised:
            found.append(Buffer(quantised, gathered.in_a_buffer, replicas))
        if rest:
            found.append(Buffer(rest, of_parameter, replicas))
    return found


def _without(elements: Sequence[int], others: Sequence[int]) -> list[int]:
    left, rest = Counter(others), list[int]()
    for each in elements:
        if left[each]:
            left[each] -= 1
        else:
            rest.append(each)
    return rest


def load(m: Memory, at: Layout) -> list[Block]:
    """Build the model and its optimizer; return what lasts.

    Gradients lie in one buffer, those of experts in another, and under a distributed optimizer
    parameters too, which are built each by itself before. fp32 copies are made of copies.
    """
    own = [m.new(num_bytes) for num_bytes in _own_bytes(at)]
    lasting = [] if at.distributed_optimizer else own
    lasting += [m.new(num_bytes) for num_bytes in (*_buffer_bytes(at), *_narrow_bytes(at))]
    if at.distributed_optimizer:
        m.drop(*own)
    for num in _copied(at):
        copy = m.new(num * _parameter_bytes(at))
        lasting.append(m.new(num * FLOAT_BYTES))
        m.drop(copy)
    return lasting


def _parameter_bytes(at: Layout) -> int:
    return HALF_BYTES if at.is_half else FLOAT_BYTES


def _own_bytes(at: Layout) -> list[int]:
    """Bytes of each parameter as it is built."""
    return [n * _parameter_bytes(at) for each in buffers(at) for n in each.elements]


def _buffer_bytes(at: Layout) -> Iterator[int]:
    """Yield the bytes of each buffer of parameters, if there is one, and of their gradients."""
    for each in buffers(at):
        num = sum(each.elements)
        if at.distributed_optimizer:
            yield num * each.parameter_bytes
        yield num * at.grads_bytes


def _narrow_bytes(at: Layout) -> list[int]:
    """Bytes of each gradient in 16 bits that is kept beside its sum."""
    return _own_bytes(at) if at.keeps_narrow else []


def _copied(at: Layout) -> list[int]:
    """Elements of each fp32 copy that Megatron makes of a parameter, or of its part."""
    is_made = at.is_half and not at.own_master_bytes and not at.updates_on_host
    return _updated(at) if is_made else []


def moment_bytes(at: Layout) -> list[int]:
    """Bytes of the optimizer's two moments, and of its own copies, which its first step makes."""
    if at.updates_on_host:
        return []
    made = (*at.moments_bytes, *([at.own_master_bytes] if at.own_master_bytes else ()))
    return [n * each for n in _updated(at) for each in made]


def widened_bytes(at: Layout) -> list[int]:
    """Bytes of states in fp32 that a step works on in place of those in fewer bits."""
    num = 0 if at.updates_on_host else at.num_widened
    return [n * FLOAT_BYTES for n in _updated(at) for _ in range(num)]


def gradient_copies(at: Layout) -> list[int]:
    """Bytes of gradients in fp32, made by a step of those in 16 bits; they go with the next one."""
    is_taken = at.own_master_bytes or at.updates_on_host  # as they are
    if at.grads_bytes == FLOAT_BYTES or not at.is_half or is_taken:
        return []
    return [n * FLOAT_BYTES for n in _updated(at)]


def _updated(at: Layout) -> list[int]:
    """Elements of each tensor that this process updates: all parameters, or its part of a buffer.

    A buffer has the last parameters first, and is cut evenly: the first process has its beginning.
    """
    if not at.distributed_optimizer:
        return [num for each in buffers(at) for num in each.elements]
    return [piece for each in buffers(at) for piece in _beginning(each.elements, each.replicas)]


def _beginning(elements: Sequence[int], parts: int) -> Iterator[int]:
    left = -(-sum(elements) // parts)
    for num in reversed(elements):
        if left <= 0:
            return
        yield min(num, left)
        left -= num
