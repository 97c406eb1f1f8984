"""The instrument of the third rung on a CPU: what it counts, and that it leaves nothing behind."""

import numpy as np
import pytest
import torch

from brimful.build import phases
from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.step import train_step
from brimful.measure.allocations import (
    METHOD,
    STILL_ALIVE,
    Events,
    Range,
    classify,
    lifetimes,
    live_bytes,
)
from brimful.measure.meter import CpuMeter, CudaMeter, meter_for
from brimful.measure.reading import measurement
from brimful.values.results import MEASUREMENT_SCHEMA, PARAMETERS, TRANSIENTS
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

KILO = 1024


def events(*rows):
    table = np.array([(time, *row) for time, row in enumerate(rows)], dtype=np.int64)
    return Events(*table.T)


def test_allocations_are_paired_with_their_frees_by_address():
    found = events((0xA, 100), (0xB, 50), (0xA, -100), (0xA, 30), (0xB, -50))
    lives = lifetimes(found)
    assert lives.num_bytes.tolist() == [100, 50, 30]
    assert lives.born.tolist() == [0, 1, 3]
    assert lives.died.tolist() == [2, 4, STILL_ALIVE]
    assert live_bytes(lives, 5).tolist() == [100, 150, 50, 80, 30]


def test_a_free_of_what_was_allocated_before_the_meter_changes_nothing():
    lives = lifetimes(events((0xC, -999), (0xA, 100)))
    assert live_bytes(lives, 2).tolist() == [0, 100]


def test_what_passes_ends_with_its_range_where_no_free_was_seen():
    """Gloo's thread frees a buffer of the broadcast by which DDP is made now and then."""
    found = events((0xA, 1), (0xB, 8), (0xC, 4), (0xC, -4), (0xD, 2), (0xE, 16))
    lives = lifetimes(found, [Range("", 1, 4)])
    assert lives.died.tolist() == [STILL_ALIVE, 4, 3, STILL_ALIVE, STILL_ALIVE]
    last = lifetimes(found, [Range("", 5, 9)])
    assert last.died.tolist() == [STILL_ALIVE, STILL_ALIVE, 3, STILL_ALIVE, STILL_ALIVE]


def test_an_address_used_twice_is_two_allocations():
    """First a gradient, later something transient at the same place."""
    lives = lifetimes(events((0xA, 8), (0xA, -8), (0xA, 8), (0xB, 8), (0xA, -8)))
    spans = [("step 1 forward", 0, 0), ("step 1 backward", 0, 1)]
    item = classify(lives, spans, lasting={PARAMETERS: {0xB}}, gradients=[{0xA}])
    names = ["parameters", "buffers", "gradients", "optimizer state", "saved activations"]
    named = [names[i] if i < len(names) else TRANSIENTS for i in item]
    assert named == ["gradients", TRANSIENTS, "parameters"]


def metered(num_steps=2, *, between=lambda: None):
    job, strategy = make_job(), make_strategy()
    ids = torch.randint(0, job.model.vocab_size, (job.global_batch, job.seq_len))
    batches = [Batch(rows, rows) for rows in ids.split(strategy.micro_batch)]
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    for _ in range(num_steps):
        num_targets = count_targets(batches)
        train_step(program, batches, num_targets=num_targets, learning_rate=1e-3)
        between()
    meter.stop(program)
    return program, meter.reading


def test_items_sum_to_the_peak_and_the_peak_is_that_of_a_phase():
    program, reading = metered()
    peak = reading.measured_peak_allocated_bytes
    assert reading.method == METHOD
    assert sum(item.num_bytes for item in reading.items) == peak
    assert max(phase.num_bytes for phase in reading.phases) == peak
    held = sum(p.untyped_storage().nbytes() for p in program.model.parameters())
    assert {i.name: i.num_bytes for i in reading.items}[PARAMETERS] == held


def test_a_tensor_that_the_program_does_not_know_is_seen_as_well():
    _, plain = metered()
    kept = []
    _, more = metered(between=lambda: kept.append(torch.ones(KILO, KILO)))
    grown = more.measured_peak_allocated_bytes - plain.measured_peak_allocated_bytes
    assert 4 * KILO**2 <= grown <= 8 * KILO**2 + 64 * KILO


def test_one_step_has_no_second_phase():
    _, reading = metered(num_steps=1)
    assert [phase.phase for phase in reading.phases] == ["load", "step 1"]


def test_the_meter_stops_listening_and_profiling():
    before = len(phases._listeners)
    metered()
    assert len(phases._listeners) == before
    assert not torch.autograd._profiler_enabled()


def test_a_reading_becomes_a_measurement_with_the_figures_of_the_run():
    _, reading = metered()
    result = measurement(reading, process_bytes=123, step_s=None)
    assert result.schema == MEASUREMENT_SCHEMA
    assert result.items == reading.items
    assert result.measured_process_bytes == 123
    assert result.measured_step_s is None
    assert result.measured_peak_reserved_bytes is None
    assert any(version.startswith(f"torch {torch.__version__}") for version in result.versions)


def test_each_device_has_its_instrument():
    assert isinstance(meter_for("cpu"), CpuMeter)
    assert isinstance(meter_for("cuda"), CudaMeter)
