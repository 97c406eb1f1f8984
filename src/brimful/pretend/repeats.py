"""Blocks that are given again what they were given: they do on the tape what they did then.

A program that runs micro-batches of the same shape over and over, with something else behind the
blocks each time, runs each block until it did the same twice. What a block does not always do alike,
or no stand-in can do, is run each time.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from brimful.pretend.block_runs import At, Seen, StandIn, Watched, told_to
from brimful.pretend.tape import Tape


def repeat_blocks(tape: Tape, blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Let blocks do again what they did with tensors of the same shape.

    Args:
        tape: On which all is recorded.
        blocks: By their paths.
    """
    for path, block in blocks:
        block.forward = _Repeated(At(tape, block, path), block.forward)


class _Repeated:
    """Runs a block, or repeats on the tape what it did."""

    def __init__(self, at: At, call: Callable[..., Any]) -> None:
        self._at, self._call = at, call
        self._seen: dict[Hashable, Seen] = defaultdict(Seen)

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        run = partial(self._call, x, *args, **kwargs)
        is_again = torch._C._current_graph_task_id() >= 0  # noqa: SLF001 - it is told nowhere else
        if is_again or not torch.is_grad_enabled():
            return run()
        seen = self._seen[x.shape, x.dtype]
        seen.is_odd |= not x.requires_grad  # nothing comes back to it
        if seen.is_odd:
            return run()
        with told_to(self._at.tape):
            if seen.is_known:
                return StandIn(self._at, seen, keeps=seen.keeps).run(x)
            return Watched(self._at, seen).run(run, x)
