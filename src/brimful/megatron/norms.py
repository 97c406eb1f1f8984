"""Norms of Transformer Engine: what they keep of a row, and what their gradients take.

Source: ``transformer_engine/common/normalization`` of 2.20, as its own Python runs on the pretend
GPU.
"""

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout

_NORM_BLOCKS = 2
"""Rows of partial sums of a norm's weight gradient, for each multiprocessor."""


def norm_statistics(m: Memory, at: Layout) -> list[Block]:
    """Allocate what a norm of [S, hidden] keeps of each row: a deviation, and LayerNorm a mean."""
    return [m.new(at.between * FLOAT_BYTES) for _ in range(at.norm_vectors)]


def norm_partials(at: Layout, width: int = 0) -> int:
    """Bytes of partial sums of the gradient of a norm's weight, as wide as the residual or less."""
    return _NORM_BLOCKS * at.chip.num_multiprocessors * (width or at.hidden) * FLOAT_BYTES


def norm(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run a norm of [S, hidden] by itself."""
    between = at.between * at.hidden * HALF_BYTES
    m.keep(x)
    stats = norm_statistics(m, at)
    normed = m.new(between)

    def backward(gradient: Block) -> Block:
        dx = m.new(between)
        m.scratch(norm_partials(at))
        m.drop(*stats, gradient, x)
        return dx

    chain.add(backward)
    return normed
