"""DeepSeek-V3 over GPUs, on paper: seconds of the simulated program's work, memory of simulation.

No formula covers its blocks. What a micro-batch computes is counted on tapes of few blocks of each
kind and added up to the whole depth (``simulate.taped_work``); what devices send is closed form.
Both become seconds as the first rung's do. Whether a layout fits is simulated, at full depth.
Tokens are routed evenly. Nothing is run.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod

import msgspec
import numpy as np
from evidence import Summary
from progress import shown
from scale_part import GLOBAL_BATCH, SEQ_LEN, cluster_of
from scale_rows import MixtureCost, MixtureScaleRow

from brimful.cost.efficiency import efficiency_of, size_of
from brimful.cost.estimate import allocatable_bytes
from brimful.cost.exchange import sent_of
from brimful.cost.expert_exchange import expert_messages, experts_seconds
from brimful.cost.expert_shards import EXPERTS, held_shapes
from brimful.cost.family import Family, family_of, family_shards
from brimful.cost.recipes import RECIPES
from brimful.cost.step import StepSeconds, StepWork, step_seconds, traffic_of_update
from brimful.cost.traffic import experts_traffic, gather_seconds, reduce_seconds, with_traffic
from brimful.cost.trained import Part
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.job import Job, plain_job
from brimful.models.config import experts_of, layout_of, load_model
from brimful.models.layout import Parameters, all_parameters
from brimful.models.spec import ModelSpec
from brimful.rungs import Simulation
from brimful.simulate.messages import ALL_TO_ALL
from brimful.simulate.run import simulate
from brimful.simulate.taped_work import micro_batch_work
from brimful.strategy import Strategy, check_strategy, num_micro_batches

MODEL = "deepseek-v3"
SIZES = (128, 256, 512, 1024, 2048)
"""Of fewer GPUs the states alone are more than the memory; of more, some would have no sequence."""
EXPERT_DEGREES, MICRO_BATCHES, SHARDS = (8, 16, 32, 64), (1, 2, 4), (128, 256, 512, 1024, 2048)
LOSS_CHUNKS = 8
TRACED_MICRO_BATCH = 2
"""The largest that is traced."""
AGAIN, ONCE = "full", "none"
"""Every block is computed again: kept whole, what its experts save is beyond 80 GB."""
MOST_TRIES = 6
"""Layouts of one size that are simulated, the fastest first."""


def run(*, seed: int, quick: bool) -> tuple[list[MixtureScaleRow], Summary]:
    """Plan every size; nothing is drawn."""
    del seed
    sizes = SIZES[1:2] if quick else SIZES
    rows = [plan_of(num) for num in shown("sizes", sizes)]
    return rows, summarize(rows)


def job_of(precision: str = "bf16-mixed") -> Job:
    """Return the job, the same on every number of GPUs."""
    return plain_job(
        load_model(MODEL), precision=precision, seq_len=SEQ_LEN, global_batch=GLOBAL_BATCH
    )


def layouts(job: Job, num_gpus: int) -> Iterator[Strategy]:
    """Yield the layouts of a size that are looked at."""
    for micro_batch, ep, shards in product(MICRO_BATCHES, EXPERT_DEGREES, SHARDS):
        if shards > num_gpus or job.global_batch % (micro_batch * num_gpus):
            continue
        strategy = Strategy(
            micro_batch=micro_batch, activation_checkpointing=AGAIN, loss_chunks=LOSS_CHUNKS,
            attention="sdpa", zero=3, dp_replicate=num_gpus // shards, dp_shard=shards, ep=ep,
        )  # fmt: skip
        yield check_strategy(job, strategy)


def plan_of(num_gpus: int) -> MixtureScaleRow:
    """Simulate layouts of a size, the fastest first, until one fits."""
    job, cluster = job_of(), cluster_of(num_gpus)
    limit = allocatable_bytes(cluster.device)
    found = [how for how in layouts(job, num_gpus) if least_bytes(job, how) <= limit]
    found.sort(key=lambda how: cost_of(job, cluster, how).step_s)
    tried = 0
    for strategy in found[:MOST_TRIES]:
        tried += 1
        simulated = simulate(job, cluster, strategy)
        if simulated.simulated_peak_allocated_bytes <= limit:
            return _row(num_gpus, strategy, simulated, tried)
    return _row(num_gpus, None, None, tried)


def _row(
    num_gpus: int, strategy: Strategy | None, simulated: Simulation | None, num_tried: int
) -> MixtureScaleRow:
    job, cluster = job_of(), cluster_of(num_gpus)
    return MixtureScaleRow(
        model=MODEL,
        num_gpus=num_gpus,
        num_layouts=len(list(layouts(job, num_gpus))),
        num_simulated=num_tried,
        strategy=strategy,
        simulated_peak_allocated_bytes=simulated and simulated.simulated_peak_allocated_bytes,
        simulated_experts_bytes=simulated and _bytes_to_experts(simulated),
        predicted_experts_bytes=None if strategy is None else sent_to_experts(job, strategy),
        predicted_cost=None if strategy is None else cost_of(job, cluster, strategy),
        ideal_s=ideal_seconds(job, cluster),
    )


def _bytes_to_experts(simulated: Simulation) -> int:
    return sum(of.num_bytes for of in simulated.collectives if of.kind == ALL_TO_ALL)


def sent_to_experts(job: Job, strategy: Strategy) -> int:
    """Return the bytes that a device sends to experts and back in a step, as they are costed."""
    messages = expert_messages(job, sent_of(job, family_of(job, strategy)))
    each = sum(float(np.sum(message.times * message.num_bytes)) for message in messages)
    return round(num_micro_batches(job, strategy) * each)


def least_bytes(job: Job, strategy: Strategy) -> float:
    """Return what a device holds at least: its states, and the inputs of all blocks."""
    recipe, held = RECIPES[job.precision], held_numbers(job, strategy)
    states = held * (recipe.parameter + recipe.gradient + 2 * recipe.updated)
    tokens = strategy.micro_batch * job.seq_len
    return states + tokens * job.model.num_layers * job.model.hidden_size * 2


def held_numbers(job: Job, strategy: Strategy) -> int:
    """Count the numbers that train on one device."""
    parameters = tuple(all_parameters(layout_of(job.model)))
    family = family_of(job, strategy)
    return sum(map(prod, held_shapes(parameters, family, strategy.dp_shard)))


def cost_of(job: Job, cluster: Cluster, strategy: Strategy) -> MixtureCost:
    """Cost a step of a layout; first rung's rates over the tape's work."""
    num, family = num_micro_batches(job, strategy), family_of(job, strategy)
    moved = update_bytes(job, strategy)
    again = seconds_of(job, cluster, strategy, whole_work(strategy.micro_batch, AGAIN), moved)
    once = seconds_of(job, cluster, strategy, whole_work(strategy.micro_batch, ONCE), moved)
    alone = _busy(again)
    waited = num * float(experts_seconds(job, family, cluster, sent_of(job, family))[0])
    traffic = num * traffic_of_micro_batch(job, family, cluster)
    exposed = with_traffic(again, np.asarray([traffic]), np.asarray([waited])).exposed_s
    bandwidth = cluster.device.memory_bytes_per_s * efficiency_of(cluster.device).memory_share
    return MixtureCost(
        work_s=alone - moved / bandwidth,
        again_s=alone - _busy(once),
        experts_s=waited,
        exposed_s=float(exposed[0]) - waited,
        update_s=moved / bandwidth,
        step_s=alone + float(exposed[0]),
    )


def _busy(seconds: StepSeconds) -> float:
    return float((seconds.matrix_s + seconds.memory_s + seconds.launch_s)[0])


def seconds_of(
    job: Job, cluster: Cluster, strategy: Strategy, each: StepWork, moved_by_update: float
) -> StepSeconds:
    """Return the seconds of a step's work on one device."""
    total = StepWork(*(num_micro_batches(job, strategy) * part for part in each))
    total = total._replace(moved_bytes=total.moved_bytes + moved_by_update)
    found = step_seconds(total, job, cluster.device, size_of(job, strategy.micro_batch))
    assert found is not None, "the rates of the GPU are known"
    return found


