"""What ``CudaMeter`` makes of the allocator's counters, told from a script: no GPU stands here."""

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.step import train_step
from brimful.measure.meter import CudaMeter, CudaPeaks
from brimful.units import MIB
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch


class ScriptedCounters:
    """The documented counters: peaks fall to the current value when they are reset."""

    def __init__(self):
        self.current = 10 * MIB
        self.peak = self.current
        self.num_notes = 0

    def memory_stats(self):
        self.num_notes += 1
        self.peak += self.num_notes * MIB
        rounded = self.peak + 512
        return {
            "requested_bytes.all.peak": self.peak,
            "requested_bytes.all.current": self.current,
            "allocated_bytes.all.peak": rounded,
            "active_bytes.all.peak": rounded,
            "reserved_bytes.all.peak": rounded + 2 * MIB,
            "num_alloc_retries": 3,
        }

    def reset_peak_memory_stats(self):
        self.peak = self.current


def test_phases_keep_their_own_peaks_and_all_counters(monkeypatch):
    counters = ScriptedCounters()
    monkeypatch.setattr(torch.cuda, "memory_stats", counters.memory_stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", counters.reset_peak_memory_stats)
    meter = CudaMeter()
    meter.start()
    program = build_program(make_job(), make_strategy(), torch.device("cpu"))
    ids = torch.zeros((2, 24), dtype=torch.int64)
    for _ in range(2):
        train_step(program, [Batch(ids, ids)] * 2, num_targets=96, learning_rate=1e-2)
    meter.stop(program)

    parts = [f"step {n} {part}" for n in (1, 2) for part in ("forward", "backward", "optimizer")]
    assert list(meter.peaks) == ["load", "step 1 state", *parts]
    # The load, the state, then per step two forwards, two backwards and an optimizer in turn.
    requested = [peaks.requested_bytes for peaks in meter.peaks.values()]
    assert requested == [(10 + note) * MIB for note in (1, 2, 5, 6, 7, 10, 11, 12)]
    last = meter.peaks["step 2 optimizer"]
    assert last == CudaPeaks(22 * MIB + 512, 22 * MIB, 22 * MIB + 512, 24 * MIB + 512)

    reading = meter.reading
    assert [(p.phase, p.where) for p in reading.phases] == [
        ("load", "load"),
        ("step 1", "step 1 optimizer"),
        ("step 2+", "step 2 optimizer"),
    ]
    assert reading.measured_peak_allocated_bytes == last.allocated_bytes
    assert reading.measured_peak_reserved_bytes == last.reserved_bytes
    assert meter.held_bytes == 10 * MIB
    assert meter.num_alloc_retries == 3
    parameters = sum(p.numel() * 4 for p in program.model.parameters())
    assert next(i for i in reading.items if i.name == "parameters").num_bytes == parameters
