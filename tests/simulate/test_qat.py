"""Rounded training: what was simulated is what the profiler counts in a real run."""

from functools import cache

import pytest

from brimful.cost.formula import missing_formula
from brimful.simulate.run import simulate
from brimful.techniques.quantization import Quantization
from brimful.units import MIB
from brimful.values.job import check_job
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS
from metered import meter_steps
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason="torchao is not installed (pip install 'brimful[qat]')")

WIDE = {
    "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 64, "num_hidden_layers": 2,
}  # fmt: skip
"""Where the widest instant is in a product and not at the loss."""
CASES = [
    # precision, scheme, group size, checkpointing, attention, optimizer
    ("fp32", "int8", 0, "none", "sdpa", "adamw"),
    ("fp32", "int4", 32, "full", "sdpa", "sgd"),
    ("bf16", "int4", 128, "none", "eager", "adamw"),
    ("bf16-mixed", "int4", 32, "full:1", "sdpa", "adamw"),
    ("bf16-mixed", "int8", 0, "selective", "sdpa", "adamw"),
]


def settings(case, **changes):
    precision, scheme, size, checkpointing, attention, optimizer = case
    fields = {
        "model": make_model("llama", **WIDE),
        "method": "qat",
        "quantization": Quantization(scheme=scheme, group_size=size),
        "precision": precision,
        "seq_len": 256,
        "global_batch": 8,
        "optimizer": optimizer,
    }
    strategy = make_strategy(
        micro_batch=4, activation_checkpointing=checkpointing, attention=attention
    )
    return check_job(make_job(**{**fields, **changes})), strategy


@cache
def measured(case):
    job, strategy = settings(case)
    return meter_steps(job, strategy)


@cache
def simulated(case):
    job, strategy = settings(case)
    return simulate(job, make_cluster("cpu"), strategy)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= max(0.005 * peak, MIB)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen[name] == expected.get(name, 0)


def test_a_simulation_without_rounding_would_be_noticed():
    job, strategy = settings(CASES[0], method="full", quantization=None)
    other = simulate(job, make_cluster("cpu"), strategy).simulated_peak_allocated_bytes
    peak = measured(CASES[0]).measured_peak_allocated_bytes
    assert abs(other - peak) > 4 * max(0.005 * peak, MIB)


def test_a_gpu_is_simulated_too():
    job, strategy = settings(CASES[3])
    assert simulate(job, make_cluster("cuda"), strategy).reserved.outcome == "fits"


def test_shards_are_simulated():
    job, strategy = settings(CASES[3])
    whole, parts = (
        simulate(job, make_cluster("cpu"), make_strategy(micro_batch=2, **spread))
        for spread in ({}, {"zero": 3, "dp_shard": 2})
    )
    held = [
        next(item.num_bytes for item in each.items if item.name == OPTIMIZER_STATE)
        for each in (whole, parts)
    ]
    assert held[1] == pytest.approx(held[0] / 2, rel=1e-3)
    assert strategy.zero == 0


def test_no_formula_is_claimed():
    job, strategy = settings(CASES[0])
    assert "method=qat has no formula" in missing_formula(job, strategy, make_cluster("cpu").device)
