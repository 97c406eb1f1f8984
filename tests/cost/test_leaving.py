"""An offloaded optimizer: what is predicted on both sides is what the simulation has."""

import msgspec
import pytest

from brimful.build.offload import gradients
from brimful.cost.brought import NUM_ON_THE_WAY
from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.formula import missing_formula
from brimful.cost.on_host import on_host
from brimful.cost.requests import asked_of
from brimful.hardware.gpus import load_cluster
from brimful.search.solve import tabulate
from brimful.search.space import grids
from brimful.units import MIB
from brimful.values.strategy import world_size
from cost.replays import ALLOCATORS, live_peak, reserved
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy
from search.test_grid import assert_rows_are_estimates, sampled
from search.test_solve import FREE

WIDE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 2003}
FULL = {"activation_checkpointing": "full"}
MIXED = {"precision": "bf16-mixed"}
CASES = {
    "plain": ({"precision": "bf16"}, {}),
    "in chunks, checkpointed": (MIXED, {"loss_chunks": 3, **FULL}),
    "masters, mixed checkpointing": (
        {"precision": "bf16-master"},
        {"activation_checkpointing": "full:2"},
    ),
    "tied": ({**MIXED, "model": {"tie_word_embeddings": True}}, {"loss_chunks": 5}),
    "rows of the embedding": ({"precision": "bf16", "seq_len": 2048}, {"loss_chunks": 8, **FULL}),
    "held": ({"precision": "bf16", "global_batch": 6}, {"accumulate": "hold"}),
    "blocks": ({"precision": "bf16"}, {"offload": "parameters", **FULL}),
    "plain blocks": ({"precision": "fp32", "seq_len": 2048}, {"offload": "parameters"}),
    "blocks, masters, mixed": (
        {"precision": "bf16-master"},
        {"offload": "parameters", "loss_chunks": 2, "activation_checkpointing": "full:2"},
    ),
    "blocks under autocast": (
        MIXED,
        {"offload": "parameters", "loss_chunks": 3, "activation_checkpointing": "full:2"},
    ),
    "LoRA": ({**MIXED, "method": "lora", "adapter": make_adapter(rank=8)}, {}),
    "sharded": ({**MIXED, "global_batch": 16}, {"zero": 3, "dp_shard": 4, **FULL}),
    "sharded masters, held": (
        {"precision": "bf16-master", "global_batch": 24},
        {"zero": 2, "dp_shard": 4, "accumulate": "hold", "loss_chunks": 3},
    ),
    "shards of replicas": (
        {"precision": "bf16", "global_batch": 16, "model": {"tie_word_embeddings": True}},
        {"zero": 3, "dp_shard": 2, "dp_replicate": 2, "activation_checkpointing": "full:2"},
    ),
    "cut matrices, sharded": ({**MIXED, "global_batch": 8}, {"zero": 3, "dp_shard": 2, "tp": 2}),
    "parted experts": (
        {
            "precision": "bf16",
            "global_batch": 24,
            "model": {
                "model_type": "mixtral",
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": None,
            },
        },
        {"zero": 3, "dp_shard": 4, "ep": 2},
    ),
    "sharded LoRA": (
        {**MIXED, "method": "lora", "adapter": make_adapter(rank=8), "global_batch": 8},
        {"zero": 3, "dp_shard": 4, **FULL},
    ),
}


def asked(changes, how):
    changes = {"seq_len": 128, **changes}
    model = make_model(**{**WIDE, "max_position_embeddings": 4096, **changes.pop("model", {})})
    strategy = make_strategy(**{"offload": "optimizer", **how})
    num_devices = world_size(strategy)
    one = make_cluster("cuda")
    cluster = msgspec.structs.replace(one, num_devices=num_devices, devices_per_node=num_devices)
    return make_job(model=model, **changes), strategy, cluster


@pytest.mark.parametrize("name", CASES)
def test_requests_add_up_to_the_predicted_peak(name):
    job, strategy, cluster = asked(*CASES[name])
    assert not missing_formula(job, strategy, cluster.device)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    asked_for = asked_of(job, strategy, cluster.device)
    assert asked_for.num_unmatched == 0
    assert live_peak(asked_for.requests()) == pytest.approx(predicted, rel=2e-3)


