"""The search finds what a slow and obvious one finds, and looks at every way of checkpointing."""

import math
import random

import msgspec
import pytest

from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.search.solve import solve
from brimful.search.space import CHUNKS, Pins
from brimful.search.table import TIE
from samples import ALL_CASES, make_adapter, make_cluster, make_job, make_model, make_strategy

NUM_SPACES = 200
NUM_SAMPLED = 15
FREE = Pins(micro_batch=None, activation_checkpointing=None, loss_chunks=None)
LORA = make_adapter()


def draw(number):
    """Draw a job, and a device that some of its strategies fit."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    architecture = rng.choice(("llama", "gpt2"))
    layers = rng.randint(2, 4)
    depth = {"num_hidden_layers": layers} if architecture == "llama" else {"n_layer": layers}
    job = make_job(
        architecture,
        model=make_model(architecture, **depth, vocab_size=rng.choice((97, 2048))),
        precision=rng.choice(("bf16", "bf16-mixed", "fp32")),
        optimizer=rng.choice(("adamw", "sgd")),
        seq_len=rng.choice((24, 64, 128)),
        global_batch=rng.choice((1, 2, 3, 4, 6)),
    )
    if job.precision == "bf16" and rng.random() < 0.5:
        job = msgspec.structs.replace(job, method="lora", adapter=LORA)
    cluster = make_cluster("cuda", usable_bytes=2**40, calibrated=rng.random() < 0.5)
    peaks = [row[1] for row in every(job, cluster)]
    limit = int(rng.uniform(0.9 * min(peaks), max(peaks)))
    spare = cluster.device.usable_bytes - allocatable_bytes(cluster.device)
    device = msgspec.structs.replace(cluster.device, usable_bytes=limit + spare)
    return job, msgspec.structs.replace(cluster, device=device)


def every(job, cluster):
    """Estimate every strategy by itself: (strategy, peak, seconds)."""
    layers = job.model.num_layers
    kinds = ["none", *(f"{k}:{n}" for k in ("full", "selective") for n in range(1, layers + 1))]
    rows = []
    for micro_batch in (n for n in range(1, job.global_batch + 1) if job.global_batch % n == 0):
        for chunks in (n for n in CHUNKS if micro_batch * job.seq_len % n == 0):
            for kind in kinds:
                strategy = make_strategy(
                    micro_batch=micro_batch, loss_chunks=chunks, activation_checkpointing=kind
                )
                made = estimate(job, cluster, strategy)
                rows.append((strategy, made.predicted_peak_allocated_bytes, made.predicted_step_s))
    return rows


def best_of(rows, limit):
    """Pick the fastest that fits, ties to the smaller peak; else the one that is short of least."""
    fitting = [row for row in rows if row[1] <= limit]
    if not fitting:
        return min(rows, key=lambda row: row[1])
    return min(fitting, key=lambda row: (round(math.log(row[2]) / math.log1p(TIE)), row[1]))


@pytest.mark.parametrize("number", range(NUM_SPACES if ALL_CASES else NUM_SAMPLED))
def test_the_optimum_is_that_of_trying_everything(number):
    job, cluster = draw(number)
    found = solve(job, cluster, FREE, attention="sdpa", objective="time")
    rows = every(job, cluster)
    limit = allocatable_bytes(cluster.device)
    _, peak, seconds = best_of(rows, limit)
    made = found.plan.estimate
    assert made.predicted_peak_allocated_bytes == peak
    assert made.predicted_step_s == pytest.approx(seconds)
    assert found.record.num_considered == len(rows)
    assert found.record.num_fitting == sum(row[1] <= limit for row in rows)


def test_the_least_memory_is_that_of_trying_everything():
    job, cluster = draw(1)
    found = solve(job, cluster, FREE, attention="sdpa", objective="memory")
    smallest = min(row[1] for row in every(job, cluster))
    assert found.plan.estimate.predicted_peak_allocated_bytes == smallest


@pytest.mark.parametrize("pinned", ["none", "full", "full:1", "selective", "selective:1"])
def test_what_is_pinned_is_kept(pinned):
    job, cluster = make_job(), make_cluster("cuda")
    pins = FREE._replace(activation_checkpointing=pinned)
    found = solve(job, cluster, pins, attention="sdpa", objective="time")
    assert found.plan.strategy.activation_checkpointing == pinned


def test_without_a_selective_profile_there_is_no_selective_strategy():
    job, cluster = make_job(), make_cluster("cuda")
    found = solve(job, cluster, FREE, attention="eager", objective="time")
    kinds = {row.strategy.activation_checkpointing.partition(":")[0] for row in found.record.rows}
    assert "selective" not in kinds
    chunks = [n for m in (1, 2, 4) for n in CHUNKS if m * job.seq_len % n == 0]
    assert found.record.num_considered == len(chunks) * (1 + job.model.num_layers)
