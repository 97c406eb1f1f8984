"""DeepSeek-V3 on 256 to 16,384 GPUs, on paper: the job of ``scale_part``, with parted experts.

The layouts of a small space that is named here are costed (``scale_experts``) and simulated, the
fastest first, until one fits. Nothing is run.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import scale_ceiling
import scale_part
from evidence import Summary, read_evidence
from progress import shown
from rehearsal_rows import MixtureRow
from scale_experts import bound_bytes, cost_of, ideal_seconds, least_bytes, places_of
from scale_rows import ExpertScaleRow

from brimful.cost.estimate import allocatable_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.results import Simulation
from brimful.values.strategy import Strategy, world_size

HERE = Path(__file__).parent
MODEL, REPORTED = scale_ceiling.MODEL, "deepseek-v3, as reported"
SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""On half of the first, parameters, gradients and state alone leave less than 2 GiB."""
EXPERT_DEVICES, MICRO_BATCHES, SHARDS = (8, 64), (1,), (64, 128, 256, 512)
"""Experts of a block within a node, or over eight as the report has them."""
STAGES: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (2, 4), (4, 1), (4, 4), (8, 1), (8, 4))
"""Devices in a row, and stages on each."""
CHUNKS, MOST_TRIES = 8, 4


def run(*, seed: int, quick: bool) -> tuple[list[ExpertScaleRow], Summary]:
    """Lay out every size; nothing is drawn."""
    del seed
    sizes = SIZES[:1] if quick else SIZES
    rows = [row_of(num) for num in shown("sizes", sizes)]
    rows += [] if quick else [reported_row()]
    return rows, summarize(rows)


def row_of(num_gpus: int) -> ExpertScaleRow:
    """Find the fastest layout of one size that fits; else the one with the smallest peak."""
    job, cluster = scale_part.job_of(MODEL), scale_part.cluster_of(num_gpus)
    limit = allocatable_bytes(cluster.device)
    layouts = [layout for layout in layouts_of(job, num_gpus) if bound_bytes(job, layout) < limit]
    layouts.sort(key=lambda layout: cost_of(job, cluster, layout).step_s)
    tried: list[tuple[bool, int, Strategy]] = []
    for layout in layouts[:MOST_TRIES]:
        fits, peak = simulated(job, cluster, layout)
        tried.append((not fits, peak, layout))
        if fits:
            break
    is_over, peak, strategy = min(tried, key=lambda one: one[:2])
    return ExpertScaleRow(
        model=MODEL,
        gpus=f"{num_gpus // scale_part.PER_NODE}x{scale_part.PER_NODE}x{scale_part.GPU}",
        num_gpus=num_gpus,
        fits=not is_over,
        strategy=strategy,
        simulated_peak_allocated_bytes=peak,
        least_bytes=least_bytes(job, num_gpus),
        cost=cost_of(job, cluster, strategy),
        ideal_s=ideal_seconds(job, cluster),
        num_layouts=len(layouts),
        num_simulated=len(tried),
    )


def layouts_of(job: Job, num_gpus: int) -> Iterator[Strategy]:
    """Yield the layouts of the space that our build runs on so many GPUs.

    Without stages ZeRO-3 reduces after every micro-batch; beside stages gradients are held whole
    and ZeRO-2 gathers once a step. All blocks are recomputed.
    """
    for (pp, chunks), ep, micro_batch, shards in product(
        STAGES, EXPERT_DEVICES, MICRO_BATCHES, SHARDS
    ):
        data, left = divmod(num_gpus, pp)
        if left or data % shards or shards < ep:
            continue
        strategy = Strategy(
            micro_batch=micro_batch, activation_checkpointing="full", loss_chunks=CHUNKS,
            attention="sdpa", zero=3 if pp == 1 else 2, dp_shard=shards,
            dp_replicate=data // shards, ep=ep, pp=pp,
            pp_schedule="interleaved" if chunks > 1 else "1f1b", stages_per_device=chunks,
            accumulate="reduce-each" if pp == 1 else "hold",
        )  # fmt: skip
        try:
            yield check_strategy(job, strategy)
        except (InputError, UnsupportedError):
            continue  # the batch or the blocks do not divide so, or this version does not run it


def simulated(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[bool, int]:
    """Simulate the places of a row; say whether they fit, and the highest peak.

    The first place has the most micro-batches in flight, the last one the logits.
    """
    peak = 0
    for rank in places_of(strategy):
        found = simulate(job, cluster, strategy, rank=rank)
        peak = max(peak, found.simulated_peak_allocated_bytes)
        if not _fits(found):
            return False, peak
    return True, peak


def _fits(found: Simulation) -> bool:
    assert found.reserved is not None, "the GPUs are CUDA's"
    return found.reserved.outcome != "out of memory"


def reported_row() -> ExpertScaleRow:
    """Cost the layout of the report as our build runs it; its peaks are of other evidence."""
    rows = read_evidence("mixtures", HERE).rows
    (there,) = [
        row for row in rows if isinstance(row, MixtureRow) and row.case.job.model.name == MODEL
    ]
    job, strategy = there.case.job, there.case.strategy
    cluster = load_cluster(there.gpus, memory_limit_bytes=None)
    peak = max(place.simulated_peak_allocated_bytes for place in there.balanced)
    return ExpertScaleRow(
        model=REPORTED,
        gpus=there.gpus,
        num_gpus=cluster.num_devices,
        fits=all(place.outcome != "out of memory" for place in there.balanced),
        strategy=strategy,
        simulated_peak_allocated_bytes=peak,
        least_bytes=least_bytes(job, cluster.num_devices),
        cost=cost_of(job, cluster, strategy),
        ideal_s=ideal_seconds(job, cluster),
        num_layouts=1,
        num_simulated=1,
    )


def summarize(rows: list[ExpertScaleRow]) -> Summary:
    """Say from how many GPUs on it fits, and that nothing is faster than its FLOPs allow."""
    missed = [
        f"{row.model} on {row.num_gpus}: faster than its FLOPs allow"
        for row in rows
        if row.cost.step_s < row.ideal_s
    ]
    missed += [
        f"{row.model} on {row.num_gpus}: the layout is of {world_size(row.strategy)} GPUs"
        for row in rows
        if world_size(row.strategy) != row.num_gpus
    ]
    fitting = [row.num_gpus for row in rows if row.fits and row.model == MODEL]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=("no step is faster than the model's FLOPs at the data sheet's rate",),
        missed=tuple(missed),
        findings=(
            f"{MODEL} fits on {min(fitting):,} GPUs and more"
            if fitting
            else f"{MODEL} fits nowhere",
        ),
    )
