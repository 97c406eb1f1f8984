"""Multi-head latent attention: queries, keys and values by way of narrow latents.

Source: ``megatron/core/transformer/multi_latent_attention.py``.

Shapes: S tokens between products, T of products. Projections down are whole on every process, those
up are cut by heads.
"""

from brimful.megatron.attention import Heads, recomputed
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.linear import norm_linear, plain_linear
from brimful.megatron.norms import norm


def latent_attention(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run a norm, the projections and the core of attention: [S, hidden] to [T, values]."""
    latent = at.latent
    normed = norm(m, at, chain, x)
    down, positions = Chain(), Chain()
    query = normed
    if latent.query_rank:
        query = plain_linear(m, at, down, normed, (at.hidden, latent.query_rank), is_cut=False)
    width = latent.key_rank + latent.positions
    narrow = plain_linear(m, at, positions, normed, (at.hidden, width), is_cut=False)
    heads = _heads(m, at, (query, narrow), (down, positions))
    if latent.query_rank:
        m.drop(query)
    context = recomputed(m, at, chain, heads)
    m.drop(narrow, normed)
    return context


def _heads(m: Memory, at: Layout, narrow: tuple[Block, Block], down: tuple[Chain, Chain]) -> Heads:
    """Project up; keys get what has positions beside what has none, and queries in place.

    ``narrow``: what queries are projected from, and keys, values and positions. ``down``: what
    backward does of the projections that made them.
    """
    latent, of_head = at.latent, at.tokens * at.heads // at.tp
    queries = of_head * (latent.width + latent.positions) * HALF_BYTES
    values = of_head * latent.value_width * HALF_BYTES
    up, of_positions = (Chain(), Chain()), at.tokens * latent.positions * HALF_BYTES
    gathered = m.new(of_positions if at.sequence_parallel else 0)
    width = at.heads // at.tp * (latent.width + latent.positions)
    rank = latent.query_rank or at.hidden
    kept = _up(m, at, up[0], narrow[0], (rank, width), is_normed=latent.is_normed)
    copied = m.new(at.between * latent.key_rank * HALF_BYTES)
    width = at.heads // at.tp * (latent.width + latent.value_width)
    shape = latent.key_rank, width
    raw = _up(m, at, up[1], copied, shape, is_normed=latent.is_normed)
    m.drop(copied)
    keys = m.new(queries), m.new(values)
    m.drop(raw, gathered)

    def join(dq: Block, dk: Block, dv: Block) -> Block:
        of_keys, of_rope = m.new(at.tokens * width * HALF_BYTES), m.new(of_positions)
        m.drop(dv, dk)
        of_keys, of_queries = up[1].run(of_keys), up[0].run(dq)
        if at.sequence_parallel:
            scattered = m.new(at.between * latent.positions * HALF_BYTES)
            m.drop(of_rope)
            of_rope = scattered
        joined = m.new(at.between * (latent.key_rank + latent.positions) * HALF_BYTES)
        m.drop(of_keys, of_rope)
        first, second = down[1].run(joined), down[0].run(of_queries)
        added = m.new(at.between * at.hidden * HALF_BYTES)
        m.drop(first, second)
        return added

    return Heads(
        queries=queries,
        keys=queries,
        values=values,
        context=values,
        kept=(kept, *keys),
        after=(),
        together=0,
        join=join,
    )


def _up(  # noqa: PLR0913 - each by its name
    m: Memory, at: Layout, chain: Chain, x: Block, shape: tuple[int, int], *, is_normed: bool
) -> Block:
    inner, width = shape
    if is_normed:
        return norm_linear(m, at, chain, x, width, inner=inner)
    return plain_linear(m, at, chain, x, shape, is_cut=True)
