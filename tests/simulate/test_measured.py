"""The second rung against the third: what was simulated is what the profiler counts in a real run.

The two share no instrument: the meter reads the CPU allocator's events, the tape fake tensors.
"""

from functools import cache

import pytest

from brimful.simulate.run import simulate
from brimful.units import KIB, MIB
from brimful.values.results import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from metered import meter_steps
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "llama": {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000},
    "gpt2": {"n_embd": 128, "n_inner": 344, "vocab_size": 2000},
}
CASES = [
    # architecture, precision, checkpointing, loss chunks, attention, accumulation: all pairs
    ("llama", "fp32", "none", 1, "sdpa", 1),
    ("llama", "bf16", "full", 4, "eager", 2),
    ("llama", "bf16-mixed", "full:2", 4, "sdpa", 2),
    ("llama", "bf16-mixed", "none", 1, "eager", 1),
    ("gpt2", "fp32", "full", 4, "eager", 1),
    ("gpt2", "fp32", "full:2", 1, "sdpa", 2),
    ("gpt2", "bf16", "none", 1, "sdpa", 2),
    ("gpt2", "bf16", "full:1", 4, "sdpa", 1),
    ("gpt2", "bf16-mixed", "full:1", 1, "eager", 2),
    ("gpt2", "bf16-mixed", "full", 4, "sdpa", 1),
]
SCRATCH_BYTES = 32 * KIB
"""Host copies of the batch, scalars and statistics that kernels of the two sides hold otherwise."""


def settings(case):
    architecture, precision, checkpointing, chunks, attention, accumulation = case
    job = make_job(
        architecture,
        model=make_model(architecture, **SIZES[architecture]),
        precision=precision,
        seq_len=256,
        global_batch=2 * accumulation,
    )
    strategy = make_strategy(
        activation_checkpointing=checkpointing, loss_chunks=chunks, attention=attention
    )
    return job, strategy


@cache
def measured(case):
    """Meter two real steps, in the order in which production does."""
    job, strategy = settings(case)
    return meter_steps(job, strategy)


@cache
def simulated(case):
    job, strategy = settings(case)
    return simulate(job, make_cluster("cpu"), strategy)


def allowed_bytes(case, num_bytes):
    """oneDNN's bf16 products take scratch from the allocator, by CPU and number of threads."""
    return SCRATCH_BYTES if case[1] == "fp32" else max(0.005 * num_bytes, MIB)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= allowed_bytes(case, peak)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_phase_peaks_where_it_was_simulated_to(case):
    phases = {phase.phase: phase.num_bytes for phase in measured(case).phases}
    assert list(phases) == ["load", "step 1", "step 2+"]
    assert [phase.phase for phase in simulated(case).phases] == list(phases)
    for phase in simulated(case).phases:
        difference = phase.num_bytes - phases[phase.phase]
        assert abs(difference) <= allowed_bytes(case, phase.num_bytes)


@pytest.mark.few(2)  # as above; simulated_vs_measured.json has every recipe
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen[name] == expected.get(name, 0)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", [c for c in CASES if c[2] == "none" or c[1] == "fp32"], ids=str)
def test_gradients_are_told_apart_by_both_instruments(case):
    """The meter knows a gradient by its address after backward: the head's may still be a sum."""
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    job, _ = settings(case)
    whole = expected[PARAMETERS]
    assert seen[GRADIENTS] <= whole
    assert expected.get(GRADIENTS, 0) <= whole
    if job.global_batch > 2:
        assert seen[GRADIENTS] == expected[GRADIENTS] == whole


def test_a_wrong_simulation_would_be_noticed():
    """Whole logits instead of chunks, or no checkpointing, is far outside of what is allowed."""
    case = CASES[4]
    job, strategy = settings(case)
    peak = measured(case).measured_peak_allocated_bytes
    other = simulate(job, make_cluster("cpu"), make_strategy(attention="eager", loss_chunks=1))
    assert abs(other.simulated_peak_allocated_bytes - peak) > 10 * allowed_bytes(case, peak)
    assert strategy.loss_chunks == 4


def test_the_timeline_of_the_meter_ends_at_what_lasts():
    reading = measured(CASES[0])
    assert max(reading.timeline.live_bytes) == reading.measured_peak_allocated_bytes
    lasting = {PARAMETERS, BUFFERS, OPTIMIZER_STATE}
    expected = sum(item.num_bytes for item in reading.items if item.name in lasting)
    assert reading.timeline.live_bytes[-1] == pytest.approx(expected, abs=SCRATCH_BYTES)
    assert sum(item.num_bytes for item in reading.items) == reading.measured_peak_allocated_bytes
