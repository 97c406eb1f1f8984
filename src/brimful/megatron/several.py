"""Prediction of one token more (``--mtp-num-layers 1``): a layer behind the last, and a loss of it.

What the model made of a token and the embedding of the next one are normed, joined and projected
back; a layer of the last one's kind runs on that. Both are given to the output layer.

Source: ``megatron/core/transformer/multi_token_prediction.py``, ``core/models/gpt/gpt_model.py``.

Shapes: S tokens between products, T of products.
"""

from collections.abc import Callable

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.ends import embed, embedding_gradient, head
from brimful.megatron.layout import HALF_BYTES, Layout
from brimful.megatron.linear import plain_linear
from brimful.megatron.norms import norm

RunLayer = Callable[[Chain, Block], Block]


def losses(  # noqa: PLR0913, PLR0917 - each by its name
    m: Memory, at: Layout, chain: Chain, x: Block, waiting: list[Block], run: RunLayer
) -> None:
    """Run the last norm, the layer of the next token and both losses forward.

    ``chain``: what backward does, which is given an empty block for a gradient. ``x``: [S, hidden];
    nobody holds it afterwards but what is kept. ``waiting``: as ``loss`` says.
    """
    between, whole = at.between * at.hidden * HALF_BYTES, at.tokens * at.hidden * HALF_BYTES
    normed = norm(m, at, chain, x)
    m.drop(x)
    of_words, of_token, of_model, of_both, of_layer = (Chain() for _ in range(5))
    words = embed(m, at, of_words)
    token = norm(m, at, of_token, words)
    model = norm(m, at, of_model, normed)
    m.drop(words, normed)
    both = m.new(2 * between)
    m.drop(model)
    shape = 2 * at.hidden, at.hidden // at.tp
    narrow = plain_linear(m, at, of_both, both, shape, is_cut=True)
    m.drop(both)
    if at.tp > 1:  # gathered, and what is its own a part of that
        gathered = m.new(whole)
        joined = m.new(whole)
        m.drop(gathered, narrow)
        narrow = joined
    m.drop(token)
    last = run(of_layer, narrow)
    out = norm(m, at, of_layer, last)
    m.drop(last)
    results = m.new(2 * between)
    m.drop(out)
    m.keep(results)
    heads = Chain(), Chain()
    for each in heads:
        head(m, at, each, results, waiting)

    def backward(nothing: Block) -> Block:
        of_next, of_own = heads[1].run(nothing), heads[0].run(m.new(0))
        m.scratch(at.vocab // at.tp * at.hidden * HALF_BYTES)  # a weight's gradients, of both
        gradient = m.new(2 * between)
        m.drop(of_next, of_own)
        m.keep(gradient)
        back = of_layer.run(gradient)
        if at.tp > 1:
            gathered = m.new(whole)
            m.drop(back)
            back = m.new(whole // at.tp)
            m.drop(gathered)
        back = of_both.run(back)
        m.keep(back)
        embedding_gradient(m, at, of_words.run(of_token.run(back)))
        own = of_model.run(back)
        added = m.new(between)
        m.drop(own, gradient)
        return added

    chain.add(backward)
