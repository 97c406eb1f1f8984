"""What is simulated of both memories is what a real run takes: of the device, and of the host.

The meter tells host memory apart by when it is taken, the tape by the device of a fake tensor:
where a step forgot to send something, or to say that it did, the two would differ.
"""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.measure.meter import CpuMeter
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.units import KIB
from metered import meter_steps, random_batches, take_two_steps
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "llama": {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000},
    "gpt2": {"n_embd": 128, "n_inner": 344, "vocab_size": 2000},
}
SCRATCH_BYTES = 96 * KIB
CASES = [
    # architecture, recipe, offload, checkpointing, optimizer, sequences of a step
    ("llama", "fp32", "optimizer", "none", "adamw", 2),
    ("llama", "bf16-master", "optimizer,activations", "full", "adamw", 4),
    ("gpt2", "bf16-mixed", "parameters,activations:2", "full:1", "adamw", 2),
    ("llama", "fp32", "parameters:2", "selective", "sgd", 4),
    ("gpt2", "bf16", "activations", "none", "adamw-foreach", 4),
    ("llama", "bf16", "parameters", "full", "adamw-foreach", 2),
    ("gpt2", "fp32", "parameters,activations", "none", "adafactor", 2),
    ("gpt2", "bf16-master", "parameters:1", "full", "adamw-foreach", 4),
    ("llama", "fp32", "activations:1", "full", "adafactor", 4),
    ("llama", "bf16-mixed", "parameters,activations", "none", "sgd", 2),
    ("gpt2", "fp32", "optimizer,activations:1", "selective:2", "adamw", 4),
    ("llama", "bf16", "optimizer", "full:2", "adamw", 4),
]


def settings(case):
    architecture, precision, offload, checkpointing, optimizer, global_batch = case
    job = make_job(
        architecture,
        model=make_model(architecture, **SIZES[architecture]),
        precision=precision,
        optimizer=optimizer,
        seq_len=256,
        global_batch=global_batch,
    )
    strategy = make_strategy(activation_checkpointing=checkpointing, offload=offload)
    return job, check_strategy(job, strategy)


@cache
def both(case):
    job, strategy = settings(case)
    return simulate(job, make_cluster("cpu"), strategy), meter_steps(job, strategy)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_device_peaks_where_it_was_simulated_to(case):
    simulation, reading = both(case)
    difference = simulation.simulated_peak_allocated_bytes - reading.measured_peak_allocated_bytes
    assert abs(difference) <= SCRATCH_BYTES


@pytest.mark.few(2)  # as above; offload.json has the others
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_host_holds_what_it_was_simulated_to(case):
    simulation, reading = both(case)
    difference = simulation.simulated_peak_host_bytes - reading.measured_peak_host_bytes
    assert abs(difference) <= min(SCRATCH_BYTES, 0.01 * reading.measured_peak_host_bytes)
    assert reading.measured_peak_host_bytes > 0
    assert [item.name for item in simulation.host] == [item.name for item in reading.host]
    assert sum(item.num_bytes for item in reading.host) == reading.measured_peak_host_bytes


def test_offload_takes_from_the_device_what_it_puts_on_the_host():
    job, strategy = settings(CASES[0])
    there = simulate(job, make_cluster("cpu"), make_strategy())
    away = simulate(job, make_cluster("cpu"), strategy)
    assert there.simulated_peak_host_bytes == 0
    assert not there.host
    saved = there.simulated_peak_allocated_bytes - away.simulated_peak_allocated_bytes
    state = next(i.num_bytes for i in there.items if i.name == "optimizer state")
    assert saved >= state
    assert "optimizer state" not in {item.name for item in away.items}
    assert state <= next(i.num_bytes for i in away.host if i.name == "optimizer state")


