"""DeepEP: tokens go once to each process that has experts of theirs, by buffers of its own.

How many arrive hangs on who chooses what: it is counted as of routers that choose at random, of
groups of experts first where they do. The buffers are made by ``cudaMalloc`` and in NVSHMEM's heap,
outside of PyTorch's allocator.

Source: ``_DeepepManager`` of ``megatron/core/transformer/moe/token_dispatcher.py``,
``moe/fused_a2a.py``; ``get_dispatch_config``, ``get_combine_config``, ``csrc/legacy/config.hpp``
and ``buffer.hpp`` of deepseek-ai/DeepEP at dd758caf (July 2026); ``permute_with_mask_map`` of
Transformer Engine.

Shapes: S tokens between products, R those that arrive, P those of the experts here, one for each.
"""

from collections.abc import Mapping
from typing import NamedTuple

from brimful.errors import InputError
from brimful.megatron.blocks import Block, Chain, Memory
from brimful.megatron.layout import FLOAT_BYTES, HALF_BYTES, Layout

DISPATCHER = "flex"
SWITCH = "--moe-enable-deepep"
NODE = 8
"""Processes that NVLink joins (``LEGACY_NUM_MAX_NVL_PEERS``)."""
_INT_BYTES, _PLACE_BYTES = 4, 8
_MOST_CHOSEN = _MOST_SCALES = 128
_META_BYTES, _CONTROL_BYTES = 8, 16
"""``SourceMeta`` of a token, and what goes in front of it through the network."""
_WORKSPACE = 32 * 2**20


class _Chunks(NamedTuple):
    """Tokens that a channel has room for: of NVLink, of the network there and back."""

    linked: int
    sent: int
    returned: int


_CHUNKS: Mapping[int, _Chunks] = {
    2: _Chunks(256, 6, 6), 4: _Chunks(256, 6, 6), 8: _Chunks(256, 6, 6),
    16: _Chunks(288, 20, 12), 24: _Chunks(288, 8, 8), 32: _Chunks(288, 8, 8),
    48: _Chunks(288, 8, 8), 64: _Chunks(288, 8, 8), 96: _Chunks(480, 12, 8),
    128: _Chunks(560, 12, 8), 144: _Chunks(720, 12, 8), 160: _Chunks(720, 12, 8),
}  # fmt: skip
"""By the processes of a group; of the network the least that is sent at once, there and back."""
_IN_NETWORK = 128


def check(at: Layout) -> None:
    """Refuse groups that DeepEP has no setting for, and routers that choose none."""
    experts, num = at.experts, at.experts.ep * at.experts.etp
    if experts.dispatcher != DISPATCHER or not experts.num:
        return
    groups, chosen = experts.route_groups, experts.route_topk
    within = experts.num // groups * min(chosen, groups)
    if experts.num % groups or chosen > groups or experts.topk > within:
        raise InputError(
            f"--moe-router-topk {experts.topk} of {chosen} of {groups} groups does not go with "
            f"--num-experts {experts.num}; change one"
        )
    each, nodes = experts.num // groups, max(num // NODE, 1)
    for held in (experts.here, experts.num // nodes):
        if held and each % held and held % each:
            raise InputError(
                f"{held} experts in one place are neither a part of a group of {each} nor several "
                f"groups, of which no share of tokens is counted; change --num-experts, "
                f"--moe-router-num-groups or ep {experts.ep}"
            )
    if num not in _CHUNKS:
        known = ", ".join(map(str, _CHUNKS))
        raise InputError(
            f"DeepEP runs groups of {known} processes, and ep {at.experts.ep} x etp "
            f"{at.experts.etp} are {num}; change one, or take --moe-token-dispatcher-type alltoall"
        )


def outside_bytes(at: Layout) -> int:
    """Return the bytes of its buffers and workspace; 0: it is not used."""
    if at.experts.dispatcher != DISPATCHER or not any(at.experts.layers):
        return 0
    num, channels = at.experts.ep * at.experts.etp, at.experts.dispatch_sms // 2
    linked, nodes = min(num, NODE), max(num // NODE, 1)
    chunks = _CHUNKS[num]
    of_token = at.hidden * HALF_BYTES + _META_BYTES
    of_token += _MOST_CHOSEN * (_PLACE_BYTES + FLOAT_BYTES) + _MOST_SCALES * FLOAT_BYTES
    by_link = channels * linked * ((2 * nodes + 3) * _INT_BYTES + chunks.linked * of_token)
    if num <= NODE:
        return by_link + _WORKSPACE
    rows = max(-(-_IN_NETWORK // each) * each for each in (chunks.sent, chunks.returned))
    of_token += _CONTROL_BYTES
    by_network = 2 * channels * nodes * ((2 * NODE + 2) * _INT_BYTES + rows * of_token)
    return by_link + by_network + _WORKSPACE


def sent(m: Memory, at: Layout, chain: Chain) -> tuple[Block, tuple[Block, ...]]:
    """Send tokens, and copy what arrives for each expert here.

    Returns what experts are given, and what the program holds until their results are back.
    """
    experts, rows = at.experts, at.arrived
    chosen = experts.topk * experts.etp
    kept = [m.new(at.between * chosen * (FLOAT_BYTES + _PLACE_BYTES))]
    kept.append(m.new(_handle_bytes(at)))
    came = m.new(rows * at.hidden * HALF_BYTES)
    told = m.new(rows * chosen * (FLOAT_BYTES + _PLACE_BYTES))
    wide = m.new(rows * experts.here * _PLACE_BYTES)
    probs = m.new(rows * experts.here * FLOAT_BYTES)
    kept.append(m.new(4 * at.routed * _PLACE_BYTES))  # places that are read and written
    kept.append(m.new(rows * experts.here))
    m.drop(wide)
    kept.append(m.new(rows * (2 * experts.here + 1) * _INT_BYTES))
    permuted = m.new(at.routed * at.hidden * HALF_BYTES)

    def backward(gradient: Block) -> Block:
        back = m.new(rows * at.hidden * HALF_BYTES)
        m.drop(gradient)
        out = m.new(at.between * at.hidden * HALF_BYTES)
        m.drop(back, *kept)
        return out

    chain.add(backward)
    return permuted, (came, told, probs)


def brought_back(m: Memory, at: Layout, chain: Chain, out: Block, held: tuple[Block, ...]) -> Block:
    """Add up what experts here made of a token and send that back: [P, hidden] to [S, hidden]."""
    rows = at.arrived * at.hidden * HALF_BYTES
    added = m.new(rows)
    m.drop(out)
    result = m.new(at.between * at.hidden * HALF_BYTES)
    m.drop(added, *held)

    def backward(gradient: Block) -> Block:
        back = m.new(rows)
        m.drop(gradient)
        picked = m.new(at.routed * at.hidden * HALF_BYTES)
        m.drop(back)
        return picked

    chain.add(backward)
    return result


def _handle_bytes(at: Layout) -> int:
    """Return what tells both ways which token goes where, but for what is of processes alone."""
    num = at.experts.ep * at.experts.etp
    if num <= NODE:
        return at.arrived * _INT_BYTES + at.between * num * (1 + _INT_BYTES)
    nodes = num // NODE
    through = at.between * nodes * at.experts.share_of(at.experts.num // nodes)
    own = at.between * (num + nodes * _INT_BYTES) + at.arrived * _META_BYTES
    return own + int(through) * NODE * _INT_BYTES
