"""A preference step on the pretend GPU against the profiler's count of a real one."""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.step import train_step
from brimful.cost.preference import reference_parts
from brimful.measure.meter import CpuMeter
from brimful.simulate.run import simulate, trace
from brimful.simulate.unrolled import record_whole
from brimful.units import MIB
from brimful.values.results import OPTIMIZER_STATE, PARAMETERS, REFERENCE
from pairs import cut_pairs, make_lora, make_pair_job, make_pairs
from samples import make_cluster, make_model, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "llama": {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000},
    "gpt2": {"n_embd": 128, "n_inner": 344, "vocab_size": 2000},
}
LORA = make_lora()
CASES = {
    "resident": ("llama", {}, {}),
    "resident lora": ("gpt2", LORA, {"activation_checkpointing": "full", "loss_chunks": 4}),
    "offloaded": ("llama", LORA, {"loss_chunks": 4}),
    "adapters-off": ("llama", LORA, {"activation_checkpointing": "full"}),
    "precomputed": ("gpt2", {"precision": "bf16-mixed"}, {"loss_chunks": 4}),
}


def settings(case):
    architecture, fields, switches = CASES[case]
    model = make_model(architecture, **SIZES[architecture])
    job = make_pair_job(model=model, seq_len=96, **fields)
    return job, make_strategy(reference=case.partition(" ")[0], **switches)


@cache
def measured(case):
    job, strategy = settings(case)
    batch = make_pairs(job)
    if strategy.reference == "precomputed":
        batch = batch._replace(reference=torch.zeros(job.global_batch, 2))
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    for _ in range(2):
        micro_batches = cut_pairs(batch, strategy.micro_batch)
        train_step(program, micro_batches, num_targets=4, learning_rate=1e-3)
    meter.stop(program)
    return meter.reading


@cache
def simulated(case, kernels="cpu"):
    job, strategy = settings(case)
    return simulate(job, make_cluster(kernels), strategy)


def sizes(rung):
    return {item.name: item.num_bytes for item in rung.items}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_the_simulated_peak_is_the_measured_one(case):
    for phase, real in zip(simulated(case).phases, measured(case).phases, strict=True):
        assert phase.phase == real.phase
        allowed = max(0.005 * real.num_bytes, MIB)
        assert abs(phase.num_bytes - real.num_bytes) <= min(allowed, 64 * 1024)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_what_lasts_is_the_same_to_the_byte_and_a_second_model_is_an_item(case):
    seen, expected = sizes(measured(case)), sizes(simulated(case))
    for name in (PARAMETERS, OPTIMIZER_STATE, REFERENCE):
        assert seen.get(name) == expected.get(name)
    is_held = case.split(" ")[0] in {"resident", "offloaded"}  # a CPU's host is the device
    assert (REFERENCE in expected) is is_held
    if case == "resident":
        assert expected[REFERENCE] == pytest.approx(expected[PARAMETERS], rel=1e-3)


def test_an_offloaded_reference_is_on_a_card_part_by_part():
    """It is a peak of its own where what it brings outweighs what the policy keeps."""
    model = make_model(num_hidden_layers=2, vocab_size=8000, hidden_size=64)
    job = make_pair_job(model=model, seq_len=16, global_batch=1, precision="bf16", **LORA)
    switches = {"micro_batch": 1, "loss_chunks": 8, "activation_checkpointing": "full"}

    def peak(reference):
        strategy = make_strategy(reference=reference, **switches)
        result = simulate(job, make_cluster("cuda"), strategy)
        second = next(p.num_bytes for p in result.phases if p.phase == "step 2+")
        return second, sizes(result).get(REFERENCE, 0)

    (away, held), (none, _), (beside, whole) = map(peak, ("offloaded", "precomputed", "resident"))
    head = reference_parts(job).head
    assert held < 1024
    assert head / 2 < away - none < 2 * head
    assert beside - none == pytest.approx(whole, abs=4096)
    assert whole > head


def test_a_model_with_a_second_one_is_unrolled_to_its_depth():
    model = make_model(num_hidden_layers=7, vocab_size=300)
    job = make_pair_job(model=model, global_batch=2, seq_len=16)
    strategy = make_strategy(reference="resident")
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    unrolled = record_whole(job, strategy, record)
    assert max(depths) < model.num_layers
    whole = record(job, strategy)
    assert unrolled.live_bytes().max() == whole.live_bytes().max()
    assert len(unrolled.events) == len(whole.events)
