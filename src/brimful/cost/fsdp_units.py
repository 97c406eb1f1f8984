"""What FSDP2 adds to the runs of a micro-batch, unit by unit (ZeRO-2 and ZeRO-3).

A block is a unit. Its parameters are one group, which is gathered and reduced together; where
devices part its experts these are a second one, sharded over those that have the same experts.
Blocks without experts have one group beside others that have two.

In forward a group's buffer of all shards lives until the next group's is copied out. In backward
the last group of the block before is gathered while a block of one group computes, all groups of
it, last first, while a block of two does. Behind backward groups are reduced last first, and with
the first of these the buffers of the block behind are let go.

Pieces that a number of devices does not need have no bytes there (``shards.py``): one device of its
own experts gathers nothing, and copies; experts that are cut by rows are turned around.

Source: ``torch/distributed/fsdp/_fully_shard`` of torch 2.13 (``_fsdp_param_group.py``,
``_backward_prefetch``; ``_fsdp_collectives.py``, ``foreach_all_gather_copy_out`` and
``foreach_reduce``).
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import NamedTuple

from brimful.cost.additions import (
    COME,
    GO,
    Additions,
    Neighbours,
    Piece,
    Signed,
    Way,
    additions_of,
    gather,
    held_gone,
    hold,
    keep,
    left,
    neighbours,
    of_part,
)
from brimful.cost.profiles import Run

_Events = tuple[Signed, ...]


class Group(NamedTuple):
    """Parameters that are gathered and reduced together.

    Attributes:
        cast: This device's shard of the parameters, in the type that computes.
        gathered: The buffer that all shards come into.
        copies: Events by which whole parameters are made of it.
        whole: Those.
        gradients: Of them, whole.
        held: The same, in the type that they are reduced in.
        buffer: What they are reduced from.
        shard: What they are reduced to.
    """

    cast: Piece
    gathered: Piece
    copies: _Events
    whole: Piece
    gradients: Piece
    held: Piece
    buffer: Piece
    shard: Piece

    @property
    def gathers(self) -> _Events:
        """Events by which all shards come."""
        return gather(self.cast, self.gathered)


_OWN = Group(
    cast=Piece.BLOCK_CAST,
    gathered=Piece.BLOCK_GATHERED,
    copies=((COME, Piece.BLOCK),),
    whole=Piece.BLOCK,
    gradients=Piece.BLOCK_GRADIENTS,
    held=Piece.BLOCK_HELD,
    buffer=Piece.BLOCK_BUFFER,
    shard=Piece.BLOCK_SHARD,
)
EXPERTS = Group(
    cast=Piece.EXPERTS_CAST,
    gathered=Piece.EXPERTS_GATHERED,
    copies=((COME, Piece.EXPERTS), (COME, Piece.EXPERTS_TURNED), (GO, Piece.EXPERTS_TURNED)),
    whole=Piece.EXPERTS,
    gradients=Piece.EXPERTS_GRADIENTS,
    held=Piece.EXPERTS_HELD,
    buffer=Piece.EXPERTS_BUFFER,
    shard=Piece.EXPERTS_SHARD,
)
REST = Group(
    cast=Piece.REST_CAST,
    gathered=Piece.REST_GATHERED,
    copies=((COME, Piece.REST),),
    whole=Piece.REST,
    gradients=Piece.REST_GRADIENTS,
    held=Piece.REST_HELD,
    buffer=Piece.REST_BUFFER,
    shard=Piece.REST_SHARD,
)
"""What is in no block."""
_GATHER_REST: _Events = (*REST.gathers, *REST.copies)
"""It is gathered before the first block."""


def units_of(parts: Iterable[int]) -> Iterator[tuple[int, Group]]:
    """Yield what blocks hold and its groups, in the order in which they are gathered.

    What is in no block comes first. A block without parted experts has no bytes of them.

    ``parts``: of every block, which it is of those that hold other parameters (``Run.part``).
    """
    yield 0, REST
    for part in parts:
        yield part, _OWN
        yield part, EXPERTS


def sharded_additions(runs: tuple[Run, ...], way: Way) -> list[Additions]:
    """List what FSDP2 adds to each run that differs."""
    return additions_of(runs, way, _forward, _backward)


def pipelined_additions(
    runs: tuple[Run, ...], way: Way, *, is_gathered: bool, is_first: bool, has_rest: bool
) -> list[Additions]:
    """List what FSDP2 adds to each run of a pipeline's stage, of one phase.

    What backward has gathered stays until the step's last micro-batch, and so do whole gradients;
    ZeRO-3's forward lets go of a block behind it, whoever gathered it. What is in no block is
    gathered once a step.

    ``way``: how devices share the work; ``is_last`` is of no meaning, nothing is reduced here.
    ``is_gathered``: whether the blocks are there when the phase begins. ``is_first``: whether it is
    the first of its phase in the step. ``has_rest``: whether the stage has parameters that are in
    no block.
    """
    way = way._replace(is_first=is_first, is_last=False, accumulate="hold")
    found = []
    for run, at in zip(runs, neighbours(runs), strict=True):
        if run.phase == "forward":
            before, behind = _forward_in_row(at, way, is_gathered=is_gathered)
            rest = _GATHER_REST if at.begins and is_first else ()
            found.append(Additions((*rest, *before), behind))
        else:
            found.append(_backward_in_row(at, way, is_gathered=is_gathered, has_rest=has_rest))
    return found


def _forward_in_row(at: Neighbours, way: Way, *, is_gathered: bool) -> tuple[_Events, _Events]:
    if not at.in_block:
        return (), ()
    groups = _groups(at.own, way)
    is_freed = way.zero == 3  # noqa: PLR2004 - ZeRO-3
    frees = of_part(at.own, *((GO, group.whole) for group in groups)) if is_freed else ()
    if is_gathered:
        return (), frees
    rest: _Events = ((GO, Piece.REST_GATHERED),) if way.is_first else ()
    last = rest if at.first_block else (_gathered_gone(at.before, way),)
    behind = (*frees, _gathered_gone(at.own, way)) if at.last_block else frees
    return _come(at, way, last), behind


def _backward_in_row(at: Neighbours, way: Way, *, is_gathered: bool, has_rest: bool) -> Additions:
    first = at.own if at.in_block else at.behind
    is_ahead = len(_groups(first, way)) == 1 or has_rest
    before = _last_gathered(first, way) if at.begins and is_ahead and not is_gathered else ()
    behind: _Events = ()
    if at.in_block:
        if not is_gathered:
            came = _come_alone(at, way) if at.first_block and not is_ahead else _come_back(at, way)
            before = (*before, *came)
        groups = reversed(_groups(at.own, way))
        behind = tuple(chain.from_iterable(hold(way, g.gradients, g.held) for g in groups))
        behind = of_part(at.own, *behind)
    elif at.ends:
        behind = hold(way, Piece.REST_GRADIENTS, Piece.REST_HELD)[::-1]  # one large parameter
    return Additions(before, behind)


def _groups(part: int, way: Way) -> tuple[Group, ...]:
    """Return the groups of a block that holds the parameters of one of several kinds."""
    return (_OWN, EXPERTS) if part in way.parted else (_OWN,)


@cache
def _forward(at: Neighbours, way: Way) -> Additions:
    before: _Events = _GATHER_REST if at.begins else ()
    behind: _Events = ()
    if at.in_block:
        last = (GO, Piece.REST_GATHERED) if at.first_block else _gathered_gone(at.before, way)
        before = (*before, *_come(at, way, (last,)))
        if way.zero == 3:  # noqa: PLR2004 - ZeRO-3
            behind = of_part(at.own, *((GO, group.whole) for group in _groups(at.own, way)))
    gone = _gathered_gone(at.own if at.in_block else at.before, way)
    if at.in_unit:
        gone = (GO, Piece.REST_GATHERED)
    return Additions(before, (*behind, gone) if at.ends else behind)


def _come(at: Neighbours, way: Way, last: _Events) -> _Events:
    """Gather a block's groups in turn, each letting go of what was gathered last."""
    found: _Events = ()
    for group in _groups(at.own, way):
        found = (*found, *of_part(at.own, *group.gathers, *group.copies), *last)
        last = of_part(at.own, (GO, group.gathered))
    return found


