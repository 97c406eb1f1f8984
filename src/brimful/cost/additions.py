"""What an event that sharding adds to a run brings or takes, and what it hangs on.

Owns the names of the pieces and the few events that all ways of sharding share; which of them come
when is said by ``spread.py``, ``fsdp_units.py`` and ``flat_units.py``, how large they are by
``shards.py``.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from brimful.cost.profiles import Run
from brimful.files.remembered import once_for_each
from brimful.values.strategy import Accumulate, Zero


class Piece(IntEnum):
    """What an added event brings or takes: of a block, of its experts apart, or of the rest.

    What is gathered comes as one buffer of all shards and is copied into whole parameters. Experts
    are apart where devices part them (``fsdp_units.py``); the rest is in no block. Gradients are
    put together in a flat one by FSDP1, which is added to the one that is held
    (``flat_units.py``).
    """

    BLOCK_CAST = 0
    BLOCK = 1
    BLOCK_BUFFER = 2
    BLOCK_SHARD = 3
    BLOCK_GRADIENTS = 4
    BLOCK_HELD = 5
    REST_CAST = 6
    REST = 7
    REST_BUFFER = 8
    REST_SHARD = 9
    REST_GRADIENTS = 10
    REST_HELD = 11
    ROW_SUMS = 12
    ROW_GRADIENT = 13
    BLOCK_AMONG = 14
    REST_AMONG = 15
    BLOCK_COPY = 16
    REST_COPY = 17
    BLOCK_BUFFER_COPY = 18
    REST_BUFFER_COPY = 19
    EXPERTS_CAST = 20
    EXPERTS_GATHERED = 21
    EXPERTS = 22
    EXPERTS_TURNED = 23
    EXPERTS_KEPT = 24
    EXPERTS_BUFFER = 25
    EXPERTS_DIVIDED = 26
    EXPERTS_SHARD = 27
    EXPERTS_GRADIENTS = 28
    EXPERTS_HELD = 29
    EXPERTS_AMONG = 30
    EXPERTS_LAST = 31
    BLOCK_GATHERED = 32
    REST_GATHERED = 33
    BLOCK_FLAT = 34
    REST_FLAT = 35
    BLOCK_ADDED = 36
    REST_ADDED = 37


NUM_PIECES = len(Piece)


class Way(NamedTuple):
    """How the devices of a strategy share the work, as far as events hang on it.

    Attributes:
        zero: Which states are sharded.
        accumulate: What happens to gradients between micro-batches.
        is_first: Whether it is the first micro-batch of a step.
        is_last: Whether it is the last.
        widens: Whether gradients are reduced in a wider type than they are computed in.
        tied: Whether the head is the embedding.
        parted: Blocks whose experts devices part among them, by what they hold (``Run.part``).
        adapts: Whether adapters train, so that what comes into the first block has no gradient.
        leaves: Whether reduced gradients go to the host.
        is_flat: Whether a unit's parameters are one, as FSDP1's are.
        inner: Bytes of the gradients of what is a unit of its own inside of a block.
    """

    zero: Zero
    accumulate: Accumulate
    is_first: bool
    is_last: bool
    widens: bool
    tied: bool
    parted: frozenset[int] = frozenset()
    adapts: bool = False
    leaves: bool = False
    is_flat: bool = False
    inner: frozenset[int] = frozenset()

    @property
    def reduces(self) -> bool:
        """Whether gradients are reduced behind this micro-batch."""
        return self.is_last or self.accumulate == "reduce-each"


Signed = tuple[int, int]
"""Whether it comes or goes, and the piece; of blocks that hold other parameters than the first, the
piece behind those of all such blocks before (``of_part``)."""


COME, GO = 1, -1


def of_part(part: int, *signed: Signed) -> tuple[Signed, ...]:
    """Return pieces of a block that holds the parameters of one of several kinds."""
    return tuple((sign, piece + part * NUM_PIECES) for sign, piece in signed)


def gather(cast: Piece, whole: Piece) -> tuple[Signed, ...]:
    """The shard in the type that computes, the buffer of all shards, and the first goes."""
    return (COME, cast), (COME, whole), (GO, cast)


class Additions(NamedTuple):
    """Events before and behind the events of a run."""

    before: tuple[Signed, ...]
    behind: tuple[Signed, ...]


class Neighbours(NamedTuple):
    """Where a run stands in its phase.

    Attributes:
        begins: Whether the phase begins with it.
        ends: Whether it ends with it.
        first_block: Whether it is of the phase's first block.
        last_block: Whether it is of its last.
        in_block: Whether it is of a block at all.
        before: What the block before it holds (``Run.part``).
        own: What the block holds that it is of, if it is of any.
        behind: What the block behind it holds.
        in_unit: Whether there are no blocks in the phase: the body is one unit.
    """

    begins: bool
    ends: bool
    first_block: bool
    last_block: bool
    in_block: bool
    before: int = 0
    own: int = 0
    behind: int = 0
    in_unit: bool = False


def additions_of(
    runs: tuple[Run, ...],
    way: Way,
    forward: Callable[[Neighbours, Way], Additions],
    backward: Callable[[Neighbours, Way], Additions],
) -> list[Additions]:
    """List what is added to each run of a micro-batch that differs (``told_apart``), by its phase.

    ``forward``: says it of a run of the forward pass.
    """
    return [
        (forward if run.phase == "forward" else backward)(at, way)
        for run, at in told_apart(runs).each
    ]


class Apart(NamedTuple):
    """The runs of a micro-batch, like ones told once: hundreds of blocks are of a dozen kinds.

    Attributes:
        each: Every run that differs, by itself or by where it stands, in order, and its place.
        numbers: Of all runs, which of these it is.
    """

    each: tuple[tuple[Run, Neighbours], ...]
    numbers: tuple[int, ...]


@once_for_each
def told_apart(runs: tuple[Run, ...]) -> Apart:
    """Tell runs apart."""
    known: dict[tuple[Run, Neighbours], int] = {}
    every = zip(runs, neighbours(runs), strict=True)
    numbers = tuple(known.setdefault(each, len(known)) for each in every)
    return Apart(tuple(known), numbers)


@once_for_each
def neighbours(runs: tuple[Run, ...]) -> list[Neighbours]:
    """Say of every run where it stands in its phase."""
    return list(_neighbours(runs))


def _neighbours(runs: tuple[Run, ...]) -> Iterator[Neighbours]:
    for _, together in groupby(runs, key=lambda run: run.phase):
        phase = list(together)
        blocks = [index for index, run in enumerate(phase) if is_block(run)]
        num_before = 0
        for index, run in enumerate(phase):
            num_behind = num_before + is_block(run)
            yield Neighbours(
                begins=index == 0,
                ends=index == len(phase) - 1,
                first_block=index in blocks[:1],
                last_block=index in blocks[-1:],
                in_block=is_block(run),
                before=phase[blocks[num_before - 1]].part if num_before else 0,
                own=run.part,
                behind=phase[blocks[num_behind]].part if num_behind < len(blocks) else 0,
                in_unit=not blocks,
            )
            num_before = num_behind


def is_block(run: Run) -> bool:
    """Whether a run is of a block, and not of the loss or of what is in no block."""
    return run.group in {"plain", "checkpointed"}


def hold(way: Way, gradients: int, held: int) -> tuple[Signed, ...]:
    """Keep whole gradients, in the type that they are reduced in."""
    if not way.widens:
        return ()
    return ((GO, gradients), (COME, held)) if way.is_first else ((GO, gradients),)


def held_gone(way: Way, gradients: int, held: int) -> tuple[Signed, ...]:
    """Let go of what was reduced; what is copied into the buffer is the last of it."""
    if way.is_first or way.accumulate == "reduce-each" or not way.widens:
        return ((GO, gradients),)
    return (GO, gradients), (GO, held)


_AMONG = {
    Piece.BLOCK_SHARD: Piece.BLOCK_AMONG,
    Piece.REST_SHARD: Piece.REST_AMONG,
    Piece.EXPERTS_SHARD: Piece.EXPERTS_AMONG,
}


def keep(way: Way, shard: Piece) -> tuple[Signed, ...]:
    """Keep the reduced shard, or add it to that of the micro-batches before.

    Where replicas reduce shards among themselves, each unit's stays until all of backward ends.

    Source: ``_all_reduce_state`` of ``FSDPParamGroup``.
    """
    if way.is_first or way.leaves or way.accumulate == "hold":
        return ((COME, shard),)
    return (COME, shard), *_added(shard)


def left(way: Way, shard: Piece) -> tuple[Signed, ...]:
    """Let go of a reduced shard, which is on the host when two parameters of the next are on it.

    Source: ``build/offload/gradients.py``.
    """
    return _added(shard) if way.leaves else ()


def _added(shard: Piece) -> tuple[Signed, ...]:
    return (GO, shard), (COME, _AMONG[shard])
