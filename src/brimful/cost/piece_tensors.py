"""Tensor by tensor, what sharding adds: of which requests a piece is made, and on which stream.

``shards.py`` has their totals for many numbers of devices at once; of one strategy this is the
same apart, in the order in which FSDP2 makes them.

Source: ``torch/distributed/fsdp/_fully_shard`` (``_fsdp_collectives.py``): all shards come into one
buffer on the stream of gathers, copies and the buffer of gradients are on the stream that computes,
the reduced shard on that of reductions.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from brimful.cost.additions import NUM_PIECES, Piece
from brimful.cost.expert_shards import padded_experts, part_experts, same_experts
from brimful.cost.family import Family
from brimful.cost.resident import num_shards_of
from brimful.cost.shapes import Shape
from brimful.cost.shards import ROWS, computed_bytes, first_shard
from brimful.cost.spread import Array
from brimful.cost.trained import Part, Status, frozen_element, trained_recipe
from brimful.values.job import Job

COMPUTES, GATHERS, CASTS, REDUCES = 0, 1, 2, 3
NUM_STREAMS = 4
"""Numbers of streams, as FSDP2 makes them: each stage of a pipeline has its own but the first.
FSDP1 casts shards on one of their own."""
_STREAMS = {
    **dict.fromkeys(
        (Piece.BLOCK_CAST, Piece.BLOCK_GATHERED, Piece.REST_CAST, Piece.REST_GATHERED), GATHERS
    ),
    **dict.fromkeys((Piece.EXPERTS_CAST, Piece.EXPERTS_GATHERED), GATHERS),
    **dict.fromkeys((Piece.BLOCK_SHARD, Piece.REST_SHARD, Piece.EXPERTS_SHARD), REDUCES),
    **dict.fromkeys((Piece.BLOCK_AMONG, Piece.REST_AMONG, Piece.EXPERTS_AMONG), REDUCES),
}
_FLAT_STREAMS = _STREAMS | {
    Piece.BLOCK_CAST: CASTS, Piece.REST_CAST: CASTS, Piece.BLOCK: GATHERS, Piece.REST: GATHERS,
    Piece.BLOCK_BUFFER: REDUCES, Piece.REST_BUFFER: REDUCES,
}  # fmt: skip
"""The same of FSDP1, which gathers into the parameters and widens where it reduces."""
_FLAT_USED = frozenset({
    Piece.BLOCK_CAST, Piece.REST_CAST, Piece.BLOCK, Piece.REST, Piece.BLOCK_FLAT, Piece.REST_FLAT,
})  # fmt: skip
"""What FSDP1 lets go of while another stream may still use it (``record_stream``)."""
_FLAT_LIMITED = frozenset({Piece.BLOCK, Piece.REST})
OLDEST_FIRST = frozenset({
    Piece.BLOCK_FLAT, Piece.REST_FLAT,
    Piece.BLOCK_GATHERED, Piece.REST_GATHERED, Piece.EXPERTS_GATHERED, Piece.BLOCK_BUFFER,
    Piece.REST_BUFFER, Piece.EXPERTS_BUFFER, Piece.BLOCK_HELD, Piece.REST_HELD, Piece.EXPERTS_HELD,
})  # fmt: skip
"""Pieces of which the one that came first goes first; of all others, the one that came last."""


class Tensors(NamedTuple):
    """What a piece is made of.

    Attributes:
        num_bytes: Of each tensor.
        stream: Which asks for them.
        is_used: Whether another stream uses them when they go.
        is_limited: Whether the host waits where too many are gathered ahead.
    """

    num_bytes: tuple[int, ...]
    stream: int
    is_used: bool = False
    is_limited: bool = False


def piece_tensors(
    job: Job, family: Family, parts: Sequence[Part], totals: Array
) -> dict[int, Tensors]:
    """Return the tensors of every piece.

    ``parts``: blocks that hold other parameters each, and what is gathered in no block. ``totals``:
    [pieces], their bytes (``shards.part_pieces``).
    """
    if family.is_flat:
        return _flat_tensors(totals)
    num, (*blocks, rest) = num_shards_of(family), parts
    apart: dict[int, tuple[int, ...]] = {
        Piece.REST: _whole(job, rest, num),
        Piece.REST_GRADIENTS: _gradients(job, rest.trained),
        Piece.REST_HELD: _held(job, rest.trained),
    }
    experts = part_experts(job, family.ep) if family.ep > 1 else [[] for _ in blocks]
    for part, (block, stacks) in enumerate(zip(blocks, experts, strict=True)):
        first = part * NUM_PIECES
        apart[first + Piece.EXPERTS] = _experts(job, family, stacks)
        apart[first + Piece.BLOCK] = _whole(job, block, num)
        apart[first + Piece.BLOCK_GRADIENTS] = _gradients(job, block.trained)
        apart[first + Piece.BLOCK_HELD] = _held(job, block.trained)
    return {
        place: Tensors(apart.get(place, (round(totals[place]),)), _STREAMS.get(piece, COMPUTES))
        for part in range(len(blocks))
        for piece in Piece
        for place in (part * NUM_PIECES + piece,)
        if round(totals[place]) and piece not in ROWS  # which a profile marks
    }


def _flat_tensors(totals: Array) -> dict[int, Tensors]:
    """Return the tensors of every piece where a unit's parameters are one."""
    sizes = ((place, Piece(place % NUM_PIECES), round(n)) for place, n in enumerate(totals))
    return {
        place: Tensors(
            (num_bytes,),
            _FLAT_STREAMS.get(piece, COMPUTES),
            is_used=piece in _FLAT_USED,
            is_limited=piece in _FLAT_LIMITED,
        )
        for place, piece, num_bytes in sizes
        if num_bytes and piece not in ROWS
    }


def _whole(job: Job, part: Part, num_shards: int) -> tuple[int, ...]:
    """Return whole parameters where they are gathered, padding too, in the order of modules."""
    computed, own = computed_bytes(job.precision), frozen_element(job)
    narrowed = min(computed, own)
    element = trained_recipe(job).parameter if computed > 2 else computed  # noqa: PLR2004 - 16 bits
    frozen = part.every[: len(part.every) - len(part.trained)]
    sizes: dict[Status, list[int]] = {
        "frozen": [_padded(shape, num_shards) * narrowed for shape in frozen],
        "trained": [_padded(shape, num_shards) * element for shape in part.trained],
        "packed": [_padded(shape, num_shards) for shape in part.packed],
    }
    every = {status: iter(each) for status, each in sizes.items()}
    if part.order:
        return tuple(next(every[status]) for status in part.order)
    return tuple(chain.from_iterable(sizes.values()))


def _experts(job: Job, family: Family, stacks: Sequence[Shape]) -> tuple[int, ...]:
    """Return a block's stacks of experts where they are gathered."""
    element = min(computed_bytes(job.precision), frozen_element(job))
    same = same_experts(family)
    return tuple(round(padded_experts([stack], same)[0]) * element for stack in stacks)


def _gradients(job: Job, shapes: Sequence[Shape]) -> tuple[int, ...]:
    element = min(computed_bytes(job.precision), trained_recipe(job).parameter)
    return tuple(prod(shape) * element for shape in shapes)


def _held(job: Job, shapes: Sequence[Shape]) -> tuple[int, ...]:
    return tuple(prod(shape) * trained_recipe(job).gradient for shape in shapes)


def _padded(shape: Shape, num_shards: int) -> int:
    return prod(first_shard(shape, num_shards)) * num_shards