def _gathered_gone(part: int, way: Way) -> Signed:
    """Let go of what a block gathered last."""
    (gone,) = of_part(part, (GO, _groups(part, way)[-1].gathered))
    return gone


@cache
def _backward(at: Neighbours, way: Way) -> Additions:
    regathers = way.zero == 3 and not at.in_unit  # noqa: PLR2004 - ZeRO-3
    first = at.own if at.in_block else at.behind
    before = _last_gathered(first, way) if at.begins and regathers else ()
    behind: _Events = ()
    if at.in_block:
        if regathers:
            before = (*before, *_come_back(at, way))
        if way.adapts and at.last_block:
            # The block whose input has no gradient: nothing tells of its end but that of all of
            # backward. Then units go in the order of the model: what is in no block before that
            # block. Source: `_root_post_backward_final_callback` of `_fsdp_state.py`.
            previous = () if at.first_block or not way.reduces else _buffers_gone(at.before, way)
            behind = ((GO, Piece.REST), *previous, *_let_go(at, way, previous=()))
        else:
            behind = _let_go(at, way, () if at.first_block else _buffers_gone(at.before, way))
    last = None if at.in_unit else at.own if at.in_block else at.before
    return Additions(before, (*behind, *_end(way, last)) if at.ends else behind)


def _last_gathered(part: int, way: Way) -> _Events:
    """Gather the last group of a block, as a unit of one group does ahead."""
    return of_part(part, *_groups(part, way)[-1].gathers)


