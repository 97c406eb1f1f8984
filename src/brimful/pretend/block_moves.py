"""What a block did on a tape between two moments, in words that are equal for a block like it.

Rows are named: a block's own are numbered as it makes them, forward first; what comes in and the
gradient that comes back have names of their own. What accumulates gradients (and DDP, which acts
then) is the program's and no block's: a move says only that it happens. Knows nothing of autograd.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from brimful.pretend.blocks import UnlikeBlocksError
from brimful.pretend.recording_builder import Facts, RecordingBuilder, Spot

INCOMING, GRADIENT, SHARED = -1, -2, -3
"""Names of the rows of what a block is given, of the gradient of what it hands on, and, from the
last on downwards, of what it is given that others are given too."""
NOTHING = -(10**6)
"""In the place of a row's name where a backward hands nothing on."""
_BLOCK = "<block>"
"""Stands for a block's path, where an owner begins with it."""


class Like(NamedTuple):
    """What a tensor that stands for another one has to be.

    Attributes:
        shape: Of this device's part.
        stride: Of it.
        dtype: Of its elements.
        spec: Of a ``DTensor``, of which it is a part; None: it is the whole.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    spec: Any = None


class Make(NamedTuple):
    """An allocation; its owner is told from the block on."""

    name: int
    facts: Facts


class Free(NamedTuple):
    """A free of a row by its name."""

    name: int


class Cast(NamedTuple):
    """A weight's copy, just made, enters autocast's cache; parameters are numbered in a block."""

    name: int
    parameter: int
    like: Like


class Accumulate(NamedTuple):
    """A gradient is handed over: what accumulates it frees or keeps it."""

    name: int
    parameter: int
    like: Like


class Work(NamedTuple):
    """What an operation did; see ``OpCost``."""

    op: str
    matrix_flops: int
    attention_flops: int
    moved_bytes: tuple[int, ...]


class Ask(NamedTuple):
    """A library's workspace is needed, which whoever needs it first makes, for all."""

    handle: str


Move = Make | Free | Cast | Accumulate | Work | Ask


class Done(NamedTuple):
    """A forward or a backward of a block.

    Attributes:
        moves: In order.
        name: Of the row that it hands on.
        like: What it hands on.
    """

    moves: tuple[Move, ...]
    name: int
    like: Like


class Aside(NamedTuple):
    """A gradient that was accumulated, and what of the tape is not the block's.

    Attributes:
        start: Before.
        stop: After.
        row: Of the gradient.
        parameter: Whose, by number.
        like: The gradient.
    """

    start: Spot
    stop: Spot
    row: int
    parameter: int
    like: Like


class Stretch(NamedTuple):
    """What of a tape is a block's.

    Attributes:
        start: Where it begins.
        stop: Where it ends.
        path: Of the block.
        asides: What is not its own, in order.
        casts: Rows of weights' copies that autocast keeps: their numbers and what they are.
    """

    start: Spot
    stop: Spot
    path: str
    asides: Sequence[Aside] = ()
    casts: Mapping[int, tuple[int, Like]] = {}


def read_moves(
    builder: RecordingBuilder, stretch: Stretch, names: dict[int, int]
) -> tuple[Move, ...]:
    """Return what a block did.

    ``builder``: of the tape, whose last events are the stretch's. ``names``: of rows so far; those
    that it makes are added. Raises UnlikeBlocksError: it frees what has no name.
    """
    start, stop, path, asides, casts = stretch
    events, costs = builder.events_since(start.event), builder.costs_since(start.cost)
    asks = builder.asks_since(start.ask)
    waiting, handed = list(asides), {aside.row for aside in asides}
    num_own = sum(name >= 0 for name in names.values())
    moves: list[Move] = []
    at, end = start, stop.event + 1

    def next_ask(at: Spot) -> int:
        return asks[at.ask - start.ask][0] if at.ask < stop.ask else end

    def next_cost(at: Spot) -> int:
        return costs[at.cost - start.cost].event if at.cost < stop.cost else end

    while (at.event, at.cost, at.ask) < (stop.event, stop.cost, stop.ask) or waiting:
        if waiting and at[:2] >= waiting[0].start[:2]:
            aside = waiting.pop(0)
            moves.append(Accumulate(_named(names, aside.row), aside.parameter, aside.like))
            at = aside.stop
        elif next_ask(at) <= min(at.event, next_cost(at)):  # whoever made it, it comes first
            moves.append(Ask(asks[at.ask - start.ask][1]))
            at = at._replace(ask=at.ask + 1)
        elif next_cost(at) <= at.event:
            moves.append(Work(*costs[at.cost - start.cost][2:]))
            at = at._replace(cost=at.cost + 1)
        else:
            row = events[at.event - start.event]
            at = at._replace(event=at.event + 1)
            if row >= 0 and not builder.is_outliving(row):
                names[row] = num_own
                num_own += 1
                facts = builder.facts_of(row)
                moves.append(Make(names[row], facts._replace(owner=_told(facts.owner, path))))
                if row in casts:
                    moves.append(Cast(names[row], *casts[row]))
            elif row < 0 and ~row not in handed:
                moves.append(Free(_named(names, ~row)))
    return tuple(moves)


def owner_in(path: str, told: str) -> str:
    """Return the owner of a block's row, told from the block on."""
    return path + told.removeprefix(_BLOCK) if told.startswith(_BLOCK) else told


def _told(owner: str, path: str) -> str:
    is_inside = owner == path or owner.startswith(f"{path}.")
    return _BLOCK + owner.removeprefix(path) if is_inside else owner


def _named(names: Mapping[int, int], row: int) -> int:
    if row not in names:
        raise UnlikeBlocksError("a block frees or hands over what it did not make")
    return names[row]


def check_kept(done: Sequence[Done]) -> None:
    """Make sure that a forward and its backward free all that nobody else may free."""
    moves = [move for one in done for move in one.moves]
    freed = [move.name for move in moves if isinstance(move, Free)]
    others = {move.name for move in moves if isinstance(move, Cast | Accumulate)}
    others |= {one.name for one in done}
    kept = {move.name for move in moves if isinstance(move, Make)} - {*freed} - others
    if kept or GRADIENT not in {*freed, done[1].name}:
        raise UnlikeBlocksError("a block keeps something behind its backward")
