"""The slow and obvious search: every strategy estimated by itself, the fastest that fits kept.

Shares nothing with the search but the estimate and the check of whether a strategy runs a job.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.space import CHUNKS
from brimful.search.table import TIE
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.strategy import Strategy


class Tried(NamedTuple):
    """A strategy by itself."""

    strategy: Strategy
    peak_bytes: int
    step_s: float


def every(job: Job, cluster: Cluster) -> list[Tried]:
    """Estimate every strategy that runs the job and has a formula."""
    ways = strategies(job, cluster.num_devices, cluster.devices_per_node)
    return [found for way in ways if (found := _tried(job, cluster, way))]


def _tried(job: Job, cluster: Cluster, strategy: Strategy) -> Tried | None:
    try:
        same = check_strategy(job, strategy) == strategy
    except (InputError, UnsupportedError):
        return None
    if not same or missing_formula(job, strategy, cluster.device):
        return None
    made = estimate(job, cluster, strategy)
    assert made.predicted_step_s is not None
    return Tried(strategy, made.predicted_peak_allocated_bytes, made.predicted_step_s)


def strategies(job: Job, num_devices: int, per_node: int) -> Iterator[Strategy]:
    """Yield every strategy without a pipeline, whether this version runs it or not."""
    layers = job.model.num_layers
    kinds = ["none", *(f"{k}:{n}" for k in ("full", "selective") for n in range(1, layers + 1))]
    for tp in _divisors(min(num_devices, per_node)):
        share = job.global_batch * tp // num_devices
        for micro_batch in _divisors(share):
            chunks = [n for n in CHUNKS if micro_batch * job.seq_len % n == 0]
            ways = _spreads(num_devices // tp, accumulates=micro_batch < share)
            for number, kind, spread in itertools.product(chunks, kinds, ways):
                yield Strategy(
                    micro_batch=micro_batch,
                    loss_chunks=number,
                    activation_checkpointing=kind,
                    attention="sdpa",
                    tp=tp,
                    **spread,
                )


def _spreads(num_groups: int, *, accumulates: bool) -> list[dict[str, Any]]:
    if num_groups == 1:
        return [{}]
    ways: list[dict[str, Any]] = [
        {"zero": 0, "dp_replicate": num_groups},
        {"zero": 1, "dp_shard": num_groups},
    ]
    ways += [
        {"zero": zero, "dp_shard": n, "dp_replicate": num_groups // n}
        for zero in (2, 3)
        for n in _divisors(num_groups)[1:]
    ]
    return ways + ([way | {"accumulate": "hold"} for way in ways] if accumulates else [])


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def best_of(rows: Sequence[Tried], limit_bytes: int) -> Tried:
    """Pick the fastest that fits, ties to the smaller peak; else the one that is short of least."""
    fitting = [row for row in rows if row.peak_bytes <= limit_bytes]
    if not fitting:
        return min(rows, key=lambda row: row.peak_bytes)
    return min(
        fitting, key=lambda row: (round(math.log(row.step_s) / math.log1p(TIE)), row.peak_bytes)
    )
