"""Which sequences an optimizer step sees: a pure function of the seed and the position.

Shapes: B sequences of a micro-batch, G of a step, S tokens of a sequence.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.errors import DataError
from brimful.train.data.hiding import Hiding
from brimful.values.job import Job

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from brimful.build.batch import Batch

_MASK = (1 << 64) - 1
_ROUNDS = 4
"""Luby and Rackoff 1988: four Feistel rounds of a random function look random from both sides."""


class DataPosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where training stands in its data.

    Attributes:
        epoch: The pass.
        index: Where in it a window of the data begins: sequences, samples, or (streaming) records
            before it.
        row: Rows of that window that were seen; a window of token files has one, so that this is 0
            there, as in checkpoints that were written before there were others.
    """

    epoch: int
    index: int
    row: int = 0


START = DataPosition(epoch=0, index=0)


class TokenBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Windows of a token file in a shuffled order, without replacement within an epoch.

    Attributes:
        tokens: The token file, mapped.
        seq_len: Inputs per sequence; a window holds one token more.
        global_batch: Sequences per optimizer step.
        micro_batch: Sequences per forward pass; changes neither which sequences a step sees nor
            their order.
        seed: Seed of the order.
        hiding: Which tokens are hidden, and told; None: each next token is told.
    """

    tokens: Any
    seq_len: int
    global_batch: int
    micro_batch: int
    seed: int
    hiding: Hiding | None = None

    @property
    def num_windows(self) -> int:
        """Sequences per epoch. Neighbours share one token: last label here, first input there."""
        return (len(self.tokens) - 1) // self.seq_len

    def windows_at(self, position: DataPosition) -> tuple["npt.NDArray[np.int64]", DataPosition]:
        """Read one step's windows, [G, S + 1], and say where the next step begins."""
        import numpy as np

        windows_GS = np.empty((self.global_batch, self.seq_len + 1), np.int64)  # noqa: N806
        *places, following = self._places(position)
        for row, (epoch, index) in zip(windows_GS, places, strict=True):
            start = self.seq_len * shuffled(
                index, num_items=self.num_windows, seed=self.seed, epoch=epoch
            )
            row[:] = self.tokens[start : start + self.seq_len + 1]
        return windows_GS, DataPosition(epoch=following[0], index=following[1])

    def _places(self, position: DataPosition) -> Iterator[tuple[int, int]]:
        """Yield pass and index of every sequence of a step, and of the next one's first."""
        for number in range(position.index, position.index + self.global_batch + 1):
            passes, index = divmod(number, self.num_windows)
            yield position.epoch + passes, index

    def step_at(self, position: DataPosition) -> tuple[list["Batch"], DataPosition]:
        """Make one step's micro-batches on the host, and say where the next step begins."""
        windows_GS, following = self.windows_at(position)  # noqa: N806
        if self.hiding is None:
            return _to_batches(windows_GS[:, :-1], windows_GS[:, 1:], self.micro_batch), following
        *places, _ = self._places(position)
        inputs_GS, labels_GS = self.hiding.hide(windows_GS[:, :-1], places)  # noqa: N806
        return _to_batches(inputs_GS, labels_GS, self.micro_batch), following


def open_batches(
    tokens: Any, job: Job, *, micro_batch: int, hiding: Hiding | None = None
) -> TokenBatches:
    """Check that the data is enough for one step, and make batches of it."""
    batches = TokenBatches(
        tokens=tokens,
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        micro_batch=micro_batch,
        seed=job.seed,
        hiding=hiding,
    )
    needed = job.tokens_per_step + 1
    if batches.num_windows < job.global_batch:
        raise DataError(
            f"the training text has {len(tokens)} tokens and one step of global_batch="
            f"{job.global_batch} needs {needed}; give more text or lower global_batch or seq_len"
        )
    return batches


def heldout_batches(
    tokens: Any, job: Job, *, micro_batch: int, num_tokens: int, hiding: Hiding | None = None
) -> list["Batch"]:
    """Pick a fixed sample of the held-out text, spread evenly over it.

    ``micro_batch``: sequences per batch. ``num_tokens``: about how many tokens to take; at least
    one whole micro-batch is taken where the text has as much. ``hiding``: always the same tokens
    of it.
    """
    import numpy as np

    num_windows = (len(tokens) - 1) // job.seq_len
    if num_windows < 1:
        raise DataError(
            f"the held-out text has {len(tokens)} tokens and one sequence needs "
            f"{job.seq_len + 1}; give more text or lower seq_len"
        )
    num_picked = min(num_windows, max(micro_batch, num_tokens // job.seq_len))
    rows = [pick * num_windows // num_picked * job.seq_len for pick in range(num_picked)]
    windows_NS = np.stack([tokens[row : row + job.seq_len + 1] for row in rows])  # noqa: N806
    windows_NS = windows_NS.astype(np.int64)  # noqa: N806
    inputs_NS, labels_NS = windows_NS[:, :-1], windows_NS[:, 1:]  # noqa: N806
    if hiding is not None:
        inputs_NS, labels_NS = hiding.hide(inputs_NS, [(row,) for row in rows])  # noqa: N806
    return _to_batches(inputs_NS, labels_NS, micro_batch)


def shuffled(index: int, *, num_items: int, seed: int, epoch: int) -> int:
    """Return the item at a place of a pseudo-random order, without making the order.

    A Feistel network permutes the numbers of an even count of bits; walking its cycle until it
    comes back below ``num_items`` permutes those (Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains"). Fewer than four
    walks per item on average, and constant memory.

    ``index``: the place, from 0 to ``num_items`` - 1.
    """
    half_bits = max(1, ((num_items - 1).bit_length() + 1) // 2)
    half_mask = (1 << half_bits) - 1
    key = _mix(_mix(seed & _MASK) ^ epoch)
    item = index
    while True:
        left, right = item >> half_bits, item & half_mask
        for round_number in range(_ROUNDS):
            left, right = right, left ^ (_mix(key + (round_number << 48) + right) & half_mask)
        item = left << half_bits | right
        if item < num_items:
            return item


def _mix(value: int) -> int:
    """Scatter 64 bits: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _to_batches(
    inputs_NS: "npt.NDArray[np.int64]",  # noqa: N803
    labels_NS: "npt.NDArray[np.int64]",  # noqa: N803
    micro_batch: int,
) -> list["Batch"]:
    import torch

    from brimful.build.batch import Batch

    inputs = torch.from_numpy(inputs_NS.copy())
    labels = torch.from_numpy(labels_NS.copy())
    return [
        Batch(inputs[row : row + micro_batch], labels[row : row + micro_batch])
        for row in range(0, len(inputs_NS), micro_batch)
    ]
