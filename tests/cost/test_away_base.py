"""A frozen base on the host: what is predicted of both sides is what the simulation has."""

import msgspec
import pytest

from brimful.cost.base_copies import base_sizes
from brimful.cost.copied import Copied
from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.formula import missing_formula
from brimful.cost.on_host import copied_of, on_host
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

WIDE = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 128,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
GPT2 = {"n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 128}
PACKED, PLAIN = ("nf4-double", "bf16-mixed"), ("same", "bf16")
MIXTRAL = {
    "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    "sliding_window": None,
}  # fmt: skip
CASES = {
    "packed, checkpointed": (PACKED, "full", {}, {}),
    "packed": (PACKED, "none", {}, {}),
    "packed, mixed checkpointing": (("nf4-double", "bf16"), "full:2", {}, {}),
    "packed, selective": (PACKED, "selective", {}, {}),
    "plain, checkpointed": (PLAIN, "full", {}, {}),
    "plain": (PLAIN, "none", {}, {}),
    "plain beside wide adapters": (("bf16", "bf16-mixed"), "full", {}, {}),
    "several devices": (PACKED, "full", {"dp_replicate": 2}, {}),
    "several devices, held": (PLAIN, "full:1", {"dp_replicate": 2, "accumulate": "hold"}, {}),
    "ZeRO-1": (PACKED, "full", {"zero": 1, "dp_shard": 2}, {}),
    "with the optimizer": (PACKED, "full", {"offload": "optimizer,parameters"}, {}),
    "biases": (PACKED, "full", {}, {"model_type": "qwen2"}),
    "experts": (PACKED, "none", {}, MIXTRAL),
    "in chunks": (PACKED, "full", {"loss_chunks": 4}, {}),
}


def asked(base, precision, how, model, **adapter):
    strategy = make_strategy(**{"micro_batch": 1, "offload": "parameters", **how})
    num_devices = world_size(strategy)
    cluster = msgspec.structs.replace(
        make_cluster("cuda"), num_devices=num_devices, devices_per_node=num_devices
    )
    job = make_job(
        model=make_model(**{**WIDE, **model}),
        precision=precision,
        seq_len=128,
        global_batch=4,
        method="qlora" if base == "nf4-double" else "lora",
        adapter=make_adapter(rank=8, base=base, **adapter),
    )
    return job, strategy, cluster


def case(name):
    (base, precision), checkpointing, how, model = CASES[name]
    return asked(base, precision, {"activation_checkpointing": checkpointing, **how}, model)


@pytest.mark.parametrize("name", CASES)
def test_requests_add_up_to_the_predicted_peak(name):
    job, strategy, cluster = case(name)
    assert not missing_formula(job, strategy, cluster.device)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    asked_for = asked_of(job, strategy, cluster.device)
    assert asked_for.num_unmatched == 0
    assert live_peak(asked_for.requests()) == pytest.approx(predicted, rel=1e-4)


@pytest.mark.torch
@pytest.mark.few(only=["plain, checkpointed", "ZeRO-1"])  # which is packed and checkpointed
@pytest.mark.parametrize("name", CASES)
def test_it_is_simulated_as_it_is_predicted(name):
    from brimful.simulate.run import simulate_recorded

    job, strategy, cluster = case(name)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    run = simulate_recorded(job, cluster, strategy)
    assert int(run.recording.live_bytes().max()) == pytest.approx(predicted, rel=1e-3)
    mine, theirs = asked_of(job, strategy, cluster.device).requests(), run.recording.requests()
    for allocator in ALLOCATORS:
        assert reserved(mine, allocator) == pytest.approx(reserved(theirs, allocator), abs=2 * MIB)
    held = sum(on_host(job, family_of(job, strategy), pins=False))
    there = run.simulation.simulated_peak_host_bytes
    assert there - 4 * 64 <= held <= 1.01 * there


def test_what_trains_stays_and_the_rest_of_blocks_is_on_the_host():
    job, strategy, cluster = case("packed, checkpointed")
    here = msgspec.structs.replace(strategy, offload="none")
    away, whole = (estimate(job, cluster, each) for each in (strategy, here))
    items = [{item.name: item.num_bytes for item in each.items} for each in (away, whole)]
    assert items[0]["optimizer state"] == items[1]["optimizer state"]
    held = on_host(job, family_of(job, strategy), pins=False)
    assert held.base == sum(held) == sum(base_sizes(job))
    less = whole.predicted_peak_allocated_bytes - away.predicted_peak_allocated_bytes
    assert 0 < less < held.base


def test_a_base_is_brought_for_each_pass_and_never_taken_back():
    job, strategy, _ = case("packed, checkpointed")
    family = family_of(job, strategy)
    assert copied_of(job, family) == Copied(to_device=2.0 * 4 * sum(base_sizes(job)))


@pytest.mark.parametrize(
    ("base", "precision", "how", "adapter"),
    [
        (*PACKED, {"offload": "parameters:2"}, {}),
        (*PACKED, {}, {"targets": ("q_proj", "v_proj")}),
        ("same", "bf16-mixed", {}, {}),
    ],
)
def test_what_has_no_formula_is_said(base, precision, how, adapter):
    job, strategy, cluster = asked(base, precision, how, {}, **adapter)
    assert strategy.offload in missing_formula(job, strategy, cluster.device)


@pytest.mark.parametrize("gpus", ["rtx-4090", "2xrtx-4090"])
def test_a_row_of_a_search_is_an_estimate(gpus):
    job, _, _ = case("packed")
    cluster = load_cluster(gpus, memory_limit_bytes=None)
    pins = FREE._replace(offload="parameters")
    table = tabulate(job, cluster, "sdpa", grids(job, pins, attention="sdpa", cluster=cluster))
    assert table.offloads.all()
    assert set(table.zero.tolist()) <= {0, 1}
    assert_rows_are_estimates(job, cluster, table, sampled(1, table))
