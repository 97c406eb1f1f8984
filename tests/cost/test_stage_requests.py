"""What a pipeline's devices ask for, replayed, is what their simulations reserve."""

import pytest

from brimful.cost.reserved import candidate_of
from brimful.cost.stage_memory import device_memory
from brimful.cost.stage_peaks import peak_of
from brimful.cost.stage_requests import device_asked
from brimful.cost.stage_site import classes_of, fullest_ranks, site_of
from brimful.models.config import load_model, read_config
from brimful.units import GIB, MIB
from brimful.values.job import plain_job
from cost.replays import ALLOCATORS, live_peak, reserved
from samples import make_cluster, make_strategy

CLUSTER = make_cluster("cuda", usable_bytes=200 * GIB)
CASES = {
    "one forward, one backward": ({}, {}),
    "all forwards first": ({}, {"pp_schedule": "gpipe"}),
    "more micro-batches than are walked": ({"global_batch": 14}, {}),
    "two stages on each device": (
        {"global_batch": 10},
        {"pp_schedule": "interleaved", "stages_per_device": 2},
    ),
    "three devices, mixed checkpointing, pieces of the loss": (
        {"global_batch": 5, "precision": "bf16-mixed"},
        {"pp": 3, "activation_checkpointing": "full:9", "loss_chunks": 3},
    ),
    "masters": ({"precision": "bf16-master"}, {"activation_checkpointing": "full"}),
    "a stage of one block": ({"model": "smollm2-135m"}, {"pp": 3, "stage_blocks": (15, 14, 1)}),
    "DDP": ({"global_batch": 8}, {"dp_replicate": 2}),
    "DDP, masters": ({"global_batch": 8, "precision": "bf16-master"}, {"dp_replicate": 2}),
    "ZeRO-1": ({"global_batch": 8}, {"zero": 1, "dp_shard": 2}),
    "ZeRO-2": ({"global_batch": 8, "precision": "bf16-mixed"}, {"zero": 2, "dp_shard": 2}),
    "ZeRO-3": ({"global_batch": 8}, {"zero": 3, "dp_shard": 2}),
    "replicas of shards": ({"global_batch": 16}, {"zero": 3, "dp_shard": 2, "dp_replicate": 2}),
    "whole stages gathered ahead": (
        {"global_batch": 8},
        {"pp_schedule": "interleaved", "stages_per_device": 2, "zero": 3, "dp_shard": 2},
    ),
    "more stages than are whole at a time": (
        {"global_batch": 8},
        {"pp_schedule": "interleaved", "stages_per_device": 4, "zero": 3, "dp_shard": 2},
    ),
    "ZeRO-2, more stages than are whole at a time": (
        {"global_batch": 8, "precision": "bf16-mixed"},
        {"pp_schedule": "interleaved", "stages_per_device": 7, "zero": 2, "dp_shard": 2},
    ),
    "matrices cut": ({}, {"tp": 2}),
    "matrices cut and shards": ({"global_batch": 8}, {"tp": 2, "zero": 3, "dp_shard": 2}),
    "experts parted": (
        {"model": "qwen3_moe", "global_batch": 16},
        {"zero": 3, "dp_shard": 4, "ep": 2, "accumulate": "hold", "loss_chunks": 3},
    ),
    "experts in several stages of each device": (
        {"model": "mixtral", "global_batch": 16},
        {
            "pp_schedule": "interleaved", "stages_per_device": 2, "zero": 2, "dp_shard": 4, "ep": 2,
            "accumulate": "hold",
        },
    ),
    "shards of stages of one block": (
        {"model": "mixtral", "global_batch": 16, "precision": "bf16-mixed"},
        {"pp": 4, "zero": 2, "dp_shard": 2, "activation_checkpointing": "full"},
    ),
    "each device its own experts": (
        {"model": "mixtral", "global_batch": 8},
        {"zero": 2, "dp_shard": 2, "ep": 2, "accumulate": "hold", "pp_schedule": "gpipe"},
    ),
}  # fmt: skip
_MIXTURE = {
    "hidden_size": 256, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 4, "vocab_size": 2048, "num_experts_per_tok": 2, "sliding_window": None,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTURES = {
    "mixtral": {"intermediate_size": 192, "num_local_experts": 8},
    "qwen3_moe": {"intermediate_size": 384, "moe_intermediate_size": 192, "num_experts": 8},
}


def asked(changes, how):
    fields = {"model": "qwen3-0.6b", "precision": "bf16", "seq_len": 2048, "global_batch": 4}
    fields |= {"num_steps": 2, "learning_rate": 1e-3, **changes}
    name = fields["model"]
    fields["model"] = (
        read_config(f"tiny-{name}", {"model_type": name, **_MIXTURE, **MIXTURES[name]})
        if name in MIXTURES
        else load_model(name)
    )
    return plain_job(**fields), make_strategy(**{"micro_batch": 1, "pp": 2, **how})


@pytest.mark.few(10)
@pytest.mark.parametrize("name", CASES)
def test_requests_add_up_to_the_predicted_peak(name):
    job, strategy = asked(*CASES[name])
    site = site_of(job, strategy, CLUSTER.device)
    for place in classes_of(site).values():
        asks = device_asked(site, place)
        assert asks.num_unmatched == 0
        predicted = peak_of(device_memory(site, place))
        assert live_peak(asks.requests()) == pytest.approx(predicted, rel=1e-3, abs=2 * MIB)


@pytest.mark.torch
@pytest.mark.few(only=["one forward, one backward"])
@pytest.mark.parametrize("name", CASES)
def test_what_each_place_reserves_is_what_its_simulation_reserves(name):
    from brimful.simulate.run import simulate_recorded

    job, strategy = asked(*CASES[name])
    site, ranks = site_of(job, strategy, CLUSTER.device), fullest_ranks(job, strategy)
    for place in classes_of(site).values():
        mine = device_asked(site, place).requests()
        recording = simulate_recorded(job, CLUSTER, strategy, rank=ranks[place]).recording
        for allocator in ALLOCATORS:
            expected = reserved(recording.requests(), allocator)
            assert reserved(mine, allocator) == pytest.approx(expected, rel=5e-3)


def test_the_device_that_fares_worst_is_what_is_said():
    job, strategy = asked({}, {})
    candidate = candidate_of(job, CLUSTER, strategy)
    each = [reserved(requests, "") for requests in candidate.requests]
    assert len(each) == 2
    assert candidate.reserved("").predicted_peak_reserved_bytes == max(each)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_what_the_only_block_of_a_stage_makes_is_sent(schedule, checkpointing):
    num_stages = 2 if schedule == "interleaved" else 1
    how = {"pp": 4 // num_stages, "pp_schedule": schedule, "stages_per_device": num_stages}
    how |= {"zero": 2, "dp_shard": 2, "activation_checkpointing": checkpointing}
    changes = {"model": "mixtral", "global_batch": 16, "precision": "bf16-mixed"}
    job, strategy = asked(changes, how)
    site = site_of(job, strategy, CLUSTER.device)
    for place in classes_of(site).values():
        predicted = peak_of(device_memory(site, place))
        mine = live_peak(device_asked(site, place).requests())
        assert mine == pytest.approx(predicted, rel=1e-5)
