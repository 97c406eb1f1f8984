"""What FSDP1 adds to the runs of a micro-batch, unit by unit (ZeRO-2 and ZeRO-3).

A block is a unit, and what is in no block is another. A unit is gathered into one flat buffer, of
which its parameters are views: nothing is copied out of it. Its gradients are put together into a
flat one while they are there, which is copied where it is reduced in a wider type. What is held
until the last micro-batch of a step is that flat one, in the type that computes; ZeRO-2's units
stay gathered as long.

Of adapters nothing was derived: every layer that trains is a unit of its own then, and PEFT, which
asks for its type before it is gathered, hands a mixed recipe's a copy of its input.

Source: ``torch/distributed/fsdp`` of torch 2.13: ``_runtime_utils.py`` (``_post_forward_reshard``,
``_post_backward_hook``, ``_get_handle_to_prefetch``, ``_should_free_in_backward``),
``_flat_param.py`` (``_get_unflat_views_aligned``, whose backward puts gradients together).
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
    additions_of,
    of_part,
)
from brimful.cost.fsdp_units import Group
from brimful.cost.profiles import Run

_Events = tuple[Signed, ...]

_BLOCK = Group(
    cast=Piece.BLOCK_CAST,
    gathered=Piece.BLOCK,
    copies=(),
    whole=Piece.BLOCK,
    gradients=Piece.BLOCK_GRADIENTS,
    held=Piece.BLOCK_FLAT,
    buffer=Piece.BLOCK_BUFFER,
    shard=Piece.BLOCK_SHARD,
)
"""A unit: all shards come into its flat parameter, gradients are put together in another."""
_REST = Group(
    cast=Piece.REST_CAST,
    gathered=Piece.REST,
    copies=(),
    whole=Piece.REST,
    gradients=Piece.REST_GRADIENTS,
    held=Piece.REST_FLAT,
    buffer=Piece.REST_BUFFER,
    shard=Piece.REST_SHARD,
)


_ADDED = {Piece.BLOCK_FLAT: Piece.BLOCK_ADDED, Piece.REST_FLAT: Piece.REST_ADDED}
"""What comes in the place of a flat gradient where there is one that is held."""


def flat_additions(runs: tuple[Run, ...], way: Way) -> list[Additions]:
    """List what FSDP1 adds to each run that differs."""
    return additions_of(runs, way, _forward, _backward)


def _frees(way: Way) -> bool:
    """Whether a unit goes behind its forward."""
    return way.zero == 3  # noqa: PLR2004 - ZeRO-3


def _is_there(way: Way) -> bool:
    """Whether units are still gathered from the micro-batch before."""
    return not _frees(way) and way.accumulate == "hold" and not way.is_first


def _stays(way: Way) -> bool:
    """Whether units stay gathered behind backward."""
    return not _frees(way) and not way.reduces


@cache
def _forward(at: Neighbours, way: Way) -> Additions:
    before: _Events = _REST.gathers if at.begins and not _is_there(way) else ()
    if not at.in_block:
        return Additions(before, ())
    if not _is_there(way):
        before = (*before, *of_part(at.own, *_BLOCK.gathers))
    return Additions(before, of_part(at.own, (GO, _BLOCK.whole)) if _frees(way) else ())


@cache
def _backward(at: Neighbours, way: Way) -> Additions:
    first = at.own if at.in_block else at.behind
    before: _Events = (
        of_part(first, *_BLOCK.gathers) if at.begins and _frees(way) and not at.in_unit else ()
    )
    behind: _Events = ()
    if at.in_block:
        ahead = of_part(at.behind, *_BLOCK.gathers) if _frees(way) and not at.last_block else ()
        before = (*before, *ahead)
        behind = of_part(at.own, *_reduced(way, _BLOCK))
    if at.ends:
        behind = (*behind, *_end(way))
    return Additions(before, behind)


def _reduced(way: Way, unit: Group) -> _Events:
    """Put a unit's gradients together, let go of its parameters, and reduce them or hold them.

    What is added to a flat gradient that is held goes last: autograd has it while a hook runs.
    """
    holds = way.accumulate == "hold"
    adds = holds and not way.is_first
    last: _Events = ((GO, _ADDED[unit.held]),) if adds else ()
    gone: _Events = () if _stays(way) else ((GO, unit.whole),)
    flat = _ADDED[unit.held] if adds else unit.held
    together: _Events = ((COME, flat), (GO, unit.gradients), *gone)
    if not way.reduces:
        return (*together, *last)
    widened: _Events = ((COME, unit.buffer),) if way.widens else ()
    narrow: _Events = ((GO, unit.buffer),) if way.widens else ()
    added: _Events = () if way.is_first or holds else ((GO, unit.shard),)
    come: _Events = (*together, *widened, (COME, unit.shard))
    return (*come, *added, *narrow, (GO, unit.held), *last)


def _end(way: Way) -> _Events:
    """The rows of the embedding are added up, then what is in no block is reduced."""
    rows: _Events = ((COME, Piece.ROW_SUMS), (COME, Piece.ROW_GRADIENT))
    rows = (*rows, (GO, Piece.ROW_GRADIENT), (GO, Piece.ROW_SUMS))
    return (*rows, *_reduced(way, _REST))
