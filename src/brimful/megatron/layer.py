"""A transformer layer of Megatron-Core: attention, an MLP, and what joins them to the residual.

Source: ``megatron/core/transformer/{transformer_layer,mlp}.py``, ``core/fusions``.
"""

from msgspec.structs import replace

from brimful.megatron.attention import attention
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.cross import Encoded, crossed
from brimful.megatron.latent import latent_attention
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.linear import linear, norm_linear
from brimful.megatron.mlp import mlp
from brimful.megatron.moe import moe


def layer(  # noqa: PLR0913, PLR0917 - a layer
    m: Memory, at: Layout, chain: Chain, x: Block, index: int, encoded: Encoded | None = None
) -> Block:
    """Run one layer forward.

    ``x``: [S, hidden], the residual stream; nobody holds it afterwards but what is kept.
    ``encoded``: what an encoder made, at which a decoder's layer looks too.
    """
    if at.recipe and at.recipe.is_plain(index, at.num_layers):
        at = replace(at, recipe=None)
    if at.has_rope and at.unrotated[index]:
        at = replace(at, has_rope=False)
    inner = Chain()
    if at.latent.is_used:
        context, width = latent_attention(m, at, inner, x), at.latent.value_width
    else:
        qkv = norm_linear(m, at, inner, x, at.projected)
        context, width = attention(m, at, inner, qkv), at.channels
    out = linear(m, at, inner, context, at.heads * width // at.tp, is_kept=True)
    x = _join(m, at, chain, x, (inner, out))
    if encoded is not None:
        inner = Chain()
        x = _join(m, at, chain, x, (inner, crossed(m, at, inner, x, encoded)))
    inner = Chain()
    run = moe if at.experts.layers[index] else mlp
    return _join(m, at, chain, x, (inner, run(m, at, inner, x)))


def _join(m: Memory, at: Layout, chain: Chain, x: Block, branch: tuple[Chain, Block]) -> Block:
    """Add a branch to the residual stream, with its bias and dropout."""
    of_branch, out = branch
    size = at.between * at.hidden
    mask = m.new(size if at.hidden_dropout else 0)
    joined = m.new(size * HALF_BYTES)
    m.drop(out, x)

    def backward(gradient: Block) -> Block:
        m.keep(gradient)  # it goes on along the residual
        ahead = gradient
        if at.hidden_dropout:
            ahead = m.new(size * HALF_BYTES)
            m.drop(gradient)
        m.drop(mask)
        m.drop(of_branch.run(ahead))  # added to the residual's in place
        return gradient

    chain.add(backward)
    return joined
