"""Moments of few bits: predicted, simulated, measured, where the update is the widest instant."""

import pytest

from brimful.cost.estimate import estimate
from brimful.process.child import run_in_child
from brimful.simulate.run import simulate
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.units import KIB
from brimful.values.job import check_job
from brimful.values.results import OPTIMIZER_STATE
from metered import meter_steps, product_scratch_bytes
from samples import make_cluster, make_job, make_model, make_strategy
from simulate import compiled_updates

COMPILED = [name for name, rule in OPTIMIZERS.items() if rule.compiled]
pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason="torchao is not installed (pip install 'brimful[qat]')")

WIDE = {"hidden_size": 128, "intermediate_size": 384, "vocab_size": 4000, "num_hidden_layers": 2}
COUNTS_BYTES = 4 * 21
"""Step counts, which the meter sees and the tape does not: they lie on the host."""
CASES = [
    ("bf16", "adamw-fp8", 16),
    ("fp32", "adamw-4bit", 16),
    ("bf16-mixed", "adamw-4bit", 64),
]


FEW_SHAPES = {**WIDE, "intermediate_size": 128, "num_key_value_heads": 4, "head_dim": 32}
"""The same with square matrices: what is measured compiles an update for each shape."""


def settings(case, **sizes):
    precision, optimizer, seq_len = case
    job = make_job(
        model=make_model("llama", **(sizes or WIDE)),
        precision=precision,
        optimizer=optimizer,
        seq_len=seq_len,
        global_batch=4,
    )
    return check_job(job), make_strategy(micro_batch=2)


def measured(job, strategy):
    return meter_steps(job, strategy)


@pytest.mark.few(1)  # a shape compiles for 3 to 20 seconds
@pytest.mark.parametrize("case", CASES, ids=str)
def test_three_rungs_agree(case):
    job, strategy = settings(case, **FEW_SHAPES)
    reading, cluster = measured(job, strategy), make_cluster("cpu")
    simulated = simulate(job, cluster, strategy)
    predicted = estimate(job, cluster, strategy)
    peak, beside = reading.measured_peak_allocated_bytes, product_scratch_bytes(job, strategy)
    for rung in (
        simulated.simulated_peak_allocated_bytes,
        predicted.predicted_peak_allocated_bytes,
    ):
        assert -0.005 * peak <= peak - rung <= 0.005 * peak + beside
    held = [
        {item.name: item.num_bytes for item in rung.items}[OPTIMIZER_STATE]
        for rung in (reading, simulated)
    ]
    assert held[0] - held[1] == COUNTS_BYTES


@pytest.mark.few
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize("optimizer", COMPILED)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16-mixed"])
def test_the_prediction_is_the_simulation(optimizer, precision, kernels):
    job, strategy = settings((precision, optimizer, 16))
    cluster = make_cluster(kernels)
    peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert estimate(job, cluster, strategy).predicted_peak_allocated_bytes == pytest.approx(
        peak, rel=1e-3
    )


@pytest.mark.few(only=["('adamw-4bit', 128)", "('adamw-fp8', 256)"])
@pytest.mark.parametrize(
    "case",
    [("adamw-4bit", 128), ("adamw-4bit", 192), ("adamw-fp8", 64), ("adamw-fp8", 256),
     ("adamw-fp8", 384)],
    ids=str,
)  # fmt: skip
def test_what_is_taken_on_a_gpu_is_what_the_code_for_one_allocates(case):
    """Inductor's code for the card, run on the pretend GPU: rows that are a block, less, more."""
    by_table, by_code, without = run_in_child(compiled_updates.taken, case)
    assert by_code == pytest.approx(by_table, abs=KIB)  # scalars of the norm
    assert (without < by_table - 2 * KIB) == (by_table > 2 * KIB)
