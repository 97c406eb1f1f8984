"""Blocks that are given again what they were given: they do on the tape what they did then.

A program that runs micro-batches of few shapes over and over, with something else behind the
blocks each time, runs each block with the first shape until it did the same twice. Blocks that did
the same as each other there are alike: with another shape the first and the last of them run, once,
and have to do the same again. What a block does not always do alike, or no stand-in can do, is run
each time.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from brimful.pretend.block_runs import At, Seen, StandIn, Watched, told_to
from brimful.pretend.tape import Tape


def repeat_blocks(tape: Tape, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Let blocks do again what they did.

    Args:
        tape: On which all is recorded. It raises ``UnlikeBlocksError`` where blocks that were alike
            with one shape are not with another.
        blocks: By their paths, in the order in which they run.
    """
    repeats = _Repeats(len(blocks))
    for place, (path, block) in enumerate(blocks):
        block.forward = partial(repeats.forward, place, At(tape, block, path), block.forward)


class _Alike(Seen):
    """What blocks that were alike with one shape do with another."""

    may_be_odd: ClassVar[bool] = False


class _Repeats:
    """What the blocks of a program did, by the shape of what they were given."""

    def __init__(self, num_blocks: int) -> None:
        self._seen = [Seen() for _ in range(num_blocks)]
        """With the first shape."""
        self._first: Hashable = None
        self._is_grouped = False
        self._groups: dict[int, tuple[int, ...]] = {}
        """Of every block that is not odd, the places of those that are like it, in order."""
        self._alike: dict[tuple[Hashable, int], _Alike] = {}
        """By shape and the first block of a group."""

    def forward(  # noqa: D417 - a block's own arguments
        self, place: int, at: At, call: Callable[..., Any], x: Any, *args: Any, **kw: Any
    ) -> Any:
        """Run a block, or repeat on the tape what it did.

        Args:
            place: Which block.
            at: The block.
            call: Its own forward.
            x: What it is given by the block before.
        """
        run = partial(call, x, *args, **kw)
        is_again = torch._C._current_graph_task_id() >= 0  # noqa: SLF001 - it is told nowhere else
        if is_again or not torch.is_grad_enabled():
            return run()
        shape = (x.shape, x.dtype)
        self._first = self._first or shape
        if shape != self._first and not self._is_grouped:
            self._find_groups()
        own = self._seen[place]
        if own.is_odd:
            return run()
        with told_to(at.tape):
            if shape == self._first:
                seen, runs = own, not own.is_known
            else:
                seen, runs = self._of_group(shape, place)
            shared = list(_shared((args, kw), x))
            if runs:
                return Watched(at, seen).run(run, x, shared)
            return StandIn(at, seen, keeps=seen.keeps).run(x, shared)

    def _of_group(self, shape: Hashable, place: int) -> tuple[Seen, bool]:
        """Return what the blocks like one do with a shape, and whether it is to run."""
        group = self._groups[place]
        own = self._seen[place]
        seen = self._alike.setdefault((shape, group[0]), _Alike(keeps=own.keeps, frees=own.frees))
        is_told = seen.forward is not None and seen.backward is not None
        return seen, not is_told and place in {group[0], group[-1]}

    def _find_groups(self) -> None:
        """Group the blocks that did the same with the first shape; what none can repeat is odd."""
        self._is_grouped = True
        found: defaultdict[Hashable, list[int]] = defaultdict(list)
        for place, seen in enumerate(self._seen):
            seen.is_odd |= not seen.is_known
            if not seen.is_odd:
                done = (seen.forward, seen.backward, seen.parameters)
                found[done, seen.keeps, seen.last_node].append(place)
        for group in found.values():
            self._groups |= dict.fromkeys(group, tuple(group))


def _shared(given: Any, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors that a block is given beside what the block before hands on, each once."""
    leaves = [
        leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf is not x
    ]
    yield from {id(leaf): leaf for leaf in leaves}.values()
