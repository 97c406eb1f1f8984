"""Modules kept in fp32: what was simulated is what the profiler counts in a real run."""

from functools import cache

import msgspec
import pytest

from brimful.cost.formula import missing_formula
from brimful.simulate.attempt import attempt
from brimful.simulate.run import simulate
from brimful.units import MIB
from brimful.values.job import SCALED, LossScale, check_job
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS
from metered import meter_steps
from samples import make_cluster, make_job, make_model, make_strategy

from .test_measured import SIZES

pytestmark = pytest.mark.torch

SCALE = LossScale(initial_scale=2.0**8, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)
CASES = [
    # architecture, precision, what is kept, checkpointing, loss chunks, attention
    ("llama", "bf16-mixed", ("norm", "mlp.gate_proj"), "none", 1, "sdpa"),
    ("llama", "bf16", ("input_layernorm", "lm_head"), "none", 4, "sdpa"),
    ("llama", "bf16-master", ("self_attn",), "full", 1, "sdpa"),
    ("llama", "bf16", ("embed_tokens", "down_proj"), "none", 1, "eager"),
    ("gpt2", "bf16", ("wte", "lm_head"), "full", 1, "sdpa"),
    ("gpt2", "bf16-mixed", ("lm_head", "h.1"), "full:2", 4, "sdpa"),
    ("gpt2", "fp16-master", ("mlp",), "selective", 1, "eager"),
]


def settings(case, keep):
    architecture, precision, _, checkpointing, chunks, attention = case
    job = make_job(
        architecture,
        model=make_model(architecture, **SIZES[architecture]),
        precision=precision,
        loss_scale=SCALE if precision in SCALED else None,
        seq_len=256,
        global_batch=4,
        keep_fp32=keep,
    )
    strategy = make_strategy(
        activation_checkpointing=checkpointing, loss_chunks=chunks, attention=attention
    )
    return check_job(job), strategy


@cache
def measured(case):
    job, strategy = settings(case, case[2])
    return meter_steps(job, strategy)


@cache
def simulated(case, keep):
    job, strategy = settings(case, keep)
    return simulate(job, make_cluster("cpu"), strategy)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case, case[2]).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= max(0.005 * peak, MIB)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case, case[2]).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen[name] == expected.get(name, 0)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_a_simulation_that_kept_nothing_would_be_noticed(case):
    peak = measured(case).measured_peak_allocated_bytes
    other = simulated(case, ()).simulated_peak_allocated_bytes
    assert abs(other - peak) > 2 * max(0.005 * peak, MIB)


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_formula_claims_to_know_it(case):
    job, strategy = settings(case, case[2])
    said = missing_formula(job, strategy, make_cluster("cpu").device)
    assert f"keep_fp32={','.join(case[2])}" in said


def test_a_block_that_is_unlike_the_others_is_not_unrolled():
    """Its name would name nothing in a model of fewer blocks."""
    model = make_model("llama", num_hidden_layers=9)
    job = make_job(model=model, precision="bf16", keep_fp32=("layers.7.mlp",))
    whole = simulate(job, make_cluster("cpu"), make_strategy())
    alike = simulate(
        make_job(model=model, precision="bf16", keep_fp32=("mlp",)),
        make_cluster("cpu"),
        make_strategy(),
    )
    assert parameters(whole) == 2 * (num(model) + 3 * 80 * 32)
    assert parameters(alike) == 2 * (num(model) + 9 * 3 * 80 * 32)


def parameters(simulation):
    return next(item.num_bytes for item in simulation.items if item.name == PARAMETERS)


def num(model):
    block = 4 * 32 * 32 - 2 * 16 * 32 + 3 * 80 * 32 + 2 * 32
    return 2 * model.vocab_size * 32 + 9 * block + 32


@pytest.mark.long  # searches by simulating are in test_search.py
def test_a_search_by_simulating_takes_it_and_claims_no_time():
    job, strategy = settings(CASES[0], ("mlp",))
    found = attempt(job, make_cluster("cpu"), strategy)
    assert found.peak_bytes == simulated(CASES[0], ("mlp",)).simulated_peak_allocated_bytes
    assert found.step_s is None
    assert attempt(*settings_without(job, strategy)).step_s > 0


def settings_without(job, strategy):
    return msgspec.structs.replace(job, keep_fp32=()), make_cluster("cpu"), strategy