def test_pinned_blocks_are_powers_of_two_and_kept_for_later_ones():
    job, _ = settings(CASES[0])
    strategy = make_strategy(offload="activations", micro_batch=1)
    cuda = simulate(job, make_cluster("cuda"), strategy)
    assert cuda.simulated_host_block_bytes >= cuda.simulated_peak_host_bytes
    assert cuda.simulated_host_block_bytes < 2.5 * cuda.simulated_peak_host_bytes
    assert simulate(job, make_cluster("cpu"), strategy).simulated_host_block_bytes is None


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16-master"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_an_early_update_peaks_where_it_was_simulated_to(precision, checkpointing):
    job = make_job(
        model=make_model(**SIZES["llama"]),
        precision=precision,
        seq_len=64,
        global_batch=2,
        clip=0.0,
    )
    strategy = make_strategy(
        activation_checkpointing=checkpointing, optimizer_in_backward=True, micro_batch=2
    )
    check_strategy(job, strategy)
    simulation, reading = simulate(job, make_cluster("cpu"), strategy), meter_steps(job, strategy)
    difference = simulation.simulated_peak_allocated_bytes - reading.measured_peak_allocated_bytes
    assert abs(difference) <= SCRATCH_BYTES
    late = simulate(job, make_cluster("cpu"), make_strategy(
        activation_checkpointing=checkpointing, micro_batch=2
    ))  # fmt: skip
    gained = late.simulated_peak_allocated_bytes - simulation.simulated_peak_allocated_bytes
    assert gained > 0 if checkpointing == "full" else gained >= 0


STREAMED = [
    ("adamw", "fp32", "none", "parameters"),
    ("adafactor", "bf16", "full", "parameters"),
    ("adamw-8bit", "bf16", "full:1", "parameters:2,activations"),
    ("sgd", "bf16-mixed", "selective", "parameters:1"),
    ("adamw", "fp32", "full", "optimizer,parameters"),
    ("adamw-8bit", "bf16", "full", "optimizer,parameters:3"),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("case", STREAMED, ids=str)
def test_blocks_that_are_updated_while_they_are_there_take_what_was_simulated(case):
    optimizer, precision, checkpointing, offload = case
    job = make_job(
        model=make_model(**SIZES["llama"]),
        precision=precision,
        optimizer=optimizer,
        seq_len=256,
        global_batch=2,
        clip=0.0,
    )
    ways = {"activation_checkpointing": checkpointing, "offload": offload, "micro_batch": 2}
    strategy = make_strategy(optimizer_in_backward=True, **ways)
    check_strategy(job, strategy)
    simulation, reading = simulate(job, make_cluster("cpu"), strategy), meter_steps(job, strategy)
    difference = simulation.simulated_peak_allocated_bytes - reading.measured_peak_allocated_bytes
    assert abs(difference) <= SCRATCH_BYTES
    assert simulation.simulated_peak_host_bytes == reading.measured_peak_host_bytes
    host = {item.name: item.num_bytes for item in simulation.host}
    assert "gradients" not in host
    assert ("optimizer state" in host) == offload.startswith("optimizer")
    assert host["parameters"] > 5 * SCRATCH_BYTES


def test_what_stays_on_the_device_keeps_its_class():
    """A purpose of the host must not hide what parameters are that stay."""
    job, _ = settings(CASES[0])
    found = simulate(job, make_cluster("cpu"), make_strategy(offload="parameters"))
    held = {item.name: item.num_bytes for item in found.items}
    model = job.model
    outside = 2 * model.vocab_size * model.hidden_size + model.hidden_size
    assert held["parameters"] == 4 * outside


def test_a_meter_that_begins_late_counts_what_is_on_the_device_only():
    """As it does where a run goes on under another strategy."""
    job, strategy = settings(CASES[0])
    program = build_program(job, strategy, torch.device("cpu"))
    meter = CpuMeter()
    meter.begin_again(program)
    take_two_steps(program, random_batches(job, strategy))
    meter.stop(program)
    simulation, _ = both(CASES[0])
    difference = (
        simulation.simulated_peak_allocated_bytes - meter.reading.measured_peak_allocated_bytes
    )
    assert abs(difference) <= SCRATCH_BYTES
    assert meter.reading.measured_peak_host_bytes is None