@pytest.mark.torch
@pytest.mark.few(2)
@pytest.mark.parametrize("name", CASES)
def test_it_is_simulated_as_it_is_predicted(name):
    from brimful.simulate.run import simulate_recorded

    job, strategy, cluster = asked(*CASES[name])
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    run = simulate_recorded(job, cluster, strategy)
    assert int(run.recording.live_bytes().max()) == pytest.approx(predicted, rel=1e-4)
    mine, theirs = asked_of(job, strategy, cluster.device).requests(), run.recording.requests()
    for allocator in ALLOCATORS:
        expected = reserved(theirs, allocator)
        assert reserved(mine, allocator) == pytest.approx(expected, abs=2 * MIB)
    held = on_host(job, family_of(job, strategy), pins=False)
    there = run.simulation.simulated_peak_host_bytes
    num_steps = 4 * 64  # a step count of each tensor
    assert there - num_steps <= sum(held) <= 1.01 * there


def test_as_many_gradients_are_on_their_way_as_are_run():
    assert NUM_ON_THE_WAY == gradients.NUM_ON_THE_WAY


@pytest.mark.parametrize(
    ("changes", "offload"),
    [
        ({**MIXED, "method": "lora", "adapter": make_adapter(rank=8)}, "parameters"),
        ({"precision": "bf16"}, "parameters:2"),
        ({"precision": "bf16"}, "optimizer,activations"),
    ],
)
def test_what_has_no_formula_is_said(changes, offload):
    job, strategy, cluster = asked(changes, {"offload": offload})
    assert offload in missing_formula(job, strategy, cluster.device)


def test_less_is_on_the_device_and_all_of_it_on_the_host():
    job, strategy, cluster = asked(*CASES["plain"])
    here = make_strategy()
    with_it, without = (estimate(job, cluster, each) for each in (strategy, here))
    state = {item.name: item.num_bytes for item in without.items}["optimizer state"]
    less = without.predicted_peak_allocated_bytes - with_it.predicted_peak_allocated_bytes
    assert less >= state
    names = {item.name for item in with_it.host.items}
    assert {"parameters", "gradients", "optimizer state"} <= names
    assert with_it.predicted_step_s is None or with_it.predicted_step_s > without.predicted_step_s


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("gpus", "precision", "offload"),
    [
        ("rtx-4090", "bf16", "optimizer"),
        ("rtx-4090", "bf16-mixed", "optimizer"),
        ("rtx-4090", "bf16", "parameters"),
        ("4xrtx-4090", "bf16-mixed", "optimizer"),
    ],
)
def test_a_row_of_a_search_is_an_estimate(gpus, precision, offload):
    cluster = load_cluster(gpus, memory_limit_bytes=None)
    job, *_ = asked({"precision": precision, "seq_len": 1024, "global_batch": 8}, {})
    pins = FREE._replace(offload=offload)
    table = tabulate(job, cluster, "sdpa", grids(job, pins, attention="sdpa", cluster=cluster))
    assert table.offloads.all()
    assert_rows_are_estimates(job, cluster, table, sampled(1, table))


def test_a_host_that_is_too_small_is_not_taken():
    job, *_ = asked({"precision": "bf16-mixed", "seq_len": 1024, "global_batch": 8}, {})
    cluster = load_cluster("4xrtx-4090", memory_limit_bytes=None)
    pins = FREE._replace(offload="optimizer")

    def fitting(host_ram_bytes):
        told = msgspec.structs.replace(cluster, host_ram_bytes=host_ram_bytes)
        every = grids(job, pins, attention="sdpa", cluster=told)
        table = tabulate(job, told, "sdpa", every)
        return set(table.num_shards[table.fits].tolist())

    assert fitting(0) == {2, 4}
    strategy = make_strategy(zero=3, dp_shard=4, offload="optimizer")
    held = sum(on_host(job, family_of(job, strategy), pins=True))
    assert fitting(4 * held) == {4}
    assert not fitting(4 * held - 1)
