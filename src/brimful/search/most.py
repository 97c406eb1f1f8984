"""The longest text and the largest micro-batch that fit: what is asked as "how long", "how many".

Memory grows with both, so that each is found by halving, on what is predicted; the end is replayed
by the allocator's rules, and as much is given up as is held beyond what is sure, until it holds.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from brimful.cost.estimate import predicted_peak, tensor_limit_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.holding import replayed
from brimful.search.space import cuts_loss
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.strategy import Strategy, data_parallel

STEP_TOKENS = 256
"""Lengths are told in steps of so many."""
MAX_SEQUENCES = 4096
"""Micro-batches beyond are not looked for."""
CHUNKS = 16
MAX_REPLAYS = 6
"""Sizes replayed at most: two or three mostly hold."""


class Most(NamedTuple):
    """The largest of a size that fits.

    Attributes:
        number: Of tokens or sequences.
        is_all: Whether it is the size that ends there, and not the memory.
        strategy: How the job runs then.
    """

    number: int
    is_all: bool
    strategy: Strategy


def leanest(job: Job, strategy: Strategy) -> Strategy:
    """Return a strategy with everything recomputed and one sequence at a time."""
    return msgspec.structs.replace(
        strategy,
        micro_batch=1,
        activation_checkpointing="full",
        loss_chunks=(
            max(CHUNKS, strategy.loss_chunks) if cuts_loss(job, strategy.fused_kernels) else 1
        ),
    )


def longest(
    job: Job, cluster: Cluster, strategy: Strategy, *, least: int | None = None
) -> Most | None:
    """Find the longest text with which a strategy fits.

    ``least``: tokens than which it is not to be shorter; None: than the job's. Returns tokens of a
    sequence; None: no formula says, or none that is as long fits.
    """
    shortest, ends = job.seq_len if least is None else least, job.model.max_seq_len

    def at(number: int) -> tuple[Job, Strategy]:
        tokens = max(shortest, number * STEP_TOKENS)
        return msgspec.structs.replace(job, seq_len=tokens), strategy

    found = _most(_Sizes(at, cluster), shortest // STEP_TOKENS, ends // STEP_TOKENS)
    if found is None:
        return None
    tokens = max(shortest, found.number * STEP_TOKENS)
    return found._replace(number=tokens, is_all=tokens + STEP_TOKENS > ends)


def largest_micro_batch(job: Job, cluster: Cluster, strategy: Strategy) -> Most | None:
    """Find how many sequences a device can take at once.

    ``job``: what is trained; its batch grows where it has fewer or no multiple of them. Returns
    sequences; None: no formula says, or not as many as the strategy has fit.
    """
    shares = data_parallel(strategy)

    def at(number: int) -> tuple[Job, Strategy]:
        together = number * shares
        batch = -(-job.global_batch // together) * together
        larger = msgspec.structs.replace(job, global_batch=batch)
        return larger, msgspec.structs.replace(strategy, micro_batch=number)

    return _most(_Sizes(at, cluster), strategy.micro_batch, MAX_SEQUENCES)


_At = Callable[[int], tuple[Job, Strategy]]


class _Sizes(NamedTuple):
    """A job of any size on some devices."""

    at: _At
    cluster: Cluster

    def peak(self, number: int) -> int | None:
        """Predict the peak of one; None: no formula says."""
        job, strategy = self.at(number)
        try:
            check_strategy(job, strategy)
            return predicted_peak(job, self.cluster, strategy)
        except (InputError, UnsupportedError):
            return None

    def fits(self, number: int) -> bool:
        """Whether its live bytes do."""
        peak = self.peak(number)
        return peak is not None and peak <= tensor_limit_bytes(self.cluster)

    def bytes_each(self, low: int, high: int) -> float | None:
        """Return by how much the peak grows with one more; None: no formula says."""
        first, last = map(self.peak, (low, high))
        if first is None or last is None:
            return None
        return max(1.0, (last - first) / (high - low))

    def held(self, number: int) -> tuple[int, Strategy] | None:
        """Replay one: see ``replayed``; None: it cannot run."""
        job, strategy = self.at(number)
        try:
            return replayed(job, self.cluster, strategy)
        except (InputError, UnsupportedError):
            return None


def _most(sizes: _Sizes, first: int, most: int) -> Most | None:
    low, high = first, max(first + 1, 2 * first)
    while high <= most and sizes.fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if sizes.fits(middle) else (low, middle)
    if low == most - 1 and sizes.fits(most):
        low = most
    return _replayed(sizes, first, low, most=most)


def _replayed(sizes: _Sizes, first: int, number: int, *, most: int) -> Most | None:
    """Replay a size, and smaller ones by what it lacks until one holds."""
    least = max(1, first)
    if number < least or not sizes.fits(least):
        return None
    each = sizes.bytes_each(least, max(number, least + 1))
    for _ in range(MAX_REPLAYS):
        if (held := sizes.held(number)) is None:
            break
        excess, strategy = held
        if not excess:
            return Most(number, number == most, strategy)
        if each is None or number == least:
            break
        number = max(least, number - max(1, int(excess / each)))
    return None