def update_bytes(job: Job, strategy: Strategy) -> float:
    """Return what clip and update of a device's shards move."""
    recipe, held = RECIPES[job.precision], held_numbers(job, strategy)
    kept = held * (recipe.parameter + 2 * recipe.updated)
    return traffic_of_update(gradients=held * recipe.gradient, kept=kept)


def traffic_of_micro_batch(job: Job, family: Family, cluster: Cluster) -> float:
    """Return the seconds of gathering (twice, but what is in no block) and reducing."""
    layout = layout_of(job.model)
    around = (*layout.embedding, *layout.final, *layout.head)
    gathered, reduced = _sent_seconds(job, around, family, cluster)
    total = gathered + reduced
    for run in layout.blocks:
        gathered, reduced = _sent_seconds(job, run.parameters, family, cluster)
        total += run.num_blocks * (2 * gathered + reduced)
    each = experts_traffic(job, family, cluster)
    sparse = len(experts_of(job.model).sparse_blocks)
    return total + sparse * float(2 * each[0][0] + each[1][0])


def _sent_seconds(
    job: Job, parameters: Parameters, family: Family, cluster: Cluster
) -> tuple[float, float]:
    """Return the seconds of gathering what is no expert's once, and of reducing it."""
    shapes, shards = [p.shape for p in parameters if p.kind != EXPERTS], family_shards(family)
    part = Part(shapes, shapes)
    gathered = gather_seconds(job, part, family, shards, cluster)
    return float(gathered[0]), float(reduce_seconds(job, part, family, shards, cluster)[0])


