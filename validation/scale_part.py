"""One job on 1 to 16,384 GPUs, on paper: the fastest plan of each size and where its seconds go.

Nothing is run. Plans with stages and without are searched; what is costed is ``layout_cost``'s.
"""

from collections.abc import Iterator
from itertools import product

from evidence import Summary
from layout_cost import cost_of
from progress import shown
from scale_rows import ScaleRow

from brimful.cost.speed import step_flops
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.values.job import Job, plain_job
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy

GPU, PER_NODE = "h100-80gb", 8
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
SIZES = tuple(2**power for power in range(15))
SEQ_LEN, GLOBAL_BATCH = 8192, 2048
"""Sequences of 8,192 tokens and 16.8 million tokens a step, as Llama 3.1 405B was trained with
(arXiv:2407.21783, section 3.4.1)."""
STAGES, TENSOR = (4, 8, 16), (1, 8)
NUM_QUICK_SIZES = 4


def run(*, seed: int, quick: bool) -> tuple[list[ScaleRow], Summary]:
    """Plan every size; nothing is drawn."""
    del seed
    sizes = SIZES[:: len(SIZES) // NUM_QUICK_SIZES] if quick else SIZES
    models = MODELS[:1] if quick else MODELS
    asked = list(product(models, sizes))
    rows = [plan_of(model, num) for model, num in shown("sizes", asked)]
    return rows, summarize(rows)


def cluster_of(num_gpus: int) -> Cluster:
    """Return that many GPUs, 8 in a node."""
    nodes = max(1, num_gpus // PER_NODE)
    return load_cluster(f"{nodes}x{min(num_gpus, PER_NODE)}x{GPU}", memory_limit_bytes=None)


def job_of(model: str) -> Job:
    """Return the job, the same on every number of GPUs."""
    return plain_job(
        load_model(model), precision="bf16-mixed", seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH
    )


def plan_of(model: str, num_gpus: int) -> ScaleRow:
    """Search the fastest plan of one size and cost it."""
    job, cluster = job_of(model), cluster_of(num_gpus)
    plan = min(_plans(job, cluster), key=_slowness)
    assert plan.estimate is not None, "the search evaluates what has a formula"
    return ScaleRow(
        model=model,
        num_gpus=num_gpus,
        fits=plan.estimate.fits,
        strategy=plan.strategy,
        predicted_peak_allocated_bytes=plan.estimate.predicted_peak_allocated_bytes,
        cost=cost_of(job, cluster, plan.strategy),
        ideal_s=ideal_seconds(job, cluster, plan.strategy),
    )


def ideal_seconds(job: Job, cluster: Cluster, strategy: Strategy) -> float:
    """Return what the model's own FLOPs take, nothing computed twice, at the data sheet's rate."""
    once = Strategy(
        micro_batch=strategy.micro_batch, activation_checkpointing="none", loss_chunks=1,
        attention=strategy.attention,
    )  # fmt: skip
    rate = matrix_rate(cluster.device, job.precision) * cluster.num_devices
    return step_flops(job, cluster, once) / rate


def _plans(job: Job, cluster: Cluster) -> Iterator[Plan]:
    """Yield the best plan without stages, and those of rows that go on these GPUs."""
    yield solve(job, cluster, Pins(pp=1), attention="sdpa", objective="time").plan
    for stages, tensor in product(STAGES, TENSOR):
        if stages * tensor > cluster.num_devices:
            continue
        pins = Pins(pp=stages, tp=tensor)
        try:
            yield solve(job, cluster, pins, attention="sdpa", objective="time").plan
        except (InputError, UnsupportedError):
            continue  # the GPUs, blocks or batch do not divide so, or it has no formula


def _slowness(plan: Plan) -> tuple[bool, float]:
    """Order plans: those that fit first, then by time; of those that do not, by their peak."""
    said = plan.estimate
    assert said is not None
    if not said.fits:
        return True, float(said.predicted_peak_allocated_bytes)
    return False, said.predicted_step_s or float("inf")


def summarize(rows: list[ScaleRow]) -> Summary:
    """Say from how many GPUs on a model fits, and that nothing is faster than its FLOPs allow."""
    missed = [
        f"{row.model} on {row.num_gpus}: faster than its FLOPs allow"
        for row in rows
        if row.cost.step_s < row.ideal_s
    ]
    least = {
        model: min((row.num_gpus for row in rows if row.model == model and row.fits), default=None)
        for model in dict.fromkeys(row.model for row in rows)
    }
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=("no step is faster than the model's FLOPs at the data sheet's rate",),
        missed=tuple(missed),
        findings=tuple(
            f"{model} fits on {num:,} GPUs and more" if num else f"{model} fits on none of them"
            for model, num in least.items()
        ),
    )
