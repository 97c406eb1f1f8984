"""Products in fp8: what was simulated is what the profiler counts in a real, emulated run."""

from functools import cache

import msgspec
import pytest

from brimful.cost.formula import missing_formula
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import MatrixRates
from brimful.simulate.attempt import attempt
from brimful.simulate.run import simulate, trace
from brimful.units import MIB
from brimful.values.job import check_job
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS
from float8 import WHY
from metered import meter_steps
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason=WHY)

WIDE = {
    "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 64, "num_hidden_layers": 2,
}  # fmt: skip
"""Where the widest instant is in a product and not at the loss."""
CASES = [
    # checkpointing, attention, what is kept in fp32, optimizer, packing
    ("none", "sdpa", (), "adamw", "wrapped"),
    ("full", "sdpa", (), "adamw", "wrapped"),
    ("selective", "eager", (), "adamw", "wrapped"),
    ("full:1", "sdpa", ("down_proj", "norm"), "sgd", "wrapped"),
    ("none", "sdpa", (), "adamw", "none"),
]


def settings(case, precision="fp8"):
    checkpointing, attention, keep, optimizer, packing = case
    job = make_job(
        model=make_model("llama", **WIDE),
        precision=precision,
        seq_len=256,
        global_batch=8,
        keep_fp32=keep,
        optimizer=optimizer,
        packing=packing,
    )
    strategy = make_strategy(
        micro_batch=4, activation_checkpointing=checkpointing, attention=attention
    )
    return check_job(job), strategy


@cache
def measured(case):
    job, strategy = settings(case)
    return meter_steps(job, strategy)


@cache
def simulated(case, precision="fp8", kernels="cpu"):
    job, strategy = settings(case, precision)
    return simulate(job, make_cluster(kernels), strategy)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= max(0.005 * peak, MIB)


@pytest.mark.few(1)  # build/test_fp8.py checkpoints and writes scores out
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen[name] == expected.get(name, 0)


def test_a_simulation_of_bf16_mixed_would_be_noticed():
    peak = measured(CASES[0]).measured_peak_allocated_bytes
    other = simulated(CASES[0], "bf16-mixed").simulated_peak_allocated_bytes
    assert abs(other - peak) > 4 * max(0.005 * peak, MIB)


def count(case, kernels, name):
    """Count the products of one step by the name of their operation, in both micro-batches."""
    job, strategy = settings(case)
    recording = trace(job, strategy, imitate=kernels, count_costs=True, num_steps=1).recording
    return sum(cost.op.startswith(name) for cost in recording.costs)


def test_on_cuda_every_product_of_a_layer_is_a_scaled_one_and_on_a_cpu_none():
    layers, micro_batches = 2 * 7, 2
    assert count(CASES[0], "cuda", "aten._scaled_mm") == 3 * layers * micro_batches
    assert count(CASES[0], "cpu", "aten._scaled_mm") == 0
    assert count(CASES[0], "cpu", "aten.mm") == 3 * (layers + 1) * micro_batches  # and the head


def test_a_gpu_without_units_is_refused_before_anything_is_built():
    job, strategy = settings(CASES[0])
    cluster = make_cluster("cuda")
    device = msgspec.structs.replace(cluster.device, capability=8.0)
    with pytest.raises(UnsupportedError, match="precision=fp8 cannot run here"):
        simulate(job, msgspec.structs.replace(cluster, device=device), strategy)


def test_no_formula_and_no_step_time_is_claimed():
    """No share of the fp8 rate of an Ada was fitted to a run."""
    job, strategy = settings(CASES[0])
    rates = MatrixRates(fp32=1e12, bf16=2e12, fp8=4e12)
    cluster = make_cluster("cuda", matrix_flops_per_s=rates, calibrated=False, capability=8.9)
    assert "precision=fp8 has no formula" in missing_formula(job, strategy, cluster.device)
    assert attempt(job, cluster, strategy).step_s is None
    plain = msgspec.structs.replace(job, precision="bf16-mixed")
    assert attempt(plain, cluster, strategy).step_s > 0


@pytest.mark.long  # test_own_profile.py simulates fp8 of shards
@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
def test_shards_are_simulated(zero, kernels):
    job, strategy = settings(CASES[0])
    sharded = msgspec.structs.replace(strategy, micro_batch=2, zero=zero, dp_shard=2)
    whole = msgspec.structs.replace(strategy, micro_batch=2)
    parts = [simulate(job, make_cluster(kernels), each) for each in (sharded, whole)]
    held = [
        next(item.num_bytes for item in part.items if item.name == OPTIMIZER_STATE)
        for part in parts
    ]
    assert held[0] == pytest.approx(held[1] / 2, rel=1e-3)
