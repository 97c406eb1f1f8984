"""Blocks of memory that are alive, and what backward will do: a step without tensors."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from brimful.allocator.replay import Requests

_ROUND = 512
"""Bytes to which the caching allocator rounds a small block."""
Backward = Callable[["Block"], "Block"]


class Asked(NamedTuple):
    """What is asked of the allocator.

    Attributes:
        num_bytes: Of all blocks together.
        num_blocks: How many: each is what some operation writes.
    """

    num_bytes: int
    num_blocks: int


class Block:
    """Bytes that are alive while somebody holds them.

    Attributes:
        row: Its number among all blocks.
        num_bytes: As they are asked for.
        holders: How many hold it.
    """

    __slots__ = ("holders", "num_bytes", "row")

    def __init__(self, row: int, num_bytes: int) -> None:
        """Be held once."""
        self.row = row
        self.num_bytes = num_bytes
        self.holders = 1


class Memory:
    """What is asked of the allocator, in order.

    Attributes:
        place: What runs now, for people.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.place = ""
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._places: list[str] = []
        self._alive: dict[int, Block] = {}

    def new(self, num_bytes: float) -> Block:
        """Allocate."""
        block = Block(len(self._sizes), int(num_bytes))
        self._sizes.append(block.num_bytes)
        self._places.append(self.place)
        self._events.append(block.row)
        self._alive[block.row] = block
        return block

    def keep(self, *blocks: Block) -> None:
        """Hold blocks once more each."""
        for block in blocks:
            block.holders += 1

    def drop(self, *blocks: Block) -> None:
        """Let go of blocks once each; what nobody holds is free."""
        for block in blocks:
            block.holders -= 1
            if not block.holders:
                self._events.append(~block.row)
                del self._alive[block.row]

    def scratch(self, num_bytes: float) -> None:
        """Allocate and free at once."""
        self.drop(self.new(num_bytes))

    def without_gradients(self, run: Callable[[], Block], *given: Block) -> Block:
        """Run something of which nothing is kept for backward.

        ``run``: what is run; what it still holds afterwards is let go of, but for its result.
        ``given``: what it was given, which it may hold once more.
        """
        first, holders = len(self._sizes), [block.holders for block in given]
        out = run()
        for block in [
            each for row, each in self._alive.items() if row >= first and each is not out
        ]:
            block.holders = 1
            self.drop(block)
        out.holders = 1
        for block, count in zip(given, holders, strict=True):
            block.holders = count
        return out

    def requests(self) -> Requests:
        """Return all of it, for a replay of the allocator."""
        return Requests(
            events=np.array(self._events, np.int64), num_bytes=np.array(self._sizes, np.int64)
        )

    def asked(self) -> Asked:
        """Return all that was ever asked for."""
        return Asked(sum(self._sizes), len(self._sizes))

    def alive(self) -> int:
        """Return the bytes of all blocks that are alive, as the allocator rounds them."""
        return sum(-(-block.num_bytes // _ROUND) * _ROUND for block in self._alive.values())

    def peak(self) -> tuple[int, str]:
        """Return the most bytes that were asked for at once, and what ran then."""
        events, sizes = np.array(self._events), np.array(self._sizes)
        live = np.cumsum(
            np.where(events >= 0, 1, -1) * sizes[np.where(events >= 0, events, ~events)]
        )
        at = int(live.argmax())
        row = self._events[at]
        return int(live[at]), self._places[row if row >= 0 else ~row]


class Chain:
    """Steps of backward of what ran forward, the last first."""

    def __init__(self) -> None:
        """Have run nothing yet."""
        self._steps: list[Backward] = []

    def add(self, step: Backward) -> None:
        """Note what backward does of a piece: it takes a gradient and returns one."""
        self._steps.append(step)

    def run(self, gradient: Block) -> Block:
        """Run backward.

        ``gradient``: of the result; held once, by nobody afterwards.
        """
        for step in reversed(self._steps):
            gradient = step(gradient)
        self._steps.clear()
        return gradient
