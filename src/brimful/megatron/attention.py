"""Attention between its two projections: [T, queries, keys and values] to [T, queries].

Source: ``transformer_engine/pytorch/attention/dot_product_attention/backends.py`` of 2.20,
``megatron/core/transformer/{attention,dot_product_attention}.py``; kernels of flash-attn 2.8 and
cuDNN as ``pretend/flash_attn_kernels.py`` and ``pretend/transformer_engine`` have them.
"""

from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout

_INT_BYTES = 4


def attention(m: Memory, at: Layout, chain: Chain, qkv: Block) -> Block:
    """Run the core of attention.

    Args:
        m: What is alive.
        at: The process.
        chain: What backward does.
        qkv: What the first projection made; nobody holds it afterwards.
    """
    if at.recompute == "selective" and "core_attn" in at.recompute_modules:
        return _recomputed(m, at, chain, qkv)
    return _core(m, at, chain, qkv)


def _recomputed(m: Memory, at: Layout, chain: Chain, qkv: Block) -> Block:
    """Keep queries, keys and values alone, and run the core again in backward."""
    context = m.without_gradients(lambda: _core(m, at, Chain(), qkv), qkv)

    def backward(gradient: Block) -> Block:
        again = Chain()
        m.drop(_core(m, at, again, qkv))
        return again.run(gradient)

    chain.add(backward)
    return context


def _core(m: Memory, at: Layout, chain: Chain, qkv: Block) -> Block:
    turned = _rotate(m, at)
    if at.attention == "flash":
        return _flash(m, at, chain, qkv, turned)
    if at.attention == "fused":
        return _fused(m, at, chain, qkv, turned)
    return _unfused(m, at, chain, qkv, turned)


def _sizes(at: Layout) -> tuple[int, int, int]:
    """Bytes of queries, of keys (or values), and of all three."""
    queries, keys = at.tokens * at.queries * HALF_BYTES, at.tokens * at.keys * HALF_BYTES
    return queries, keys, queries + 2 * keys


def _rotate(m: Memory, at: Layout) -> tuple[Block, ...]:
    """Return queries and keys with their positions, where they are rotated."""
    queries, keys, _ = _sizes(at)
    return (m.new(queries), m.new(keys)) if at.has_rope else ()


def _rows(at: Layout) -> float:
    """Bytes of one number in fp32 for each row of scores."""
    return at.tokens * at.heads // at.tp * FLOAT_BYTES


def _back_to_qkv(m: Memory, at: Layout, gradients: tuple[Block, Block, Block]) -> Block:
    """Turn gradients back and put the three into one, as the first projection's result was."""
    dq, dk, dv = gradients
    queries, keys, whole = _sizes(at)
    if at.has_rope:
        turned = m.new(keys)
        m.drop(dk)
        dk = turned
        turned = m.new(queries)
        m.drop(dq)
        dq = turned
    out = m.new(whole)
    m.drop(dq, dk, dv)
    return out


def _flash(m: Memory, at: Layout, chain: Chain, qkv: Block, turned: tuple[Block, ...]) -> Block:
    queries, keys, _ = _sizes(at)
    value = m.new(keys)
    q, k, v = m.new(queries), m.new(keys), m.new(keys)
    out, rows = m.new(queries), m.new(_rows(at))
    context = m.new(queries)
    m.drop(value, *turned, qkv)

    def backward(gradient: Block) -> Block:
        dq, dk, dv = m.new(queries), m.new(keys), m.new(keys)
        sums = m.new(_rows(at))
        wide = m.new(2 * queries)
        # Fewer heads of keys: their gradients are made for each head of queries and added up.
        each = [m.new(queries) for _ in range(2 if at.groups < at.heads else 0)]
        m.drop(sums, wide, *each, gradient, q, k, v, out, rows)
        return _back_to_qkv(m, at, (dq, dk, dv))

    chain.add(backward)
    return context


def _fused(m: Memory, at: Layout, chain: Chain, qkv: Block, turned: tuple[Block, ...]) -> Block:
    queries, keys, whole = _sizes(at)
    kept = _kept(m, at, qkv, turned)
    out, rows = m.new(queries), m.new(_rows(at))
    m.keep(out)  # by the kernel, and by the projection behind it
    if turned:
        m.drop(qkv)

    def backward(gradient: Block) -> Block:
        if turned:
            dq, dk, dv = m.new(queries), m.new(keys), m.new(keys)
        else:
            dq, dk, dv = m.new(whole), m.new(0), m.new(0)
        m.drop(m.new(2 * queries), m.new(_rows(at)))
        m.drop(gradient, out, rows, *kept)
        return _back_to_qkv(m, at, (dq, dk, dv))

    chain.add(backward)
    return out


def _kept(m: Memory, at: Layout, qkv: Block, turned: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return what is kept of queries, keys and values: what the projection made, as it is.

    Rotated queries and keys are new: values are copied beside them, and the product is let go of.
    """
    return (*turned, m.new(_sizes(at)[1])) if turned else (qkv,)


def scores_bytes(at: Layout) -> int:
    """Bytes of all scores of a layer in 16 bits, on this process."""
    rows = at.micro_batch * at.heads // at.tp * at.seq_len
    return rows * (at.seq_len // at.cp) * HALF_BYTES


def _unfused(m: Memory, at: Layout, chain: Chain, qkv: Block, turned: tuple[Block, ...]) -> Block:
    queries, _, _ = _sizes(at)
    size = scores_bytes(at)
    kept = _kept(m, at, qkv, turned)
    plane = at.seq_len * at.seq_len // at.cp if at.transformer_engine else 0
    ints = [m.new(plane * _INT_BYTES) for _ in range(3)]
    mask = m.new(plane * (at.micro_batch if at.mask else 1))
    m.drop(*ints)
    wide_keys = [m.new(queries) for _ in range(2 if at.groups < at.heads else 0)]
    before = m.new(size if at.transformer_engine else 0)  # Megatron's own is made once
    scores = m.new(size)
    m.drop(before)
    steps = Chain()
    probs = _softmax(m, at, steps, scores)
    dropped = _dropped(m, at, steps, probs)
    product = m.new(queries)
    context = m.new(queries)
    m.drop(product, mask, scores, *([qkv] if turned else []))

    def backward(gradient: Block) -> Block:
        dv = m.new(queries)
        dscores = m.new(size)
        m.drop(gradient, dropped)
        dscores = steps.run(dscores)
        dq = m.new(queries)
        m.scratch(queries)
        dk = m.new(queries)
        m.scratch(queries)
        m.drop(dscores, *wide_keys, *kept)
        return _back_to_qkv(m, at, (dq, dk, dv))

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
