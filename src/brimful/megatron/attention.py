"""Attention between its projections: queries, keys and values to a context.

Source: ``transformer_engine/pytorch/attention/dot_product_attention/backends.py`` of 2.20,
``megatron/core/transformer/{attention,dot_product_attention}.py``; kernels of flash-attn 2.8 and
cuDNN as ``pretend/flash_attn_kernels.py`` and ``pretend/transformer_engine`` have them. Groups that
processes share: ``get_query_key_value_tensors`` and ``core/tensor_parallel/mappings.py``.
"""

from collections.abc import Callable
from typing import NamedTuple

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout

_INT_BYTES = 4


class Heads(NamedTuple):
    """Queries, keys and values, ready for a kernel.

    Attributes:
        queries, keys, values: Bytes of each; a context is as wide as values for every head.
        context: Bytes of the result.
        kept: Blocks that hold the three, which backward needs.
        after: Blocks that are let go of when the kernel has run.
        together: Bytes of the three where they are one block, whose gradients are one too; 0: no.
        join: Makes one gradient of those of queries, keys and values.
    """

    queries: int
    keys: int
    values: int
    context: int
    kept: tuple[Block, ...]
    after: tuple[Block, ...]
    together: int
    join: Callable[[Block, Block, Block], Block]


def attention(m: Memory, at: Layout, chain: Chain, qkv: Block) -> Block:
    """Run the core of attention on what one projection made.

    ``qkv``: [T, queries, keys and values]; nobody holds it afterwards.
    """
    return recomputed(m, at, chain, _heads(m, at, qkv))


def recomputed(m: Memory, at: Layout, chain: Chain, heads: Heads) -> Block:
    """Run the core of attention, or keep what it is given alone and run it again in backward.

    Rotated queries and keys are what it is given; values, which are a part of the product, are
    copied inside of it (``_checkpointed_attention_forward``).
    """
    if not at.recomputes("core_attn"):
        return core(m, at, chain, heads)
    copied = heads.kept[-1:] if heads.after else ()
    kept = heads.kept[:-1] if heads.after else heads.kept
    given = (*kept, *heads.after)
    m.keep(*given, *copied)
    context = m.without_gradients(lambda: core(m, at, Chain(), heads), *given, *copied)
    m.drop(*given, *copied, *copied)

    def join(dq: Block, dk: Block, dv: Block) -> Block:
        m.drop(*given)
        return heads.join(dq, dk, dv)

    def backward(gradient: Block) -> Block:
        again, copies = Chain(), [m.new(each.num_bytes) for each in copied]
        m.keep(*given)
        m.drop(core(m, at, again, heads._replace(kept=(*kept, *copies), join=join)))
        return again.run(gradient)

    chain.add(backward)
    return context


def core(m: Memory, at: Layout, chain: Chain, heads: Heads) -> Block:
    """Run the kernel of attention."""
    run = {"flash": _flash, "fused": _fused}.get(at.attention, _unfused)
    return run(m, at, chain, heads)


