"""A mixture of experts of Megatron-Core: router, the way of tokens to experts and back, experts.

Every expert gets as many tokens. Source: ``megatron/core/transformer/moe``: ``token_dispatcher.py``
(allgather, alltoall), ``moe_utils.py``, ``experts.py`` (grouped or one after the other). What
``CheckpointWithoutOutput`` of ``core/tensor_parallel/random.py`` is around goes with its last
reader and is made again when that one's gradient comes.

Shapes: S tokens between products, G those that are gathered for experts, P those of the experts
here, E experts.
"""

from collections.abc import Sequence

from brimful.hardware.cuda_reductions import row_sums_bytes
from brimful.megatron import deepep
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.fp8 import for_backward, quantised
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout
from brimful.megatron.mlp import shared_experts, unfused_glu
from brimful.megatron.norms import norm_partials, norm_statistics

_ROUTER_BYTES = 2 * FLOAT_BYTES + HALF_BYTES + 1
"""Of a token and an expert: logits and probabilities in fp32, those that are chosen, and which."""
_PLACE_BYTES = 8


def moe(m: Memory, at: Layout, chain: Chain, x: Block) -> Block:
    """Run a norm and the mixture: [S, hidden] to [S, hidden]."""
    between = at.between * at.hidden * HALF_BYTES
    m.keep(x)
    again = at.recomputes("layernorm")
    stats = norm_statistics(m, at)
    normed = [m.new(between)]
    if again:
        m.drop(*stats)
    shared, arriving = Chain(), list[Block]()
    # What is made again is not held by who reads it.
    given = m.new(0) if again else normed[0]
    beside = shared_experts(m, at, shared, given) if at.experts.shared_ffn else None
    router = m.new(at.between * at.experts.num * _ROUTER_BYTES)

    def backward(gradient: Block) -> Block:
        of_router = m.new(between)
        m.drop(router)
        added = m.new(between)
        m.drop(gradient, of_router)
        if arriving:
            m.drop(shared.run(arriving.pop()))  # added in place
        m.drop(*normed)
        dx = m.new(between)
        m.scratch(norm_partials(at))
        m.drop(*stats, added, x)
        return dx

    chain.add(backward)
    out = _routed(m, at, chain)
    if beside:
        routed, out = out, m.new(between)
        m.drop(routed, beside)

    def first(gradient: Block) -> Block:
        if again:
            stats[:] = norm_statistics(m, at)
            normed[:] = [m.new(between)]
        if beside:
            m.keep(gradient)
            arriving.append(gradient)
        return gradient

    if again:
        m.drop(*normed)
    chain.add(first)
    return out


def _routed(m: Memory, at: Layout, chain: Chain) -> Block:
    """Send tokens to experts, run these, and bring results back."""
    if at.experts.dispatcher == "allgather":
        permuted = _gathered(m, at, chain)
        out = _experts(m, at, chain, permuted)
        m.drop(permuted)
        return _scattered(m, at, chain, out)
    is_fused = at.experts.dispatcher == deepep.DISPATCHER
    send, bring = (deepep.sent, deepep.brought_back) if is_fused else (_sent, _brought_back)
    permuted, held = send(m, at, chain)
    out = _experts(m, at, chain, permuted)
    return bring(m, at, chain, out, (*held, permuted))


def _gathered(m: Memory, at: Layout, chain: Chain) -> Block:
    """Gather all tokens of the group into a buffer that lasts, and pick those of experts here."""
    whole = at.gathered * at.hidden * HALF_BYTES
    places = m.new(at.routed * _PLACE_BYTES)
    permuted = m.new(at.routed * at.hidden * HALF_BYTES)

    def backward(gradient: Block) -> Block:
        back = m.new(whole)
        m.drop(gradient, places)
        scattered = m.new(at.between * at.hidden * HALF_BYTES)
        m.drop(back)
        return scattered

    chain.add(backward)
    return permuted


def _scattered(m: Memory, at: Layout, chain: Chain, out: Block) -> Block:
    """Add results up at their tokens' places, and over the group."""
    whole = at.gathered * at.hidden * HALF_BYTES
    zeros = m.new(whole)
    added = m.new(whole)
    m.drop(zeros)
    result = m.new(at.between * at.hidden * HALF_BYTES)
    m.drop(added)

    def backward(gradient: Block) -> Block:
        back = m.new(whole)
        m.drop(gradient)
        picked = m.new(at.routed * at.hidden * HALF_BYTES)
        m.drop(back, out)
        return picked

    chain.add(backward)
    return result


