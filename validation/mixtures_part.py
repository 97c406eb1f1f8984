"""Full-size mixtures of experts, rehearsed without a GPU: every class of devices, two routings.

Memory only: no formula costs experts that devices part. Beside a layout stands, where the search
has formulas for the model, the plan that it returns, which parts no experts.
"""

from typing import Any, NamedTuple

from cases import Case
from evidence import Summary, relative, spread_of
from rehearsal_rows import MixturePlace, MixtureRow, SearchedPlan

from brimful.cost.formula import missing_formula
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.simulate.run import simulate
from brimful.techniques.parallel.routing import BALANCED, Routing, worst
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job, plain_job
from brimful.values.strategy import Strategy, stage_rank

NUM_QUICK_LAYOUTS = 1


class Layout(NamedTuple):
    """A layout of a mixture: as ``rehearsal_rows.MixtureRow`` describes it."""

    name: str
    model: str
    gpus: str
    global_batch: int
    ways: dict[str, Any]
    source: str
    says: str
    chosen: str


_PLAIN: dict[str, Any] = {"micro_batch": 1, "attention": "sdpa", "loss_chunks": 8}
SEQ_LEN = 4096
LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "DeepSeek-V3 on 2,048", "deepseek-v3", "256x8xh800-80gb", 15360,
        {
            "pp": 16, "dp_shard": 128, "ep": 64, "zero": 2, "accumulate": "hold",
            "activation_checkpointing": "full",
        },
        "DeepSeek-V3 Technical Report, arXiv:2412.19437, sections 3.2, 3.3 and 4.2",
        "2,048 H800, 16-way pipeline, 64-way experts over 8 nodes, ZeRO-1, batch 15,360 of 4,096",
        "bf16 and fp32 masters and moments, there fp8 and bf16 moments; ZeRO-2, which gathers once "
        "a step and holds whole gradients, for ZeRO-1; 1F1B for DualPipe; all blocks recomputed, "
        "there norms and up-projections; no multi-token prediction",
    ),
    Layout(
        "Qwen3-235B on 64", "qwen3-235b-a22b", "8x8xh100-80gb", 64,
        {"dp_shard": 64, "ep": 8, "zero": 3, "activation_checkpointing": "full"},
        "none: Qwen does not say",
        "nothing is published",
        "experts over the 8 GPUs of a node, everything else over 64; one sequence on each GPU",
    ),
    Layout(
        "Qwen3-235B on 256", "qwen3-235b-a22b", "32x8xh100-80gb", 1024,
        {
            "pp": 8, "dp_shard": 32, "ep": 8, "zero": 2, "accumulate": "hold",
            "activation_checkpointing": "full",
        },
        "none: Qwen does not say",
        "nothing is published",
        "stages of 11 or 12 blocks, experts over the 8 GPUs of a node, 32 micro-batches",
    ),
)  # fmt: skip


def run(*, seed: int, quick: bool) -> tuple[list[MixtureRow], Summary]:
    """Rehearse every layout; nothing is drawn."""
    del seed
    rows = [rehearse(layout) for layout in LAYOUTS[: NUM_QUICK_LAYOUTS if quick else None]]
    return rows, summarize(rows)


def rehearse(layout: Layout) -> MixtureRow:
    """Simulate the classes of a layout's devices, balanced and at worst, and our plan."""
    cluster = load_cluster(layout.gpus, memory_limit_bytes=None)
    job = plain_job(
        load_model(layout.model),
        precision="bf16-master",
        seq_len=SEQ_LEN,
        global_batch=layout.global_batch,
    )
    strategy = check_strategy(job, Strategy(**_PLAIN, **layout.ways))
    devices = sorted({0, strategy.pp // 2, strategy.pp - 1})
    return MixtureRow(
        name=layout.name,
        gpus=layout.gpus,
        case=Case(job=job, strategy=strategy, kernels="cuda"),
        source=layout.source,
        says=layout.says,
        chosen=layout.chosen,
        worst_share=worst(job, strategy.ep).share,
        balanced=tuple(_place(job, cluster, strategy, n, BALANCED) for n in devices),
        worst=tuple(_place(job, cluster, strategy, n, worst(job, strategy.ep)) for n in devices),
        ours=_searched(job, cluster),
    )


def _place(
    job: Job, cluster: Cluster, strategy: Strategy, device: int, routing: Routing
) -> MixturePlace:
    rank = stage_rank(strategy, device)
    found = simulate(job, cluster, strategy, rank=rank, routing=routing)
    assert found.reserved is not None, "layouts are of GPUs"
    sent = [of.num_bytes for of in found.collectives if of.kind == "all-to-all"]
    return MixturePlace(
        device=device,
        simulated_peak_allocated_bytes=found.simulated_peak_allocated_bytes,
        items=found.items,
        outcome=found.reserved.outcome,
        all_to_all_bytes=sum(sent),
        simulate_s=found.simulate_s,
    )


def _searched(job: Job, cluster: Cluster) -> SearchedPlan | None:
    """Return the fastest plan that fits and parts no experts; None where nothing is predicted."""
    plain = Strategy(**_PLAIN, activation_checkpointing="none")
    if missing_formula(job, plain, cluster.device):
        return None
    plan = solve(job, cluster, Pins(), attention="sdpa", objective="time").plan
    assert plan.estimate is not None, "the search evaluates what has a formula"
    found = simulate(job, cluster, plan.strategy)
    return SearchedPlan(
        strategy=plan.strategy,
        predicted_peak_allocated_bytes=plan.estimate.predicted_peak_allocated_bytes,
        predicted_step_s=plan.estimate.predicted_step_s,
        simulated_peak_allocated_bytes=found.simulated_peak_allocated_bytes,
    )


def summarize(rows: list[MixtureRow]) -> Summary:
    """Say how far the worst routing is from balance, and that our plans are what was predicted."""
    errors = [
        relative(row.ours.predicted_peak_allocated_bytes, row.ours.simulated_peak_allocated_bytes)
        for row in rows
        if row.ours is not None
    ]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("our peak", errors or [0.0]),),
        bars=("every layout fits with balanced routing, simulated device class by device class",),
        findings=tuple(map(_finding, rows)),
        missed=tuple(
            f"{row.name}, device {place.device}: {place.outcome}"
            for row in rows
            for place in row.balanced
            if place.outcome == "out of memory"
        ),
    )


def _finding(row: MixtureRow) -> str:
    peaks = [
        max(place.simulated_peak_allocated_bytes for place in places) / 2**30
        for places in (row.balanced, row.worst)
    ]
    return f"{row.name}: balanced {peaks[0]:.1f} GiB, worst routing {peaks[1]:.1f} GiB"
