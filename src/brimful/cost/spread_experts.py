"""What FSDP2 adds where devices part a block's experts: two groups of parameters in one unit.

A block's own parameters are sharded over all devices that see different samples, its experts over
those that have the same ones. FSDP2 gathers and reduces each group by itself: forward gathers the
block's, then its experts; while the experts of a block come back for backward, those of the block
before are gathered ahead, then that block's own. Behind backward the experts are reduced first,
when the buffers of the block behind it, of both groups, are let go.

Pieces that a number of devices does not need have no bytes there (``shards.py``): one device of its
own experts gathers nothing, and copies; experts that are cut by rows are turned around.

Source: ``torch/distributed/fsdp/_fully_shard`` of torch 2.13 (``_fsdp_param_group.py``,
``_backward_prefetch``; ``_fsdp_collectives.py``, ``foreach_all_gather_copy_out`` and
``foreach_reduce``).
"""

from functools import cache

from brimful.cost.additions import (
    COME,
    GO,
    Additions,
    Neighbours,
    Piece,
    Signed,
    Way,
    gather,
    held_gone,
    hold,
    keep,
    neighbours,
)
from brimful.cost.profiles import Run

_OWN = gather(Piece.BLOCK_CAST, Piece.BLOCK_GATHERED)
_REST = (*gather(Piece.REST_CAST, Piece.REST_GATHERED), (COME, Piece.REST))
_EXPERTS = gather(Piece.EXPERTS_CAST, Piece.EXPERTS_GATHERED)
_THERE: tuple[Signed, ...] = (
    (COME, Piece.EXPERTS),
    (COME, Piece.EXPERTS_TURNED),
    (GO, Piece.EXPERTS_TURNED),
)
_GATHERED_GONE: Signed = (GO, Piece.EXPERTS_GATHERED)


def parted_additions(runs: tuple[Run, ...], way: Way) -> list[Additions]:
    """List what FSDP2 adds to each run of a micro-batch.

    Args:
        runs: Of the whole micro-batch.
        way: How devices share the work.
    """
    return [
        (_forward if run.phase == "forward" else _backward)(at, way)
        for run, at in zip(runs, neighbours(runs), strict=True)
    ]


@cache
def _forward(at: Neighbours, way: Way) -> Additions:
    before: tuple[Signed, ...] = _REST if at.begins else ()
    behind: tuple[Signed, ...] = ()
    if at.in_block:
        previous = (GO, Piece.REST_GATHERED) if at.first_block else _GATHERED_GONE
        own = (*_OWN, (COME, Piece.BLOCK), previous)
        before = (*before, *own, *_EXPERTS, *_THERE, (GO, Piece.BLOCK_GATHERED))
        if way.zero == 3:  # noqa: PLR2004 - ZeRO-3
            behind = ((GO, Piece.BLOCK), (GO, Piece.EXPERTS))
    return Additions(before, (*behind, _GATHERED_GONE) if at.ends else behind)


@cache
def _backward(at: Neighbours, way: Way) -> Additions:
    regathers = way.zero == 3  # noqa: PLR2004 - ZeRO-3
    before: tuple[Signed, ...] = _EXPERTS if at.begins and regathers else ()
    behind: tuple[Signed, ...] = ()
    if at.in_block:
        if regathers:
            before = (*before, *_come_back(at))
        behind = _reduce(way, is_first=at.first_block)
        if way.adapts:
            behind = _reduce_adapters(way, at)
    return Additions(before, (*behind, *_end(way)) if at.ends else behind)


def _come_back(at: Neighbours) -> tuple[Signed, ...]:
    """The block's own parameters, its experts, and what the block before it will need."""
    own = _OWN if at.first_block else ()
    ahead = () if at.last_block else (*_EXPERTS, *_OWN)
    block: tuple[Signed, ...] = ((COME, Piece.BLOCK), (GO, Piece.BLOCK_GATHERED))
    return (*own, *block, *_THERE, _GATHERED_GONE, *ahead)


