"""The longest text and the largest micro-batch that fit: what is asked as "how long", "how many".

Memory grows with both, so that each is found by halving, on what is predicted; the end is replayed
by the allocator's rules, and as much is given up as is held beyond what is sure, until it holds.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.holding import replayed
from brimful.search.ledger import Point, predict
from brimful.search.space import cuts_loss
from brimful.values.job import Job
from brimful.values.plan import Estimate
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
    """Return a strategy with everything recomputed and one sequence at a time.

    Args:
        job: What is trained.
        strategy: Which says how it is spread.
    """
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

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
        least: Tokens than which it is to be longer; None: than the job's.

    Returns:
        Tokens of a sequence; None: no formula says, or none that is longer fits.
    """

    def at(number: int) -> tuple[Job, Strategy]:
        return msgspec.structs.replace(job, seq_len=number * STEP_TOKENS), strategy

    most = job.model.max_seq_len // STEP_TOKENS
    first = (job.seq_len if least is None else least) // STEP_TOKENS
    return _most(at, cluster, first, most, scale=STEP_TOKENS)


def largest_micro_batch(job: Job, cluster: Cluster, strategy: Strategy) -> Most | None:
    """Find how many sequences a device can take at once.

    Args:
        job: What is trained; its batch grows where it has fewer.
        cluster: On what.
        strategy: How.

    Returns:
        Sequences; None: no formula says, or no more than the strategy has fit.
    """
    shares = data_parallel(strategy)

    def at(number: int) -> tuple[Job, Strategy]:
        larger = msgspec.structs.replace(job, global_batch=number * shares)
        return larger, msgspec.structs.replace(strategy, micro_batch=number)

    return _most(at, cluster, strategy.micro_batch, MAX_SEQUENCES, scale=1)


_At = Callable[[int], tuple[Job, Strategy]]


def _most(at: _At, cluster: Cluster, low: int, most: int, *, scale: int) -> Most | None:
    def told(number: int) -> Estimate | None:
        job, strategy = at(number)
        made = predict(Point(job, strategy), cluster)
        return made if isinstance(made, Estimate) else None

    def fits(number: int) -> bool:
        made = told(number)
        return made is not None and made.fits

    first, high = low, max(low + 1, 2 * low)
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if low == most - 1 and fits(most):
        low = most
    ends = [told(number) for number in (max(1, first), low)] if low > first else []
    peaks = [made.predicted_peak_allocated_bytes for made in ends if made is not None]
    if len(peaks) < len(ends) or not ends:
        return None
    each = max(1.0, (peaks[1] - peaks[0]) / (low - max(1, first)))
    number = low
    for _ in range(MAX_REPLAYS):
        if number <= first:
            return None
        job, strategy = at(number)
        held = _held(job, cluster, strategy)
        if held is None:
            return None
        if not held[0]:
            return Most(number * scale, number == most, held[1])
        number -= max(1, int(held[0] / each))
    return None


def _held(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[int, Strategy] | None:
    try:
        return replayed(job, cluster, strategy)
    except (InputError, UnsupportedError):
        return None