def ideal_seconds(job: Job, cluster: Cluster) -> float:
    """Return what the model's own FLOPs take, nothing computed twice, at the data sheet's rate."""
    once = whole_work(1, ONCE)
    flops = job.global_batch * float((once.matrix_flops + once.attention_flops)[0])
    return flops / (matrix_rate(cluster.device, job.precision) * cluster.num_devices)


@cache
def whole_work(micro_batch: int, checkpointing: str) -> StepWork:
    """Add up the work of a micro-batch of the whole model from tapes of few blocks.

    One block of each kind, and one more of either: what each adds is what every one of its kind
    takes. Parameters are gathered in 16 bits, so that the traced program is that of ``bf16``. Of
    larger micro-batches it is linear in the sequences.
    """
    if micro_batch > TRACED_MICRO_BATCH:
        one, two = (np.array(whole_work(n, checkpointing)) for n in (1, TRACED_MICRO_BATCH))
        return StepWork(*(one + (micro_batch - 1) * (two - one)))
    whole = job_of().model
    num_sparse = len(experts_of(whole).sparse_blocks)
    tapes = [_traced(micro_batch, checkpointing, *kinds) for kinds in ((1, 1), (2, 1), (1, 2))]
    both, dense, sparse = (np.array(tape) for tape in tapes)
    num_dense = whole.num_layers - num_sparse
    total = both + (num_dense - 1) * (dense - both) + (num_sparse - 1) * (sparse - both)
    return StepWork(*total)


def _traced(micro_batch: int, checkpointing: str, num_dense: int, num_sparse: int) -> StepWork:
    job = job_of("bf16")
    job = msgspec.structs.replace(
        job, model=_with_depth(job.model, num_dense, num_sparse), global_batch=micro_batch
    )
    strategy = Strategy(
        micro_batch=micro_batch, activation_checkpointing=checkpointing, loss_chunks=LOSS_CHUNKS,
        attention="sdpa",
    )  # fmt: skip
    return micro_batch_work(job, strategy, imitate="cuda", parted=max(EXPERT_DEGREES))


def _with_depth(model: ModelSpec, num_dense: int, num_sparse: int) -> ModelSpec:
    depth = num_dense + num_sparse
    fields = {"num_hidden_layers": depth, "first_k_dense_replace": num_dense}
    return msgspec.structs.replace(model, num_layers=depth, hf_config={**model.hf_config, **fields})


def summarize(rows: list[MixtureScaleRow]) -> Summary:
    """Say from how many GPUs on it fits, and that nothing is faster than its FLOPs allow."""
    costed = [(row, row.predicted_cost) for row in rows if row.predicted_cost is not None]
    missed = [
        f"{row.model} on {row.num_gpus}: faster than its FLOPs allow"
        for row, cost in costed
        if cost.step_s < row.ideal_s
    ]
    missed += [
        f"{row.model} on {row.num_gpus}: {row.predicted_experts_bytes} bytes to experts were "
        f"costed and {row.simulated_experts_bytes} simulated"
        for row, _ in costed
        if row.predicted_experts_bytes != row.simulated_experts_bytes
    ]
    least = min((row.num_gpus for row, _ in costed), default=None)
    told = f"fits on {least:,} GPUs" if least else "fits on none of them"
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            "no step is faster than the model's FLOPs at the data sheet's rate",
            "the bytes sent to experts are those that are simulated",
        ),
        missed=tuple(missed),
        findings=(f"{MODEL} {told}",),
    )
