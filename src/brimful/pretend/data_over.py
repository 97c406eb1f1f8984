"""Lets a script's training data be over where its steps are alike, so that what follows is run.

A loop over a ``DataLoader`` ends when that has no more: a script with fewer rows does the same in
each step. What comes behind the loop, an evaluation or a save, is then seen within seconds. Loaders
are told by their data: those that gave something in each of the steps.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

if TYPE_CHECKING:
    from brimful.pretend.session import Run


class DataOver:
    """Follows what gives a script its data.

    Attributes:
        is_over: Whether the training data is.
    """

    def __init__(self, run: "Run") -> None:
        """Have seen no data yet."""
        self.is_over = False
        self._run = run
        # By the identity of the data, which is held so that it stays its own.
        self._of_step, self._of_all = dict[int, Any](), dict[int, Any]()
        self._begun: list[tuple[Any, int]] = []

    def end_step(self, *, is_alike: bool) -> None:
        """Hear that a step is over.

        ``is_alike``: whether it was like the one before it.
        """
        if not self.is_over:
            step, every = self._of_step, self._of_all
            self._of_all = {key: step[key] for key in step if key in every} if is_alike else step
            self._of_step = {}

    def be_over(self) -> bool:
        """Let the data be over that every step had; False: there is none."""
        self.is_over = bool(self._of_all)
        return self.is_over

    def check(self, loading: Any) -> None:
        """Note that a loader is asked for more; end it where its loop trains on the same data.

        A pass that makes no step, as one that collects predictions of the training data does, goes
        on.
        """
        data = loading._dataset  # noqa: SLF001
        if not self.is_over:
            self._of_step[id(data)] = data
        elif id(data) in self._of_all:
            if not loading._num_yielded:  # noqa: SLF001
                self._begun.append((loading, self._run.num_steps))
            began = next((steps for each, steps in self._begun if each is loading), -1)
            if self._run.num_steps > began:
                raise StopIteration


@contextlib.contextmanager
def following_data(data: DataOver) -> Iterator[None]:
    """Tell ``data`` of every batch that is loaded inside the block."""
    original = _BaseDataLoaderIter.__next__

    def give(loading: Any) -> Any:
        data.check(loading)
        return original(loading)

    _BaseDataLoaderIter.__next__ = give
    try:
        yield
    finally:
        _BaseDataLoaderIter.__next__ = original
