"""Which samples an optimizer step sees, window by window, at an exact position.

A pass over the data is a sequence of windows; a window is laid into rows; a step takes rows, from
as many windows and passes as it needs. What a window holds depends on the seed and on where it
begins, and on nothing that was done before.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from brimful.train.data.batches import DataPosition, shuffled
from brimful.train.data.packing import pack
from brimful.train.data.rows import Row, RowShape, to_batches
from brimful.train.data.samples import SampleFile

if TYPE_CHECKING:
    from brimful.build.batch import Batch

PACKING_WINDOW = 4096
"""Samples among which those that share a row are chosen; more saves no row worth mentioning."""


class Window(NamedTuple):
    """A stretch of a pass, laid into rows.

    Attributes:
        rows: What ``read`` makes a row of.
        read: Reads a row.
        following: Pass and index at which the next window begins.
    """

    rows: Sequence[Any]
    read: Callable[[Any], Row]
    following: tuple[int, int]


class Windows(Protocol):
    """Data in windows."""

    def window_at(self, epoch: int, index: int) -> Window:
        """Return the window that begins at ``index`` of pass ``epoch``."""


class SampleBatches:
    """Steps of rows."""

    def __init__(
        self, windows: Windows, shape: RowShape, *, global_batch: int, micro_batch: int
    ) -> None:
        """Keep the data and the sizes.

        ``global_batch``: rows per optimizer step. ``micro_batch``: rows per forward pass; changes
        neither which rows a step sees nor their order.
        """
        self.windows = windows
        self.shape = shape
        self.global_batch = global_batch
        self.micro_batch = micro_batch

    def rows_at(self, position: DataPosition) -> tuple[list[Row], DataPosition]:
        """Read one step's rows, and say where the next step begins."""
        rows: list[Row] = []
        epoch, index, row = position.epoch, position.index, position.row
        while len(rows) < self.global_batch:
            window = self.windows.window_at(epoch, index)
            taken = window.rows[row : row + self.global_batch - len(rows)]
            rows += map(window.read, taken)
            row += len(taken)
            if row >= len(window.rows):
                (epoch, index), row = window.following, 0
        return rows, DataPosition(epoch=epoch, index=index, row=row)

    def step_at(self, position: DataPosition) -> tuple[list["Batch"], DataPosition]:
        """Make one step's micro-batches on the host, and say where the next step begins."""
        rows, following = self.rows_at(position)
        return to_batches(rows, self.shape, micro_batch=self.micro_batch), following


class FileWindows:
    """Samples on disk, in a shuffled order without replacement within a pass."""

    def __init__(self, samples: SampleFile, *, seq_len: int, packed: bool, seed: int) -> None:
        """Keep the samples and how they are laid out."""
        self.samples = samples
        self.seq_len = seq_len
        self.packed = packed
        self.seed = seed
        self._newest: tuple[tuple[int, int], Window] | None = None

    def window_at(self, epoch: int, index: int) -> Window:
        """Return the window that begins with the ``index``-th sample of a pass."""
        # Steps take a few rows each, and to pack 4096 samples for each of them would be slow.
        if self._newest is None or self._newest[0] != (epoch, index):
            self._newest = (epoch, index), self._make(epoch, index)
        return self._newest[1]

    def _make(self, epoch: int, index: int) -> Window:
        num_samples = len(self.samples)
        stop = min(num_samples, index + (PACKING_WINDOW if self.packed else 1))
        picked = [
            shuffled(place, num_items=num_samples, seed=self.seed, epoch=epoch)
            for place in range(index, stop)
        ]
        lengths = [self.samples.num_tokens(number) for number in picked]
        rows = lay_out(lengths, seq_len=self.seq_len, packed=self.packed)
        ordered = shuffle_rows(rows, seed=self.seed, epoch=epoch, index=index)
        numbers = [[picked[item] for item in row] for row in ordered]
        following = (epoch, stop) if stop < num_samples else (epoch + 1, 0)
        return Window(numbers, self._read, following)

    def _read(self, numbers: Sequence[int]) -> Row:
        return [self.samples.sample(number) for number in numbers]


def lay_out(lengths: Sequence[int], *, seq_len: int, packed: bool) -> list[list[int]]:
    """Give each item a row, or lay several into one."""
    if packed:
        return pack(lengths, capacity=seq_len)
    return [[item] for item in range(len(lengths))]


def shuffle_rows(
    rows: Sequence[list[int]], *, seed: int, epoch: int, index: int
) -> list[list[int]]:
    """Mix the rows of a window: packing leaves those with the longest samples in front."""
    return [
        rows[shuffled(place, num_items=len(rows), seed=seed + 1, epoch=(epoch << 40) + index)]
        for place in range(len(rows))
    ]
