"""The ends of a model: the embedding of the first stage, the output layer and loss of the last.

Source: ``megatron/core/models/gpt/gpt_model.py``, ``core/fusions/fused_cross_entropy.py``,
``core/tensor_parallel/{layers,cross_entropy}.py``.
"""

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout
from brimful.megatron.norms import norm, norm_partials, norm_statistics

_INDEX_BYTES = 8


def embed(m: Memory, at: Layout, chain: Chain) -> Block:
    """Look tokens up: [S, hidden]."""
    whole, size = at.tokens * at.hidden * HALF_BYTES, at.between * at.hidden
    words = m.new(whole)
    if at.sequence_parallel:
        out = m.new(size * HALF_BYTES)
        m.drop(words)
        words = out
    if at.has_positions:
        places = m.new(whole)
        added = m.new(whole)
        turned = m.new(size * HALF_BYTES)
        m.drop(added, words, places)
    else:
        turned = m.new(size * HALF_BYTES)
        m.drop(words)
    if not at.hidden_dropout:
        return turned
    out, mask = m.new(size * HALF_BYTES), m.new(size)
    m.drop(turned)

    def backward(gradient: Block) -> Block:
        before = m.new(size * HALF_BYTES)
        m.drop(gradient, mask)
        return before

    chain.add(backward)
    return out


def embedding_gradient(m: Memory, at: Layout, gradient: Block) -> None:
    """Add the gradient of the embedding to where gradients are kept."""
    m.scratch(at.vocab // at.tp * at.hidden * HALF_BYTES)
    m.drop(gradient)


def end_of_encoder(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run an encoder's last norm: its result, which a decoder's layers hold until backward.

    ``chain``: what backward does: of the decoder's embedding's gradient, which ends there, too.
    ``x``: [S, hidden]; nobody holds it afterwards but what is kept.
    """
    between = at.between * at.hidden * HALF_BYTES
    stats = norm_statistics(m, at)
    normed = m.new(between)

    def backward(gradient: Block) -> Block:
        embedding_gradient(m, at, gradient)
        added, dx = m.new(between), m.new(between)
        m.scratch(norm_partials(at))
        m.drop(added, normed, *stats, x)
        return dx

    chain.add(backward)
    return normed


def loss(m: Memory, at: Layout, chain: Chain, x: Block, waiting: list[Block]) -> None:
    """Run the last norm, the output layer and the loss forward.

    ``chain``: what backward does, which is given an empty block for a gradient. ``x``: [S, hidden];
    nobody holds it afterwards but what is kept. ``waiting``: what the output layer's weight is yet
    to be given a gradient from, two blocks of a micro-batch; backward adds to it where that is
    deferred.
    """
    normed = norm(m, at, chain, x)
    m.drop(x)
    head(m, at, chain, normed, waiting)


def head(m: Memory, at: Layout, chain: Chain, normed: Block, waiting: list[Block]) -> None:
    """Run the output layer and the loss forward, as ``loss`` says.

    ``normed``: [S, hidden]; nobody holds it afterwards but what is kept.
    """
    between, whole = at.between * at.hidden * HALF_BYTES, at.tokens * at.hidden * HALF_BYTES
    num = at.tokens * at.vocab // at.tp
    # BERT's head: a product, its activation and a norm; each keeps what it was given.
    before = [m.new(between) for _ in range(3 * at.is_bert)]
    logits = m.new(num * HALF_BYTES)
    if at.has_output_bias:
        biased = m.new(num * HALF_BYTES)
        m.drop(logits)
        logits = biased
    small = m.new(at.tokens * (4 * _INDEX_BYTES + 3 * FLOAT_BYTES))
    in_place = at.loss == "te"  # over what is kept of the logits: a copy, or themselves
    wide = m.new(num * (HALF_BYTES * at.loss_copies if in_place else FLOAT_BYTES))
    # Compiled, what is written over is first made beside: in fp32, forward and backward.
    copied = num * FLOAT_BYTES if at.loss == "native" else 0
    m.scratch(max(copied, at.tokens * FLOAT_BYTES))
    m.drop(small)
    if in_place and not at.loss_copies:
        m.drop(wide)
        wide = logits
    else:
        m.drop(logits)

    def backward(nothing: Block) -> Block:
        m.drop(nothing)
        dlogits = wide
        if not in_place:
            beside = m.new(copied)
            dlogits = m.new(num * HALF_BYTES)
            m.drop(beside, wide)
        dgrad = m.new(whole)
        if at.sequence_parallel:
            scattered = m.new(between)
            m.drop(dgrad)
            dgrad = scattered
        if len(waiting) // 2 < at.num_deferred:
            m.keep(dlogits, normed)
            waiting.extend((dlogits, normed))
        else:
            m.scratch(0 if at.fuses_wgrad else at.vocab // at.tp * at.hidden * HALF_BYTES)
        m.drop(dlogits, normed, *before)
        return dgrad

    chain.add(backward)
