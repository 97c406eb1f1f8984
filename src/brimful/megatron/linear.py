"""Transformer Engine's linear layers, a norm before them or not, cut over tensor parallelism.

Source: ``transformer_engine/pytorch/module/{layernorm_linear,linear}.py`` of 2.20, as its own
Python runs on the pretend GPU.
"""

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.fp8 import linear_in_fp8, norm_linear_in_fp8, plain_linear_in_fp8
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.norms import norm_partials, norm_statistics


def norm_linear(  # noqa: PLR0913 - each by its name
    m: Memory, at: Layout, chain: Chain, x: Block, width: int, *, inner: int = 0
) -> Block:
    """Run a norm and a product whose columns are cut: [S, inner] to [T, width].

    S are the tokens between products, T those of products: all, gathered under sequence
    parallelism.

    ``inner``: of the input; 0: the residual stream's.
    """
    inner = inner or at.hidden
    if at.recipe:
        return norm_linear_in_fp8(m, at, chain, x, (inner, width), at.recipe)
    between, whole = at.between * inner * HALF_BYTES, at.tokens * inner * HALF_BYTES
    m.keep(x)
    stats = norm_statistics(m, at)
    normed = m.new(between)
    gathered = m.new(whole) if at.sequence_parallel else None
    out = m.new(at.tokens * width * HALF_BYTES)
    if gathered:
        m.drop(gathered)

    def backward(gradient: Block) -> Block:
        again = m.new(whole) if at.sequence_parallel else None
        dgrad = m.new(whole)
        scattered = m.new(between) if at.sequence_parallel else None
        wgrad = None if at.fuses_wgrad else m.new(width * inner * HALF_BYTES)
        m.drop(normed, *([again] if again else []))
        dx = m.new(between)
        m.scratch(norm_partials(at, inner))
        if scattered:
            m.drop(scattered)
        m.drop(*stats, dgrad, gradient, x)
        if wgrad:
            m.drop(wgrad)
        return dx

    chain.add(backward)
    return out


def plain_linear(  # noqa: PLR0913 - each by its name
    m: Memory,
    at: Layout,
    chain: Chain,
    x: Block,
    shape: tuple[int, int],
    *,
    is_cut: bool,
    saves: bool = False,
) -> Block:
    """Run a product without a norm: [S, inner] to [T, width], or to [S, width] by a whole weight.

    ``shape``: widths of the input and of the result, on this process. ``is_cut``: whether the
    weight's columns are cut over tensor parallelism. ``saves``: whether fp8 keeps the input as it
    is.
    """
    inner, width = shape
    gathers, tokens = at.sequence_parallel and is_cut, at.tokens if is_cut else at.between
    if at.recipe:
        return plain_linear_in_fp8(
            m, at, chain, x, shape=shape, is_cut=is_cut, recipe=at.recipe, saves=saves
        )
    whole = tokens * inner * HALF_BYTES
    m.keep(x)
    gathered = m.new(whole if gathers else 0)
    out = m.new(tokens * width * HALF_BYTES)
    m.drop(gathered)

    def backward(gradient: Block) -> Block:
        again, dgrad = m.new(whole if gathers else 0), m.new(whole)
        scattered = m.new(at.between * inner * HALF_BYTES) if gathers else dgrad
        wgrad = m.new(0 if at.fuses_wgrad else width * inner * HALF_BYTES)
        m.drop(again, gradient, x, wgrad, *([dgrad] if gathers else []))
        return scattered

    chain.add(backward)
    return out


def linear(  # noqa: PLR0913 - each by its name
    m: Memory, at: Layout, chain: Chain, x: Block, width: int, *, is_kept: bool = False
) -> Block:
    """Run a product whose rows are cut: [T, width] to [S, hidden].

    ``x``: the input; held by nobody else afterwards. ``is_kept``: whether something else keeps the
    input for backward, too.
    """
    if at.recipe:
        saves = is_kept and at.recipe.keeps_inputs
        return linear_in_fp8(m, at, chain, x, width=width, recipe=at.recipe, saves=saves)
    between, whole = at.between * at.hidden * HALF_BYTES, at.tokens * at.hidden * HALF_BYTES
    out = m.new(whole)
    if at.sequence_parallel:
        scattered = m.new(between)
        m.drop(out)
        out = scattered

    def backward(gradient: Block) -> Block:
        gathered = m.new(whole) if at.sequence_parallel else None
        dgrad = m.new(at.tokens * width * HALF_BYTES)
        wgrad = None if at.fuses_wgrad else m.new(at.hidden * width * HALF_BYTES)
        m.drop(gradient, *([gathered] if gathered else []))
        m.drop(x)
        if wgrad:
            m.drop(wgrad)
        return dgrad

    chain.add(backward)
    return out
