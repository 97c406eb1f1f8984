"""Blocks that stand for themselves: a few of a series run, the others do on the tape what those do.

A stand-in makes and frees the rows that a block like it made and freed (``block_moves``), and hands
on tensors of the right shape. Its parameters are there, and their gradients: one autograd node per
parameter hands them over where the block's would be, so that what accumulates, reduces (DDP,
FSDP2) and updates is the program's own. Which blocks are alike the caller says; those that run
are compared event by event, and where they differ the program has to be traced without.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from brimful.pretend.block_moves import INCOMING, Free
from brimful.pretend.block_runs import NUM_SEEN, At, Seen, StandIn, Watched, told_to
from brimful.pretend.tape import Tape

NUM_FIRST, NUM_LAST = 3, 2
"""The first and the last of a kind in a series that run until their kind is known."""
NUM_WATCHED = 2
"""Passes through a series, of each phase, in which one block runs of a kind that is known."""


class Series(NamedTuple):
    """Blocks that follow each other.

    Attributes:
        blocks: In order.
        paths: Of each, as the tape names it.
        kinds: Of each; blocks of one kind should do the same.
    """

    blocks: Sequence[nn.Module]
    paths: Sequence[str]
    kinds: Sequence[Hashable]


def stand_in(tape: Tape, series: Sequence[Series]) -> None:
    """Let most blocks of some series stand for themselves from here on.

    ``tape``: on which all is recorded; what operations cost is not told of stand-ins.
    """
    models: dict[Hashable, _Model] = defaultdict(_Model)
    for each in series:
        _Player(tape, each, models)


class _Model(Seen):
    """What the blocks of one kind do, all of them."""

    may_be_odd: ClassVar[bool] = False


class _Player:
    """Runs some blocks of a series and plays the others.

    The first and the last of a kind may do something else, since something else may be before or
    behind them. Once one was seen to do what the others do it stands in too.
    """

    def __init__(self, tape: Tape, series: Series, models: dict[Hashable, _Model]) -> None:
        self._tape, self._series, self._models = tape, series, models
        self._ends: dict[int, Seen] = defaultdict(Seen)
        self._given: tuple[_Model, int] | None = None
        self._num_passes: Counter[str] = Counter()
        self._num_all = 0
        self._before, self._behind = _places(series.kinds), _places(series.kinds[::-1])[::-1]
        for index, block in enumerate(series.blocks):
            block.forward = partial(self._forward, index, block.forward)

    def _forward(
        self, index: int, call: Callable[..., Any], x: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not torch.is_grad_enabled():
            return call(x, *args, **kwargs)
        self._num_passes[self._tape.main.phases[-1]] += index == 0
        self._num_all += index == 0
        if not x.requires_grad:  # nothing comes back to it
            self._ends[index].is_odd = True
            return call(x, *args, **kwargs)
        at = At(self._tape, self._series.blocks[index], self._series.paths[index])
        model, run = self._models[self._series.kinds[index]], partial(call, x, *args, **kwargs)
        self._see_what_is_kept()
        with told_to(self._tape):
            if self._is_end(index) and not self._is_alike(index, model):
                seen = self._ends[index]
                return run() if seen.is_odd else Watched(at, seen).run(run, x)
            if self._is_watched(index, model):
                self._given = model, self._tape.rows_of((x,))[0]
                return Watched(at, model).run(run, x)
            keeps = self._ends[index].keeps if self._is_end(index) else model.keeps
            return StandIn(at, model, keeps=keeps).run(x)

    def _see_what_is_kept(self) -> None:
        """Find out whether the block before, seen just now, keeps what it was given."""
        if self._given is not None:
            model, row = self._given
            model.keeps, self._given = not self._tape.main.is_freed(row), None

    def _is_end(self, index: int) -> bool:
        return self._before[index] == 0 or self._behind[index] == 0

    def _is_alike(self, index: int, model: _Model) -> bool:
        """Whether a block at an end does what others of its kind do."""
        seen = self._ends[index]
        if seen.is_odd or seen.backward is None or not model.is_known:
            return False
        seen.is_odd = _told_of(seen) != _told_of(model)
        return not seen.is_odd

    def _is_watched(self, index: int, model: _Model) -> bool:
        """Whether an inner block runs: few until its kind is known, then one in some passes.

        The backward of a series' first pass comes first, and begins with its last blocks; so these
        run in the first pass for as long as no backward was compared.
        """
        is_late = self._behind[index] < NUM_LAST
        forwards, backwards = model.num_seen
        if forwards < NUM_SEEN:
            return self._before[index] < NUM_FIRST or is_late
        if backwards < NUM_SEEN and self._num_all == 1 and is_late:
            return True
        is_early = self._num_passes[self._tape.main.phases[-1]] <= NUM_WATCHED
        return is_early and self._before[index] == 1 and not self._is_end(index)


def _places(kinds: Sequence[Hashable]) -> list[int]:
    """Count, for each of some blocks, those of its kind that come before it."""
    num: Counter[Hashable] = Counter()
    found = []
    for kind in kinds:
        found.append(num[kind])
        num[kind] += 1
    return found


def _told_of(seen: Seen) -> Hashable:
    """Return what a block did, whoever is the last to keep what it is given."""
    assert seen.backward is not None
    moves = tuple(move for move in seen.backward.moves if move != Free(INCOMING))
    return seen.forward, seen.backward._replace(moves=moves), seen.parameters
