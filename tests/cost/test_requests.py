"""Predicted requests, replayed, are what the simulation's are: the same reserved memory."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.requests import asked_of, requests_of
from brimful.cost.reserved import candidate_of, predicted_reserved
from brimful.models.config import load_model, read_config
from brimful.units import GIB, MIB
from brimful.values.job import plain_job
from cost.replays import ALLOCATORS, live_peak, reserved
from samples import make_adapter, make_cluster, make_strategy

CLUSTER = make_cluster("cuda", usable_bytes=200 * GIB)
FULL = {"activation_checkpointing": "full"}
QWEN3 = load_model("qwen3-0.6b")
FEW_BLOCKS = read_config(
    "qwen3", {**QWEN3.hf_config, "model_type": "qwen3", "num_hidden_layers": 8}
)
"""Of what is traced whole: every block of it runs."""
SHARDED = {"zero": 3, "dp_shard": 4}
CASES = {
    "plain": ({}, {}),
    "chunks that are uneven": ({"global_batch": 3}, {"micro_batch": 3, "loss_chunks": 7, **FULL}),
    "mixed checkpointing": ({"precision": "bf16-mixed"}, {"activation_checkpointing": "full:5"}),
    "one block checkpointed": ({}, {"activation_checkpointing": "full:1", "loss_chunks": 4}),
    "all but one, sharded": (
        {"global_batch": 8, "precision": "bf16-mixed"},
        {**SHARDED, "activation_checkpointing": "full:27"},
    ),
    "masters": ({"precision": "bf16-master"}, {"loss_chunks": 3, **FULL}),
    "8 bits": ({"optimizer": "adamw-8bit"}, {"loss_chunks": 2}),
    "foreach": ({"optimizer": "adamw-foreach"}, {}),
    "biases": ({"model": load_model("gpt2"), "seq_len": 1024}, {"loss_chunks": 4}),
    "LoRA": ({"method": "lora", "adapter": make_adapter(rank=16)}, FULL),
    "DDP": ({"global_batch": 8}, {"dp_replicate": 4}),
    "ZeRO-1": ({"global_batch": 8}, {"zero": 1, "dp_shard": 4}),
    "ZeRO-2": ({"global_batch": 8, "precision": "bf16-mixed"}, {**SHARDED, "zero": 2}),
    "ZeRO-3": ({"global_batch": 8}, {**SHARDED, **FULL}),
    "FSDP1": (
        {"global_batch": 8, "precision": "bf16-mixed", "model": FEW_BLOCKS},
        {**SHARDED, "fsdp": 1, **FULL},
    ),
    "FSDP1, held": (
        {"global_batch": 24, "precision": "bf16-mixed"},
        {**SHARDED, "fsdp": 1, "accumulate": "hold"},
    ),
    "replicas of shards": ({"global_batch": 8}, {"zero": 3, "dp_shard": 2, "dp_replicate": 2}),
    "LoRA, sharded": (
        {"method": "lora", "adapter": make_adapter(rank=16), "global_batch": 8},
        SHARDED,
    ),
    "QLoRA": (
        {
            "method": "qlora",
            "adapter": make_adapter(rank=16, base="nf4-double"),
            "precision": "bf16-mixed",
        },
        FULL,
    ),
    "gradients held": (
        {"precision": "bf16-mixed", "global_batch": 12},
        {**SHARDED, "accumulate": "hold", **FULL},
    ),
}


def asked(changes, how):
    fields = {
        "model": QWEN3,
        "precision": "bf16",
        "seq_len": 2048,
        "global_batch": 2,
        **changes,
    }
    fields |= {"num_steps": 2, "learning_rate": 1e-3}
    return plain_job(**fields), make_strategy(**{"micro_batch": 1, **how})


def simulated(job, strategy):
    from brimful.simulate.run import simulate_recorded

    return simulate_recorded(job, CLUSTER, strategy).recording.requests()


@pytest.mark.few(9)
@pytest.mark.parametrize("name", CASES)
def test_requests_add_up_to_the_predicted_peak(name):
    job, strategy = asked(*CASES[name])
    predicted = estimate(job, CLUSTER, strategy).predicted_peak_allocated_bytes
    asked_for = asked_of(job, strategy, CLUSTER.device)
    assert asked_for.num_unmatched == 0
    there = live_peak(asked_for.requests())
    assert there == pytest.approx(predicted, abs=2 * MIB)


@pytest.mark.torch
@pytest.mark.few(only=["ZeRO-3", "FSDP1"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_reserved_is_what_the_simulation_reserves(name):
    job, strategy = asked(*CASES[name])
    mine, theirs = requests_of(job, strategy, CLUSTER.device), simulated(job, strategy)
    for allocator in ALLOCATORS:
        expected = reserved(theirs, allocator)
        assert reserved(mine, allocator) == pytest.approx(expected, rel=1e-3)


LATE = {
    name: CASES[name]
    for name in ("plain", "mixed checkpointing", "foreach", "ZeRO-3", "8 bits", "LoRA")
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", LATE)
def test_state_of_the_first_update_comes_behind_a_step(name):
    """The same requests, and the same peak of what lives, in the order of torch's optimizers."""
    job, strategy = asked(*LATE[name])
    early = asked_of(job, strategy, CLUSTER.device).requests()
    late = asked_of(job, strategy, CLUSTER.device, is_state_late=True).requests()
    assert sorted(early.num_bytes) == sorted(late.num_bytes)
    assert live_peak(early) == live_peak(late)
    assert list(early.num_bytes) != list(late.num_bytes)


def test_a_cache_of_logits_does_not_hold_all_of_a_late_state():
    """What a first step leaves cached is in pieces that state and temporaries do not fill."""
    job, strategy = asked({"optimizer": "adamw-foreach", "global_batch": 4}, {"micro_batch": 4})
    early = asked_of(job, strategy, CLUSTER.device).requests()
    late = asked_of(job, strategy, CLUSTER.device, is_state_late=True).requests()
    assert reserved(late, "") != reserved(early, "")


def test_a_card_that_is_just_large_enough_and_one_that_is_not():
    job, strategy = asked(*CASES["plain"])
    candidate = candidate_of(job, CLUSTER, strategy)
    free = candidate.reserved("")
    assert (free.word, free.excess_bytes) == ("fits", 0)
    assert free.predicted_peak_reserved_bytes == free.predicted_unhindered_bytes
    outside = CLUSTER.device.usable_bytes - free.firm_bytes
    device = msgspec.structs.replace(
        CLUSTER.device, usable_bytes=outside + free.predicted_unhindered_bytes
    )
    full = msgspec.structs.replace(CLUSTER, device=device)
    assert predicted_reserved(job, full, strategy).word == "fits"
    small = msgspec.structs.replace(
        full, device=msgspec.structs.replace(device, usable_bytes=device.usable_bytes // 2)
    )
    short = predicted_reserved(job, small, strategy)
    assert short.word == "no"
    assert short.short_bytes > 0
    assert short.excess_bytes == free.predicted_unhindered_bytes - short.firm_bytes


def test_nothing_is_known_of_a_cpu():
    job, strategy = asked(*CASES["plain"])
    assert predicted_reserved(job, make_cluster("cpu"), strategy) is None
