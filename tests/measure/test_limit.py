"""A hard limit on a CPU: what it counts, where it binds, and that it agrees with a simulation."""

import gc

import pytest
import torch

from brimful.build import phases
from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.step import train_step
from brimful.measure.limit import HostLimit, limited
from brimful.simulate.run import simulate
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

KILO = 1024
SIZES = {"hidden_size": 192, "intermediate_size": 384, "vocab_size": 1500}
CASES = [
    ("fp32", "adamw", {}),
    ("fp32", "adafactor", {"activation_checkpointing": "full"}),
    ("bf16-mixed", "adamw-8bit", {"loss_chunks": 4}),
    ("bf16-master", "adamw", {"micro_batch": 1}),
]
MARGIN = 0.005


def job_of(precision, optimizer):
    model = make_model(**SIZES)
    return make_job(model=model, precision=precision, optimizer=optimizer, seq_len=64)


def steps(job, strategy):
    program = build_program(job, strategy, torch.device("cpu"))
    ids = torch.zeros((job.global_batch, job.seq_len), dtype=torch.int64)
    batches = [Batch(rows, rows) for rows in ids.split(strategy.micro_batch)]
    for _ in range(2):
        train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize(("precision", "optimizer", "switches"), CASES)
def test_just_over_the_simulated_peak_passes_and_just_under_does_not(
    precision, optimizer, switches
):
    job, strategy = job_of(precision, optimizer), make_strategy(**switches)
    peak = simulate(job, make_cluster(), strategy).simulated_peak_allocated_bytes
    with limited("cpu", round(peak * (1 + MARGIN))) as limit:
        steps(job, strategy)
    assert limit.peak_bytes == pytest.approx(peak, rel=MARGIN)
    with pytest.raises(torch.OutOfMemoryError), limited("cpu", round(peak * (1 - MARGIN))):
        steps(job, strategy)


def test_what_is_dropped_is_free_again_and_views_are_nothing_new():
    with HostLimit(10 * KILO) as limit:
        for _ in range(9):
            held = torch.zeros(KILO, dtype=torch.uint8)
            assert limit.live_bytes == KILO
        views = held.view(2, 512), held[:100], held.add_(1)
        assert limit.live_bytes == KILO
        del held, views
        gc.collect()
        assert limit.live_bytes == 0


def test_a_request_past_the_limit_gets_nothing_and_says_all_three_numbers():
    with HostLimit(3 * KILO) as limit:
        held = torch.zeros(2 * KILO, dtype=torch.uint8)
        with pytest.raises(torch.OutOfMemoryError, match=r"2\.00 KiB.*2\.00 KiB.*3\.00 KiB"):
            torch.zeros(2 * KILO, dtype=torch.uint8)
        gc.collect()
        assert limit.live_bytes == held.nbytes
        torch.zeros(KILO, dtype=torch.uint8)


def test_a_storage_that_is_freed_and_refilled_is_counted_as_it_is():
    with HostLimit(3 * KILO) as limit:
        storage = torch.zeros(2 * KILO, dtype=torch.uint8).untyped_storage()
        storage.resize_(0)
        assert limit.live_bytes == 0
        storage.resize_(3 * KILO)
        assert limit.live_bytes == 3 * KILO
        with pytest.raises(torch.OutOfMemoryError):
            storage.resize_(3 * KILO + 1)
        assert storage.nbytes() == 3 * KILO


def test_after_the_first_phase_it_binds_within_phases_only():
    with HostLimit(KILO):
        with phases.phase("forward"):
            pass
        kept = torch.zeros(2 * KILO)  # as a checkpoint's copy is
        with phases.phase("forward"), pytest.raises(torch.OutOfMemoryError):
            torch.zeros(KILO)
        del kept


def test_it_leaves_nothing_behind():
    before = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), HostLimit(KILO):
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is before
    torch.zeros(2 * KILO)
    with limited("cpu", None) as limit:
        assert limit is None


def test_on_cuda_the_allocator_is_told(monkeypatch):
    told = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = type("Properties", (), {"total_memory": 4 * KILO})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told.append)
    with limited("cuda", KILO):
        assert told == [0.25]
    assert told == [0.25, 1.0]