def _sent(m: Memory, at: Layout, chain: Chain) -> tuple[Block, tuple[Block, ...]]:
    """Permute tokens by expert, exchange them, and sort what came by the experts here.

    Returns what experts are given, and what the program holds until their results are back.
    """
    copies = at.between * at.experts.topk * at.hidden * HALF_BYTES
    arrived = at.routed * at.hidden * HALF_BYTES
    places = m.new(at.between * at.experts.num * _PLACE_BYTES // 2)
    held = [m.new(copies)]
    if at.experts.ep > 1:
        held.append(m.new(copies))
    came = held.pop()
    if at.experts.etp > 1:
        held.append(came)
        came = m.new(arrived)
    if at.experts.here > 1:
        held.append(came)
        came = m.new(arrived)

    def backward(gradient: Block) -> Block:
        for needed, size in (
            (at.experts.here > 1, arrived),
            (at.experts.etp > 1, copies),
            (at.experts.ep > 1, copies),
        ):
            if needed:
                gradient = _moved(m, gradient, size)
        out = m.new(at.between * at.hidden * HALF_BYTES)
        m.drop(gradient, places)
        return out

    chain.add(backward)
    return came, tuple(held)


def _moved(m: Memory, given: Block, num_bytes: int) -> Block:
    out = m.new(num_bytes)
    m.drop(given)
    return out


def _brought_back(
    m: Memory, at: Layout, chain: Chain, out: Block, held: tuple[Block, ...]
) -> Block:
    """Sort back, exchange again, and add results up at their tokens' places.

    Over processes that cut an expert they are added up in fp32.
    """
    copies = at.between * at.experts.topk * at.hidden * HALF_BYTES
    arrived = at.routed * at.hidden * HALF_BYTES
    ends = [out]
    if at.experts.here > 1:
        ends.append(m.new(arrived))
    if at.experts.etp > 1:
        wide = _moved(m, m.new(2 * arrived), 2 * copies)
        ends.append(_moved(m, wide, copies))
    out = ends.pop()
    m.drop(*ends)
    if at.experts.ep > 1:
        out = _moved(m, out, copies)
    result = m.new(at.between * at.hidden * HALF_BYTES)
    m.drop(out, *held)

    def backward(gradient: Block) -> Block:
        back = _moved(m, gradient, copies)
        if at.experts.ep > 1:
            back = _moved(m, back, copies)
        if at.experts.etp > 1:
            back = _moved(m, _moved(m, _moved(m, back, 2 * copies), 2 * arrived), arrived)
        return _moved(m, back, arrived) if at.experts.here > 1 else back

    chain.add(backward)
    return result


def _experts(m: Memory, at: Layout, chain: Chain, permuted: Block) -> Block:
    """Run the experts here on their tokens: [P, hidden] to [P, hidden].

    One after the other takes as much as all at once but for gradients of weights, which are of one.
    Backward keeps what products were given, or what that was quantised to.
    """
    rows, width = at.routed, at.experts.width
    wide = width * at.num_halves
    weights = at.experts.here if at.experts.is_grouped else 1
    first = quantised(m, at.recipe, rows * at.hidden)
    before = m.new(rows * wide * HALF_BYTES)
    tokens = _kept(m, first, permuted)
    again = at.recomputes("moe_act")

    def activate() -> tuple[Block, Chain]:
        return _activate(m, at, rows * width, before)

    made = [] if again else [activate()]
    scaled = m.without_gradients(lambda: activate()[0], before) if again else made[0][0]
    second = quantised(m, at.recipe, rows * width)
    out = m.new(rows * at.hidden * HALF_BYTES)
    active = [] if again else [_kept(m, second, scaled)]
    if not at.experts.is_grouped and at.experts.here > 1:
        joined = m.new(rows * at.hidden * HALF_BYTES)
        m.drop(out)
        out = joined

    def backward(gradient: Block) -> Block:
        both = quantised(m, at.recipe, rows * at.hidden)
        scaled, activation = made.pop() if made else activate()
        dgrad = m.new(rows * width * HALF_BYTES)
        m.scratch(0 if at.fuses_wgrad else weights * at.hidden * width * HALF_BYTES)
        m.drop(gradient, *both, *active)
        # A checkpoint holds what it was given, its result and the gradient of that.
        held = [before, dgrad] if again else []
        m.keep(*held)
        dgrad = activation.run(dgrad)
        m.drop(*held, *([scaled] if again else []))
        both = quantised(m, at.recipe, rows * wide)
        back = m.new(rows * at.hidden * HALF_BYTES)
        m.scratch(0 if at.fuses_wgrad else weights * at.hidden * wide * HALF_BYTES)
        m.drop(dgrad, *both, tokens)
        return back

    chain.add(backward)
    if at.has_bias and at.experts.is_grouped:
        out = _biased(m, at, chain, out)
    m.drop(scaled)
    return out


def _biased(m: Memory, at: Layout, chain: Chain, out: Block) -> Block:
    """Add biases, weighed by probabilities, to what each expert made, and join the pieces."""
    tokens = at.routed // at.experts.here
    piece = tokens * at.hidden * HALF_BYTES
    pieces: list[Block] = []
    for _ in range(at.experts.here):
        weighed = m.new(piece)
        pieces.append(m.new(piece))
        m.drop(weighed)
    joined = m.new(out.num_bytes)
    m.drop(*pieces, out)

    def backward(gradient: Block) -> Block:
        for _ in range(at.experts.here):
            both = m.new(piece), m.new(piece)
            m.scratch(row_sums_bytes(tokens, at.hidden, HALF_BYTES, at.chip))
            m.drop(*both)
        return _moved(m, gradient, gradient.num_bytes)

    chain.add(backward)
    return joined


def _clamped(m: Memory, num: int, before: Block, chain: Chain) -> Block:
    """Clamp both halves of what is gated into a copy; where they were is kept with what they were.

    ``before``: both halves; backward lets go of them.
    """
    halves = [m.new(num * HALF_BYTES) for _ in range(2)]
    clamped = m.new(2 * num * HALF_BYTES)
    m.drop(*halves)

    def backward(gradient: Block) -> Block:
        masks = m.new(num), m.new(num)
        linear = m.new(num * HALF_BYTES)
        m.drop(*masks)
        mask = m.new(num)
        gate = m.new(num * HALF_BYTES)
        m.drop(mask, gradient, before)
        joined = m.new(2 * num * HALF_BYTES)
        m.drop(gate, linear)
        return joined

    chain.add(backward)
    return clamped


def _kept(m: Memory, quantised: Sequence[Block], given: Block) -> Block:
    """Hold what backward reads of a product's input: the input, or what it was quantised to."""
    if quantised:
        return for_backward(m, *quantised)
    m.keep(given)
    return given


def _activate(m: Memory, at: Layout, num: int, before: Block) -> tuple[Block, Chain]:
    """Activate and weigh by probabilities: by one kernel where gated and fused, else by several."""
    steps = Chain()
    if at.is_gated and at.fuses_glu:
        given = _clamped(m, num, before, steps) if at.is_clamped else before
        scaled = m.new(num * HALF_BYTES)

        def backward(gradient: Block) -> Block:
            out = m.new(2 * num * HALF_BYTES)
            m.drop(gradient, given)
            return out

        steps.add(backward)
        return scaled, steps
    glu = Chain()
    active = unfused_glu(m, num, before, glu) if at.is_gated else m.new(num * HALF_BYTES)
    wide = FLOAT_BYTES if at.experts.is_wide else HALF_BYTES  # probabilities in fp32 widen
    product = m.new(num * wide)
    scaled = _moved(m, product, num * HALF_BYTES) if at.experts.is_wide else product

    def backward_in_parts(gradient: Block) -> Block:
        if at.experts.is_wide:
            gradient = _moved(m, gradient, num * wide)
        of_probs, of_active = m.new(num * wide), m.new(num * wide)
        if at.experts.is_wide:
            of_active = _moved(m, of_active, num * HALF_BYTES)
        m.drop(of_probs, gradient, active)
        if at.is_gated:
            return glu.run(of_active)
        out = m.new(num * HALF_BYTES)
        m.drop(of_active, before)
        return out

    steps.add(backward_in_parts)
    return scaled, steps
