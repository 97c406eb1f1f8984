"""Multi-head latent attention: queries, keys and values by way of narrow latents.

Source: ``megatron/core/transformer/multi_latent_attention.py``.

Shapes: S tokens between products, T of products. Projections down are whole on every process, those
up are cut by heads.
"""

from brimful.megatron.attention import Heads, recomputed
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.norms import norm_partials, norm_statistics


def latent_attention(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run a norm, the projections and the core of attention: [S, hidden] to [T, values].

    Args:
        m: What is alive.
        at: The process.
        chain: What backward does.
        x: The input, which somebody holds.
    """
    latent = at.latent
    between = at.between * at.hidden * HALF_BYTES
    m.keep(x)
    stats = norm_statistics(m, at)
    normed = m.new(between)
    narrow = [m.new(at.between * latent.query_rank * HALF_BYTES)] if latent.query_rank else []
    positions = m.new(at.between * (latent.key_rank + latent.positions) * HALF_BYTES)
    copied = m.new(at.between * latent.key_rank * HALF_BYTES)
    if latent.is_normed:
        narrow.append(m.new(at.between * (latent.query_rank + latent.key_rank) * HALF_BYTES))

    def backward(gradient: Block) -> Block:
        first, second = m.new(between), m.new(between)
        m.drop(gradient, *narrow, copied, normed)
        added = m.new(between)
        m.drop(first, second)
        dx = m.new(between)
        m.scratch(norm_partials(at))
        m.drop(*stats, added, x)
        return dx

    chain.add(backward)
    context = recomputed(m, at, chain, _heads(m, at))
    m.drop(positions)
    return context


def _heads(m: Memory, at: Layout) -> Heads:
    """Project up, and put what has positions beside what has none: three new tensors."""
    latent, of_head = at.latent, at.tokens * at.heads // at.tp * HALF_BYTES
    queries = of_head * (latent.width + latent.positions)
    values = of_head * latent.value_width
    up = queries, of_head * (latent.width + latent.value_width)
    raw = [m.new(size) for size in up]
    kept = m.new(queries), m.new(queries), m.new(values)
    m.drop(*raw)

    def join(dq: Block, dk: Block, dv: Block) -> Block:
        of_keys = m.new(up[1])
        m.drop(dk, dv)
        narrow = m.new(at.between * latent.key_rank * HALF_BYTES)
        m.drop(of_keys)
        of_queries = m.new(up[0])
        m.drop(dq)
        whole = m.new(at.between * (latent.query_rank or at.hidden) * HALF_BYTES)
        m.drop(of_queries, narrow)
        return whole

    return Heads(
        queries=queries,
        keys=queries,
        values=values,
        context=values,
        kept=kept,
        after=(),
        together=0,
        join=join,
    )