def _reduce(way: Way, *, is_first: bool) -> tuple[Signed, ...]:
    """Experts go and are reduced, then the block's own parameters."""
    gone, own_gone = (GO, Piece.EXPERTS), (GO, Piece.BLOCK)
    if not way.reduces:
        experts = hold(way, Piece.EXPERTS_GRADIENTS, Piece.EXPERTS_HELD)
        return (gone, *experts, own_gone, *hold(way, Piece.BLOCK_GRADIENTS, Piece.BLOCK_HELD))
    buffers: tuple[Signed, ...] = ((GO, Piece.EXPERTS_BUFFER), (GO, Piece.BLOCK_BUFFER))
    previous = () if is_first else buffers
    return (gone, *previous, *_reduce_experts(way), own_gone, *_reduce_own(way))


def _reduce_adapters(way: Way, at: Neighbours) -> tuple[Signed, ...]:
    """Experts that are frozen go and nothing of them is reduced.

    The block whose input has no gradient ends with all of backward: then units go in the order of
    the model (``spread._last_without_gradient``).
    """
    buffer: Signed = (GO, Piece.BLOCK_BUFFER)
    previous = () if at.first_block or not way.reduces else (buffer,)
    gone: tuple[Signed, ...] = ((GO, Piece.EXPERTS), (GO, Piece.BLOCK))
    held = hold(way, Piece.BLOCK_GRADIENTS, Piece.BLOCK_HELD)
    reduced = _reduce_own(way) if way.reduces else held
    if at.last_block:
        return ((GO, Piece.REST), *previous, *gone, *reduced)
    return (*gone, *previous, *reduced)


def _reduce_experts(way: Way) -> tuple[Signed, ...]:
    """Gradients are put in the order of shards, copied into a buffer, and reduced to a shard."""
    held = held_gone(way, Piece.EXPERTS_GRADIENTS, Piece.EXPERTS_HELD)
    return (
        *held[:-1], (COME, Piece.EXPERTS_KEPT), (COME, Piece.EXPERTS_BUFFER), *held[-1:],
        (COME, Piece.EXPERTS_LAST), (COME, Piece.EXPERTS_SHARD),
        (COME, Piece.EXPERTS_DIVIDED), (GO, Piece.EXPERTS_DIVIDED),
        (GO, Piece.EXPERTS_LAST), (GO, Piece.EXPERTS_KEPT), *_added(way, Piece.EXPERTS_SHARD),
    )  # fmt: skip


def _added(way: Way, shard: Piece) -> tuple[Signed, ...]:
    """Let go of a shard that was added to that of the micro-batches before."""
    return keep(way, shard)[1:]


def _reduce_own(way: Way) -> tuple[Signed, ...]:
    held = held_gone(way, Piece.BLOCK_GRADIENTS, Piece.BLOCK_HELD)
    return (
        *held[:-1], (COME, Piece.BLOCK_BUFFER), *held[-1:], *keep(way, Piece.BLOCK_SHARD),
    )  # fmt: skip


def _end(way: Way) -> tuple[Signed, ...]:
    """The rows of the embedding are added up, then what is in no block is reduced."""
    rows: tuple[Signed, ...] = ((COME, Piece.ROW_SUMS), (COME, Piece.ROW_GRADIENT))
    rest: tuple[Signed, ...] = () if way.adapts else ((GO, Piece.REST),)
    gone: tuple[Signed, ...] = ((GO, Piece.ROW_GRADIENT), (GO, Piece.ROW_SUMS), *rest)
    if not way.reduces:
        return (*rows, *gone, *hold(way, Piece.REST_GRADIENTS, Piece.REST_HELD))
    held = held_gone(way, Piece.REST_GRADIENTS, Piece.REST_HELD)
    return (
        *rows, *gone, (GO, Piece.EXPERTS_BUFFER), (GO, Piece.BLOCK_BUFFER),
        *held[:-1], (COME, Piece.REST_BUFFER), *held[-1:],
        *keep(way, Piece.REST_SHARD), (GO, Piece.REST_BUFFER),
    )  # fmt: skip
