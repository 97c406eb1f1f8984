"""An MLP of every token: that of a dense layer, and the experts that all tokens share.

Source: ``megatron/core/transformer/mlp.py``, ``core/transformer/moe/shared_experts.py``.
"""

from brimful.hardware.cuda_reductions import row_sums_bytes
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.linear import linear, norm_linear, plain_linear


def mlp(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run a norm and the MLP of a dense layer: [S, hidden] to [S, hidden]."""
    width = at.ffn // at.tp
    return _behind(m, at, chain, norm_linear(m, at, chain, x, width * at.num_halves), width)


def shared_experts(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run the experts that every token has: [S, hidden] to [S, hidden].

    fp8 keeps what they are given as it is, which routers keep too, but by the delayed recipe.
    """
    width = at.experts.shared_ffn // at.tp
    saves = at.recipe is not None and at.recipe.keeps_inputs
    shape = at.hidden, width * at.num_halves
    before = plain_linear(m, at, chain, x, shape, is_cut=True, saves=saves)
    return _behind(m, at, chain, before, width)


def unfused_glu(m: Memory, num: int, before: Block, chain: Chain) -> Block:
    """Gate by operations of their own: ``silu(x) * (y + offset)``, whose factors are kept.

    ``before``: both halves; backward lets go of them.
    """
    size = num * HALF_BYTES
    factors = m.new(size), m.new(size)
    active = m.new(size)

    def backward(gradient: Block) -> Block:
        of_gate, of_linear = m.new(size), m.new(size)
        m.drop(gradient, *factors)
        of_half = m.new(size)
        m.drop(of_gate, before)
        joined = m.new(2 * size)
        m.drop(of_half, of_linear)
        return joined

    chain.add(backward)
    return active


def _biased(m: Memory, at: Layout, chain: Chain, before: Block) -> Block:
    """Add a bias in an operation of its own."""
    biased = m.new(before.num_bytes)
    m.drop(before)

    def backward(gradient: Block) -> Block:
        wide = gradient.num_bytes // (at.tokens * HALF_BYTES)
        m.scratch(row_sums_bytes(at.tokens, wide, HALF_BYTES, at.chip))
        return gradient

    chain.add(backward)
    return biased


def _behind(m: Memory, at: Layout, chain: Chain, before: Block, width: int) -> Block:
    """Activate, and project back."""
    if not at.fuses_glu:
        before = _biased(m, at, chain, before) if at.has_bias else before
        active = unfused_glu(m, at.tokens * width, before, chain)
        return linear(m, at, chain, active, width)
    wide = width * at.num_halves
    active = m.new(at.tokens * width * HALF_BYTES)

    def backward(gradient: Block) -> Block:
        out = m.new(at.tokens * wide * HALF_BYTES)
        m.drop(gradient)
        if at.has_bias and not at.is_gated:
            m.scratch(row_sums_bytes(at.tokens, wide, HALF_BYTES, at.chip))
        m.drop(before)
        return out

    chain.add(backward)
    return linear(m, at, chain, active, width)
