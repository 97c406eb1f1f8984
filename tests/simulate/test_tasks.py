"""Tasks beside text: what is simulated is what the profiler counts, and CUDA's kernels are run too.

As ``test_measured`` for decoders; the bound is that of the design.
"""

from functools import cache

import pytest
import torch
from tests.pretend.bf16_units import need_bf16_units

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.step import train_step
from brimful.build.user_module import take_sample
from brimful.measure.meter import CpuMeter
from brimful.simulate.run import simulate, trace
from brimful.units import MIB
from brimful.values.results import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from metered import meter_steps
from other_models import make_other_job, make_other_model
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

WIDE = {"d_model": 128, "d_kv": 32, "d_ff": 344, "vocab_size": 2000}
MODELS = {
    "bert": {
        "hidden_size": 128,
        "intermediate_size": 344,
        "vocab_size": 2000,
        "max_position_embeddings": 256,
    },
    "t5": {**WIDE, "num_layers": 2, "num_decoder_layers": 2},
    "t5-untied": WIDE,
    "switch": {**WIDE, "expert_capacity": 40},
}
CNN = "user_modules:large_cnn"
CASES = [
    # model, precision, attention, checkpointing, loss chunks, micro-batches
    ("bert", "fp32", "sdpa", "none", 1, 1),
    ("bert", "bf16", "eager", "full", 1, 2),
    ("bert", "bf16-mixed", "sdpa", "none", 1, 2),
    ("bert", "bf16-mixed", "eager", "full:1", 1, 1),
    ("t5", "fp32", "sdpa", "full", 4, 1),
    ("t5", "bf16", "eager", "none", 1, 2),
    ("t5-untied", "bf16-mixed", "eager", "full", 4, 2),
    ("t5-untied", "fp32", "eager", "none", 1, 1),
    ("switch", "fp32", "eager", "none", 1, 2),
    ("switch", "bf16", "eager", "full", 4, 1),
    ("switch", "bf16-mixed", "eager", "none", 1, 2),
    (CNN, "fp32", "sdpa", "none", 1, 2),
    (CNN, "tf32", "sdpa", "none", 1, 1),
    ("user_modules:large_batch_normed", "fp32", "sdpa", "none", 1, 1),
    ("user_modules:large_batch_normed", "bf16", "sdpa", "none", 1, 1),
    (CNN, "bf16-mixed", "sdpa", "none", 1, 1),
]


def settings(case):
    name, precision, attention, checkpointing, chunks, accumulation = case
    micro_batch = 16 if ":" in name else 4
    job = make_other_job(
        name,
        model=make_other_model(name, **MODELS.get(name, {})),
        precision=precision,
        seq_len=1 if ":" in name else 128,
        global_batch=micro_batch * accumulation,
    )
    strategy = make_strategy(
        micro_batch=micro_batch,
        activation_checkpointing=checkpointing,
        loss_chunks=chunks,
        attention=attention,
    )
    return job, strategy


def batches_of(job, strategy):
    if job.task == "module":
        return [Batch(*take_sample(job.model.name, strategy.micro_batch))] * (
            job.global_batch // strategy.micro_batch
        )
    shape = (job.global_batch, job.seq_len)
    inputs = torch.randint(1, job.model.vocab_size, shape)
    segments = torch.ones(shape, dtype=torch.int32)
    segments[0, 50:] = 0
    labels = inputs if job.task == "seq2seq" else inputs[:, 0] % 3
    size = strategy.micro_batch
    parts = zip(inputs.split(size), labels.split(size), segments.split(size), strict=True)
    return [Batch(*part) for part in parts]


@cache
def measured(case):
    job, strategy = settings(case)
    batches = batches_of(job, strategy)
    return meter_steps(job, strategy, batches)


@cache
def simulated(case):
    job, strategy = settings(case)
    return simulate(job, make_cluster("cpu"), strategy)


def allowed_bytes(num_bytes):
    return max(0.005 * num_bytes, MIB)


def need_units(case):
    """Skip convolutions in bf16 on a CPU that makes them in another way, without units for it."""
    if "large_cnn" in str(case) and "bf16" in str(case):
        need_bf16_units()


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    need_units(case)
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= allowed_bytes(peak)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_phase_peaks_where_it_was_simulated_to(case):
    need_units(case)
    phases = {phase.phase: phase.num_bytes for phase in measured(case).phases}
    for phase in simulated(case).phases:
        difference = phase.num_bytes - phases[phase.phase]
        assert abs(difference) <= allowed_bytes(phase.num_bytes)


@pytest.mark.few(2)  # as above; techniques.json has the others
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen.get(name, 0) == expected.get(name, 0)


@pytest.mark.few
@pytest.mark.parametrize("case", CASES[:1], ids=str)
def test_a_wrong_simulation_would_be_noticed(case):
    job, strategy = settings(case)
    other = simulate(job, make_cluster("cpu"), make_strategy(micro_batch=2))
    peak = measured(case).measured_peak_allocated_bytes
    assert abs(other.simulated_peak_allocated_bytes - peak) > 2 * allowed_bytes(peak)
    assert strategy.micro_batch == 4


@pytest.mark.few(3)
@pytest.mark.parametrize("case", [c for c in CASES if c[1] != "bf16"], ids=str)
def test_every_task_runs_on_the_kernels_of_a_card(case):
    job, strategy = settings(case)
    recording = trace(job, strategy, imitate="cuda").recording
    assert recording.live_bytes().max() > 0


def test_a_module_takes_no_real_memory():
    job = make_other_job(CNN, global_batch=2**22)
    result = simulate(job, make_cluster("cuda"), make_strategy(micro_batch=2**12))
    by_name = {item.name: item.num_bytes for item in result.items}
    assert result.simulated_peak_allocated_bytes > 2**31
    assert by_name[GRADIENTS] <= by_name[PARAMETERS] * 2


@pytest.mark.few(1)
@pytest.mark.parametrize("model_type", ["mistral", "qwen3"])
def test_a_decoder_without_a_formula_is_simulated_as_it_is_measured(model_type):
    from brimful.models.config import read_config

    base = make_model("llama", hidden_size=128, intermediate_size=344, vocab_size=2000)
    fields = {**base.hf_config, "model_type": model_type, "head_dim": 32}
    job = make_job(model=read_config(model_type, fields), seq_len=128)
    strategy = make_strategy(micro_batch=4)
    ids = torch.randint(0, 2000, (4, 128))
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    for _ in range(2):
        train_step(program, [Batch(ids, ids)], num_targets=512, learning_rate=1e-3)
    meter.stop(program)
    peak = meter.reading.measured_peak_allocated_bytes
    difference = simulate(job, make_cluster("cpu"), strategy).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= allowed_bytes(peak)