def _come_back(at: Neighbours, way: Way) -> _Events:
    """A block's groups, and what the block before it will need.

    What is in no block is one group too, so that the first block's own parameters are not gathered
    ahead where it has experts.
    """
    groups = _groups(at.own, way)
    is_ahead = len(groups) == 1 or not (at.first_block or len(_groups(at.before, way)) == 1)
    own = () if is_ahead else groups[0].gathers
    there = chain.from_iterable((*group.copies, (GO, group.gathered)) for group in groups)
    return (*of_part(at.own, *own, *there), *_ahead(at, way))


def _come_alone(at: Neighbours, way: Way) -> _Events:
    """The groups of a block that nothing ran before, one after the other."""
    groups = _groups(at.own, way)
    every = ((*group.gathers, *group.copies, (GO, group.gathered)) for group in groups)
    return (*of_part(at.own, *chain.from_iterable(every)), *_ahead(at, way))


def _ahead(at: Neighbours, way: Way) -> _Events:
    """What the block behind this one in backward will need."""
    if at.last_block:
        return ()
    if len(_groups(at.own, way)) == 1:
        return _last_gathered(at.behind, way)
    ahead = chain.from_iterable(group.gathers for group in reversed(_groups(at.behind, way)))
    return of_part(at.behind, *ahead)


def _let_go(at: Neighbours, way: Way, previous: _Events) -> _Events:
    """Let go of a block's parameters and reduce its gradients, or hold them."""
    found: _Events = ()
    on_the_way: _Events = () if at.first_block else of_part(at.before, *left(way, _OWN.shard))
    for group in reversed(_groups(at.own, way)):
        gone: Signed = (GO, group.whole)
        if not way.reduces:
            held = hold(way, group.gradients, group.held)
            found = (*found, *of_part(at.own, gone, *held))
            continue
        reduced = _reduce_experts(way) if group is EXPERTS else _reduce_own(way)
        found = (*found, *of_part(at.own, gone), *previous, *of_part(at.own, *reduced), *on_the_way)
        previous, on_the_way = (), of_part(at.own, *left(way, group.shard))
    return found


def _buffers_gone(part: int, way: Way) -> _Events:
    """Let go of what a block was reduced from."""
    return of_part(part, *((GO, group.buffer) for group in reversed(_groups(part, way))))


def _reduce_own(way: Way) -> _Events:
    held = held_gone(way, Piece.BLOCK_GRADIENTS, Piece.BLOCK_HELD)
    return (
        *held[:-1], (COME, Piece.BLOCK_BUFFER), *held[-1:], *keep(way, Piece.BLOCK_SHARD),
    )  # fmt: skip


def _reduce_experts(way: Way) -> _Events:
    """Gradients are put in the order of shards, copied into a buffer, and reduced to a shard."""
    held = held_gone(way, Piece.EXPERTS_GRADIENTS, Piece.EXPERTS_HELD)
    added = keep(way, Piece.EXPERTS_SHARD)[1:]
    return (
        *held[:-1], (COME, Piece.EXPERTS_KEPT), (COME, Piece.EXPERTS_BUFFER), *held[-1:],
        (COME, Piece.EXPERTS_LAST), (COME, Piece.EXPERTS_SHARD),
        (COME, Piece.EXPERTS_DIVIDED), (GO, Piece.EXPERTS_DIVIDED),
        (GO, Piece.EXPERTS_LAST), (GO, Piece.EXPERTS_KEPT), *added,
    )  # fmt: skip


def _end(way: Way, last: int | None) -> _Events:
    """The rows of the embedding are added up, then what is in no block is reduced.

    ``last``: what the last block holds whose gradients were reduced; None: there are no blocks.
    """
    rows = ((COME, Piece.ROW_SUMS), (COME, Piece.ROW_GRADIENT))
    rest = () if way.adapts and last is not None else ((GO, Piece.REST),)
    gone = ((GO, Piece.ROW_GRADIENT), (GO, Piece.ROW_SUMS), *rest)
    if not way.reduces:
        return (*rows, *gone, *hold(way, Piece.REST_GRADIENTS, Piece.REST_HELD))
    block = () if last is None else _buffers_gone(last, way)
    shard = () if last is None else of_part(last, *left(way, _OWN.shard))
    held = held_gone(way, Piece.REST_GRADIENTS, Piece.REST_HELD)
    return (
        *rows, *gone, *block, *held[:-1],
        (COME, Piece.REST_BUFFER), *held[-1:],
        *keep(way, Piece.REST_SHARD), *shard,
        (GO, Piece.REST_BUFFER), *left(way, Piece.REST_SHARD),
    )  # fmt: skip
