"""Blocks that are given again what they were given: they do on the tape what they did then.

A program that runs micro-batches of few shapes over and over, with something else behind the
blocks each time, runs each block with the first shape, and again until it or the first that is like
it did the same twice. Blocks that did the same as each other there are alike: with another shape
the first and the last of them run, once, and have to do the same again. What a block does not
always do alike, or no stand-in can do, is run each time.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from brimful.pretend.block_runs import At, Seen, StandIn, Watched, told_to
from brimful.pretend.blocks import UnlikeBlocksError
from brimful.pretend.tape import Tape


def repeat_blocks(tape: Tape, blocks: Sequence[tuple[str, nn.Module]]) -> Callable[[], bool]:
    """Let blocks do again what they did.

    ``tape``: on which all is recorded. It raises ``UnlikeBlocksError`` where blocks that were alike
    with one shape are not with another. ``blocks``: by their paths, in the order in which they run.
    Returns what says whether some of them run each time.
    """
    repeats = _Repeats(len(blocks))
    for place, (path, block) in enumerate(blocks):
        block.forward = partial(repeats.forward, place, At(tape, block, path), block.forward)
    return repeats.has_odd


class _Alike(Seen):
    """What blocks that were alike with one shape do with another."""

    may_be_odd: ClassVar[bool] = False


class _Repeats:
    """What the blocks of a program did, by the shape of what they were given."""

    def __init__(self, num_blocks: int) -> None:
        self._seen = [Seen() for _ in range(num_blocks)]
        """With the first shape."""
        self._shapes: dict[Hashable, int] = {}
        """Numbers of shapes, in the order in which they came."""
        self._leaders: dict[Hashable, int] = {}
        """By what was done with the first shape, the first block that did it."""
        self._led: dict[int, int] = {}
        """Of blocks that ran there, the first that did the same."""
        self._is_grouped = False
        self._groups: dict[int, tuple[int, ...]] = {}
        """Of every block that is not odd, the places of those that are like it, in order."""
        self._alike: dict[tuple[Hashable, int], _Alike] = {}
        """By number of shape and the first block of a group."""

    def forward(
        self, place: int, at: At, call: Callable[..., Any], x: Any, *args: Any, **kw: Any
    ) -> Any:
        """Run a block, or repeat on the tape what it did.

        ``x``: what it is given by the block before.
        """
        run = partial(call, x, *args, **kw)
        is_again = torch._C._current_graph_task_id() >= 0  # noqa: SLF001 - it is told nowhere else
        if is_again or not torch.is_grad_enabled():
            return run()
        shape = (x.shape, x.dtype)
        number = self._shapes.setdefault(shape, len(self._shapes))
        if number and not self._is_grouped:
            self._find_groups()
        own = self._seen[place]
        if own.is_odd:
            return run()
        with told_to(at.tape):
            if number:
                seen, runs = self._of_group(number, place)
            else:
                seen, runs = own, not self._is_shown(place)
            shared = list(shared_in((args, kw), x))
            if runs:
                return Watched(at, seen).run(run, x, shared)
            return StandIn(at, seen, keeps=seen.keeps).run(x, shared)

    def has_odd(self) -> bool:
        """Whether some blocks run each time."""
        return any(seen.is_odd for seen in self._seen)

    def _leads(self, place: int) -> int:
        """Return the first block that did what one did with the first shape."""
        if place not in self._led:
            self._led[place] = self._leaders.setdefault(_told(self._seen[place]), place)
        return self._led[place]

    def _is_shown(self, place: int) -> bool:
        """Whether a block need not run with the first shape again."""
        own = self._seen[place]
        if own.forward is None or own.backward is None:
            return False
        return own.is_known or self._leads(place) != place

    def _of_group(self, number: int, place: int) -> tuple[Seen, bool]:
        """Return what the blocks like one do with a shape, and whether it is to run."""
        group = self._groups[place]
        own = self._seen[place]
        seen = self._alike.setdefault((number, group[0]), _Alike(keeps=own.keeps, frees=own.frees))
        is_told = seen.forward is not None and seen.backward is not None
        return seen, not is_told and place in {group[0], group[-1]}

    def _find_groups(self) -> None:
        """Group the blocks that did the same with the first shape; what none can repeat is odd."""
        self._is_grouped = True
        found: defaultdict[int, list[int]] = defaultdict(list)
        for place, seen in enumerate(self._seen):
            if not self._is_shown(place):
                seen.is_odd = True
            elif not seen.is_odd:
                found[self._leads(place)].append(place)
        for leader, group in found.items():
            if not self._seen[leader].is_known:
                raise UnlikeBlocksError("a block does not always do what others of its kind do")
            self._groups |= dict.fromkeys(group, tuple(group))


def _told(seen: Seen) -> Hashable:
    """Return what a block did."""
    done = seen.forward, seen.backward, seen.parameters
    return done, seen.keeps, seen.last_node, seen.frees, seen.empty


def shared_in(given: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors that a block is given beside what the block before hands on, each once."""
    leaves = [
        leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf is not x
    ]
    yield from {id(leaf): leaf for leaf in leaves}.values()
