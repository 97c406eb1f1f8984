"""Pipelines on the first rung: formulas give what every device of a row takes, and how long."""

import random

import msgspec
import numpy as np
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.cost.memory import phase_peaks
from brimful.cost.pipeline_orders import Row
from brimful.cost.pipeline_replay import replay
from brimful.cost.reserved import predicted_reserved
from brimful.cost.situations import situations
from brimful.cost.stage_memory import device_memory
from brimful.cost.stage_peaks import device_peaks
from brimful.cost.stage_site import classes_of, fullest_ranks, site_of
from brimful.cost.stage_time import Way, row_seconds, step_of_row
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import read_config
from brimful.techniques.parallel.stages import ONE_STAGE
from brimful.techniques.runnable import check_strategy
from brimful.values.results import OPTIMIZER_STATE, PARAMETERS, WORKSPACES
from brimful.values.strategy import world_size
from samples import TINY_LLAMA, make_adapter, make_cluster, make_job, make_strategy

NUM_CASES = 48
PEAK_SHARE = 1e-3
"""Of the peak without workspaces; the worst of 48 is stated in decision 30."""
SCALAR_BYTES = 2048
"""Steps of AdamW, losses, rotary frequencies, what the norm adds up: numbers, not tensors."""
REPLAY_SHARE = 0.12
"""By how much the closed form of a row's seconds may miss the replay of every operation."""
EIGHT_BLOCKS = read_config("tiny", {**TINY_LLAMA, "num_hidden_layers": 8})
WIDE_BLOCKS = read_config(
    "tiny",
    {
        **TINY_LLAMA,
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "intermediate_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
)
"""Whose weights take more than what their activations do."""
H100 = load_cluster("h100-80gb", memory_limit_bytes=None)


def draw(number):
    """Draw a job and a row that has a formula."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    while True:
        job, strategy = _drawn(rng)
        try:
            check_strategy(job, strategy)
        except (InputError, UnsupportedError):
            continue
        kernels = rng.choice(("cuda", "cuda", "cpu"))
        cluster = H100 if kernels == "cuda" else make_cluster("cpu")
        if not missing_formula(job, strategy, cluster.device):
            return job, strategy, cluster.device


def _drawn(rng):
    kind, width = rng.choice(("llama", "mistral", "qwen2", "qwen3")), rng.choice((64, 96, 128))
    model = read_config(
        "tiny",
        {
            "model_type": kind,
            "hidden_size": width,
            "intermediate_size": rng.choice((160, 256)),
            "num_hidden_layers": rng.randint(4, 8),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": width // 4,
            "vocab_size": rng.choice((97, 1000, 5000)),
            "max_position_embeddings": 4096,
            "sliding_window": None,
            "tie_word_embeddings": rng.random() < 0.3,
        },
    )
    zero, pp = rng.choice((0, 0, 1, 2, 3)), rng.choice((2, 2, 3))
    shards = rng.choice((2, 4)) if zero else 1
    replicas = rng.choice((1, 2))
    schedule = rng.choice(("1f1b", "gpipe", "interleaved"))
    strategy = make_strategy(
        micro_batch=rng.choice((1, 2)),
        activation_checkpointing=rng.choice(
            ("none", "none", "full", "full:1", "full:2", "selective", "selective:1")
        ),
        loss_chunks=rng.choice((1, 1, 2, 4)),
        zero=zero,
        dp_shard=shards,
        dp_replicate=replicas,
        tp=rng.choice((1, 1, 1, 2)),
        pp=pp,
        pp_schedule=schedule,
        stages_per_device=1 if schedule in ONE_STAGE else 2,
        accumulate="hold",
    )
    micro_batches = rng.choice((pp, 2 * pp, 3 * pp))
    adapter = rng.choice((None, None, make_adapter(rank=8)))
    job = make_job(
        model=model,
        method="full" if adapter is None else "lora",
        adapter=adapter,
        precision=rng.choice(("bf16", "bf16-mixed", "fp32", "bf16-master")),
        optimizer=rng.choice(("adamw", "sgd")),
        seq_len=rng.choice((64, 256, 1024)),
        global_batch=strategy.micro_batch * shards * replicas * micro_batches,
    )
    return job, strategy


def missed(number):
    """Compare every kind of device of a row with its simulation: bytes, shares, what was drawn."""
    from brimful.simulate.run import simulate

    job, strategy, device = draw(number)
    site = site_of(job, strategy, device)
    cluster = msgspec.structs.replace(H100, device=device, num_devices=world_size(strategy))
    rows = []
    for place in classes_of(site).values():
        memory = device_memory(site, place)
        found = simulate(job, cluster, strategy, rank=fullest_ranks(job, strategy)[place])
        peak = max(phase.num_bytes for phase in phase_peaks(memory))
        items = {item.name: item.num_bytes for item in found.items}
        own = found.simulated_peak_allocated_bytes - items.get(WORKSPACES, 0)
        rows.append((peak - found.simulated_peak_allocated_bytes, own))
    return rows, (job, strategy)


@pytest.mark.few(1)
@pytest.mark.torch
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_every_device_of_a_row_takes_what_its_simulation_takes(number):
    rows, drawn = missed(number)
    for miss, own in rows:
        assert abs(miss) <= PEAK_SHARE * own + SCALAR_BYTES, drawn


@pytest.mark.torch
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_each_gpu_told_of_is_what_its_simulation_takes_and_none_is_above_the_verdict(zero):
    """Where tokens are so many that the rows of the embedding's gradient are added up."""
    from brimful.simulate.run import simulate

    shards = 2 if zero else 1
    job = make_job(model=WIDE_BLOCKS, precision="bf16", seq_len=3200, global_batch=4 * shards)
    strategy = make_strategy(
        zero=zero,
        dp_shard=shards,
        pp=2,
        micro_batch=1,
        accumulate="hold",
        activation_checkpointing="full",
    )
    cluster = msgspec.structs.replace(H100, num_devices=world_size(strategy))
    told = device_peaks(job, strategy, cluster.device)
    each = [simulate(job, cluster, strategy, rank=r) for r in fullest_ranks(job, strategy)]
    for predicted, found in zip(told, each, strict=True):
        own = found.simulated_peak_allocated_bytes
        assert predicted == pytest.approx(own, rel=PEAK_SHARE, abs=SCALAR_BYTES)
    assert estimate(job, cluster, strategy).predicted_peak_allocated_bytes == max(told)
    reserved = predicted_reserved(job, cluster, strategy).predicted_peak_reserved_bytes
    assert reserved >= max(told)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved"])
def test_the_seconds_of_a_row_are_near_those_of_replaying_every_operation(schedule):
    """Devices differ, as first and last ones do."""
    for number in range(60):
        rng = random.Random(number)  # noqa: S311 - cases, not secrets
        devices, chunks = (
            rng.choice((2, 3, 4, 8)),
            1 if schedule in ONE_STAGE else rng.choice((2, 4)),
        )
        num, send_s = devices * rng.choice((1, 2, 3, 4, 8)), rng.choice((0, 0.01, 0.05))
        each = [(rng.uniform(0.8, 1.2), rng.uniform(1.6, 2.6)) for _ in range(devices)]
        way = Way(schedule, num, np.ones((devices, chunks), dtype=np.int64), (), send_s)
        mine = row_seconds(way, np.array(each)[:, :, None])[0]
        found = replay(schedule, num_micro_batches=num, stage_s=each, send_s=send_s, chunks=chunks)
        assert mine == pytest.approx(found.total_s, rel=REPLAY_SHARE)


def test_devices_of_a_row_share_the_work_and_a_row_idles_while_it_fills():
    job = make_job(model=EIGHT_BLOCKS, global_batch=8)
    alone = estimate(job, H100, make_strategy(micro_batch=1))
    cluster = load_cluster("2xh100-80gb", memory_limit_bytes=None)
    row = make_strategy(micro_batch=1, pp=2, accumulate="hold")
    both = estimate(job, cluster, row)
    assert both.predicted_step_s > alone.predicted_step_s / 2
    found = step_of_row(site_of(job, row, cluster.device), cluster)
    assert 1 / (8 + 1) / 2 < found.idle_share < 0.5
    assert sum(item.num_bytes for item in both.items) == both.predicted_peak_allocated_bytes


def test_a_device_of_a_row_holds_its_own_stages():
    job = make_job(model=EIGHT_BLOCKS, global_batch=8)
    whole = estimate(job, make_cluster("cuda"), make_strategy(micro_batch=1))
    row = make_strategy(micro_batch=1, pp=4, accumulate="hold")
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=4, devices_per_node=4)
    made = estimate(job, cluster, row)
    of = {item.name: item.num_bytes for item in made.items}
    every = {item.name: item.num_bytes for item in whole.items}
    assert of[PARAMETERS] < every[PARAMETERS]
    assert of[OPTIMIZER_STATE] < every[OPTIMIZER_STATE]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pp_schedule": "zero-bubble", "stages_per_device": 2}, "pp_schedule=zero-bubble"),
        ({"micro_batch": 8, "pp_schedule": "gpipe"}, "1 micro-batch"),
    ],
)
def test_what_is_not_predicted_is_refused_with_the_reason(changes, said):
    job = make_job(model=EIGHT_BLOCKS, global_batch=8)
    strategy = make_strategy(**{"micro_batch": 1, "pp": 2, "accumulate": "hold", **changes})
    assert said in missing_formula(job, strategy, H100.device)


def test_a_long_step_is_as_full_as_a_short_one():
    """But for GPipe, and for what interleaved stages sent, which lives until the end."""
    for device in range(4):
        short, long = (
            situations("1f1b", Row(4, num, 1), device, 0, keeps_waited=False) for num in (12, 96)
        )
        assert short == long
    most = [
        max(now.in_flight[0] for now in situations("1f1b", Row(4, 96, 1), d, 0, keeps_waited=False))
        for d in range(4)
    ]
    assert most == [4, 3, 2, 1]
