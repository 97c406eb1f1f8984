"""What a decoder's layer has beside its own attention: T5's attention to an encoder's result.

Source: ``megatron/core/models/T5/t5_spec.py``, ``core/transformer/attention.py``.

Shapes: S tokens of the decoder between products, T of products, E of the encoder.
"""

from typing import NamedTuple

from msgspec.structs import replace

from brimful.megatron.attention import Heads, recomputed
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.linear import linear
from brimful.megatron.norms import norm_partials, norm_statistics


class Encoded(NamedTuple):
    """An encoder's result.

    Attributes:
        out: [E, hidden], which the encoder's caller holds.
        at: The encoder.
    """

    out: Block
    at: Layout


def crossed(m: Memory, at: Layout, chain: Chain, x: Block, encoded: Encoded) -> Block:
    """Run a norm, the projections of both sides, attention and the projection back.

    What comes back to the encoder's result is added up there, in a gradient that lasts.
    """
    between = at.between * at.hidden * HALF_BYTES
    of_encoder = encoded.at.between * at.hidden * HALF_BYTES
    m.keep(x)
    stats = norm_statistics(m, at)
    normed = m.new(between)

    def backward(gradient: Block) -> Block:
        m.scratch(of_encoder)
        dgrad = m.new(at.tokens * at.hidden * HALF_BYTES)
        m.drop(normed, gradient)
        dx = m.new(between)
        m.scratch(norm_partials(at))
        m.drop(*stats, dgrad, x)
        return dx

    chain.add(backward)
    looking = replace(at, key_len=encoded.at.seq_len)
    context = recomputed(m, looking, chain, _heads(m, at, encoded.at))
    return linear(m, at, chain, context, at.queries)


def _heads(m: Memory, at: Layout, encoder: Layout) -> Heads:
    queries = at.tokens * at.queries * HALF_BYTES
    keys = encoder.tokens * at.keys * HALF_BYTES
    kept = m.new(2 * keys), m.new(queries)

    def join(dq: Block, dk: Block, dv: Block) -> Block:
        m.drop(m.new(2 * keys), dk, dv)
        return dq

    return Heads(
        queries=queries,
        keys=keys,
        values=keys,
        context=queries,
        kept=kept,
        after=(),
        together=0,
        join=join,
    )