def scores_bytes(at: Layout) -> int:
    """Bytes of all scores of a layer in 16 bits, on this process."""
    rows = at.micro_batch * at.heads // at.tp * at.seq_len
    return rows * (at.key_len // at.cp) * HALF_BYTES


def _heads(m: Memory, at: Layout, qkv: Block) -> Heads:
    """Part the product; rotated queries and keys are new, and values copied beside them.

    Norms of heads keep the product, which they were given, with values in it. Of one that was
    gathered everything is copied: parts of it lie apart.
    """
    queries, keys = at.tokens * at.queries * HALF_BYTES, at.tokens * at.keys * HALF_BYTES
    shares = at.shares_groups
    if shares:
        qkv = _gathered(m, at, qkv)
    copies = tuple(map(m.new, (queries, keys))) if at.norms_heads and shares else ()
    normed = tuple(map(m.new, (queries, keys))) if at.norms_heads else ()
    of_heads = (width // (at.channels * HALF_BYTES) * FLOAT_BYTES for width in (queries, keys))
    stats = tuple(m.new(each) for each in of_heads for _ in range(at.norm_vectors) if normed)
    is_copied = shares or not normed  # else values stay where norms keep the product
    widths = (queries, keys, *((keys,) if is_copied else ())) if at.has_rope else ()
    turned = tuple(map(m.new, widths))
    if turned:
        m.drop(*normed)
    elif shares:
        turned = (*(normed or map(m.new, (queries, keys))), m.new(keys))
    held = (*(copies or (qkv,)), *stats) if normed else ()

    def join(dq: Block, dk: Block, dv: Block) -> Block:
        for _ in range(at.has_rope + at.norms_heads):
            back = m.new(keys)
            m.drop(dk)
            dk = back
            back = m.new(queries)
            m.drop(dq)
            dq = back
        m.drop(*held)  # each norm lets go of it when it has run
        if shares:
            return _scattered(m, at, (dq, dk, dv))
        out = m.new(queries + 2 * keys)
        m.drop(dq, dk, dv)
        return out

    return Heads(
        queries=queries,
        keys=keys,
        values=keys,
        context=queries,
        kept=turned or normed or (qkv,),
        after=(qkv,) if turned and is_copied else (),
        together=0 if turned or normed else queries + 2 * keys,
        join=join,
    )


def _gathered(m: Memory, at: Layout, qkv: Block) -> Block:
    """Gather the product of all processes of a tensor, of which one part is this one's group."""
    whole = at.tokens * at.projected * at.tp * HALF_BYTES
    rows, out = m.new(whole), m.new(whole)  # gathered along tokens, then put side by side
    m.drop(rows, qkv)
    return out


def _scattered(m: Memory, at: Layout, gradients: tuple[Block, Block, Block]) -> Block:
    """Add up the product's gradient, of which this process has a part, and keep what is its own."""
    dq, dk, dv = gradients
    of_token = at.tokens * HALF_BYTES
    queries = m.new(at.heads // at.groups * at.channels * of_token)  # all of the group
    m.drop(dq)
    group = m.new(queries.num_bytes + dk.num_bytes + dv.num_bytes)
    m.drop(queries, dk, dv)
    whole = m.new(at.projected * at.tp * of_token)
    m.drop(group)
    rows, out = m.new(whole.num_bytes), m.new(at.projected * of_token)
    m.drop(rows, whole)
    return out


def _rows(at: Layout) -> int:
    """Bytes of one number in fp32 for each row of scores."""
    return at.tokens * at.heads // at.tp * FLOAT_BYTES


def _flash(m: Memory, at: Layout, chain: Chain, heads: Heads) -> Block:
    """flash-attn: copies with the batch first are what is kept."""
    value = m.new(0 if heads.after else heads.values)
    copies = m.new(heads.queries), m.new(heads.keys), m.new(heads.values)
    out, rows = m.new(heads.context), m.new(_rows(at))
    context = m.new(heads.context)
    m.drop(value, *heads.kept, *heads.after)

    def backward(gradient: Block) -> Block:
        dq, dk, dv = m.new(heads.queries), m.new(heads.keys), m.new(heads.values)
        sums = m.new(_rows(at))
        wide = m.new(2 * heads.queries)
        # Fewer heads of keys: their gradients are made for each head of queries and added up.
        each = [m.new(heads.queries) for _ in range(2 if at.groups < at.heads else 0)]
        m.drop(sums, wide, *each, gradient, *copies, out, rows)
        return heads.join(dq, dk, dv)

    chain.add(backward)
    return context


def _fused(m: Memory, at: Layout, chain: Chain, heads: Heads) -> Block:
    """cuDNN's: its result is the context, and kept for backward too.

    Context parallelism puts a result together of several, and keeps another that is handed on.
    """
    out, rows = m.new(heads.context), m.new(_rows(at))
    context = out if at.cp == 1 else m.new(heads.context)
    if context is out:
        m.keep(out)
    m.drop(*heads.after)

    def backward(gradient: Block) -> Block:
        sizes = heads.queries, heads.keys, heads.values
        if heads.together:
            sizes = heads.together, 0, 0
        dq, dk, dv = map(m.new, sizes)
        m.drop(m.new(2 * heads.queries), m.new(_rows(at)))
        m.drop(gradient, out, rows, *heads.kept)
        return heads.join(dq, dk, dv)

    chain.add(backward)
    return context


def _unfused(m: Memory, at: Layout, chain: Chain, heads: Heads) -> Block:
    """Scores, softmax and dropout as tensors of their own."""
    size = scores_bytes(at)
    plane = at.seq_len * at.key_len // at.cp if at.transformer_engine else 0
    ints = [m.new(plane * _INT_BYTES) for _ in range(3)]
    mask = m.new(plane * (at.micro_batch if at.mask else 1))
    m.drop(*ints)
    wide_keys = [m.new(heads.queries) for _ in range(2 if at.groups < at.heads else 0)]
    before = m.new(size if at.transformer_engine else 0)  # Megatron's own is made once
    scores = m.new(size)
    m.drop(before)
    steps = Chain()
    probs = _softmax(m, at, steps, scores)
    dropped = _dropped(m, at, steps, probs)
    product = m.new(heads.context)
    context = m.new(heads.context)
    m.drop(product, mask, scores, *heads.after)

    def backward(gradient: Block) -> Block:
        dv = m.new(max(heads.values, heads.context))
        dscores = m.new(size)
        m.drop(gradient, dropped)
        dscores = steps.run(dscores)
        dq = m.new(heads.queries)
        m.scratch(heads.queries)
        dk = m.new(heads.queries)
        m.scratch(heads.queries)
        m.drop(dscores, *wide_keys, *heads.kept)
        return heads.join(dq, dk, dv)

    chain.add(backward)
    return context


def _softmax(m: Memory, at: Layout, chain: Chain, scores: Block) -> Block:
    """Scale, mask and normalise: by one kernel, or by several in fp32."""
    size = scores.num_bytes
    if at.fused_softmax:
        probs = m.new(size)
        m.keep(probs)

        def backward(gradient: Block) -> Block:
            m.drop(probs)
            return gradient

        chain.add(backward)
        return probs
    wide = m.new(2 * size)
    scaled = m.new(2 * size)
    m.drop(wide)
    kept = m.new(2 * size)
    probs = m.new(size)
    m.drop(scaled)

    def backward_in_parts(gradient: Block) -> Block:
        wide = m.new(2 * size)
        m.drop(gradient)
        of_softmax = m.new(2 * size)
        m.scratch(2 * size)
        m.drop(wide, kept)
        filled = m.new(2 * size)
        m.drop(of_softmax)
        scaled = m.new(2 * size)
        m.drop(filled)
        out = m.new(size)
        m.drop(scaled)
        return out

    chain.add(backward_in_parts)
    return probs


def _dropped(m: Memory, at: Layout, chain: Chain, probs: Block) -> Block:
    """Drop probabilities, and keep which; lets go of what was given."""
    if not at.attention_dropout:
        return probs
    dropped, mask = m.new(probs.num_bytes), m.new(probs.num_bytes // HALF_BYTES)
    m.drop(probs)

    def backward(gradient: Block) -> Block:
        out = m.new(gradient.num_bytes)
        m.drop(gradient, mask)
        return out

    chain.add(backward)
    return dropped
