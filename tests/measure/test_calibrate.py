import pytest
import torch

from brimful import pretend
from brimful.hardware.probe import probe_local
from brimful.measure.calibrate import calibrate, load_calibration
from brimful.measure.kernels import BLOCKS, Block, kernels

pytestmark = pytest.mark.torch

TINY = Block(2, 8, 16, 32, 2, 64)
CPU = torch.device("cpu")


def test_calibration_is_plausible_stored_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path))
    monkeypatch.setattr("brimful.measure.kernels.BLOCKS", (BLOCKS[0],))
    monkeypatch.setattr("brimful.measure.calibrate._BUDGET_S", 1.0)
    seen = []
    device = calibrate(probe_local(), on_progress=lambda what, done: seen.append((done, what)))
    assert device.calibrated
    assert 1e8 < device.matrix_flops_per_s.fp32 < 1e15
    assert 1e8 < device.matrix_flops_per_s.bf16 < 1e15
    assert 1e8 < device.memory_bytes_per_s < 1e13
    assert 1e-7 < device.op_overhead_s < 1e-3
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (1.0, "stored")
    assert probe_local() == device
    stored = load_calibration(device.description)
    assert stored.num_threads == torch.get_num_threads()
    assert 0 <= stored.others_load <= 1
    assert stored.spread >= 0


def test_kernels_cover_every_rate_and_amounts_are_what_a_formula_says(monkeypatch):
    monkeypatch.setattr("brimful.measure.kernels.BLOCKS", (TINY,))
    found = kernels(CPU, bf16=True)
    assert {kernel.rate for kernel in found} == {"fp32", "bf16", "memory", "copy", "launch"}
    tokens = 2 * 8
    weights = 4 * 16 * 16 + 3 * 16 * 32 + 16 * 64 / 8
    attention = 7 * 2 * 2 * 2 * 8**2 * 8
    fp32 = sum(kernel.share * kernel.amount for kernel in found if kernel.rate == "fp32")
    assert fp32 == 6 * tokens * weights + attention
    for kernel in found:
        kernel.run()


def test_bf16_is_left_out_where_there_is_none(monkeypatch):
    monkeypatch.setattr("brimful.measure.kernels.BLOCKS", (TINY,))
    assert "bf16" not in {kernel.rate for kernel in kernels(CPU, bf16=False)}


def test_moved_bytes_grow_with_the_tokens(monkeypatch):
    amounts = []
    for num_sequences in (2, 4):
        block = TINY._replace(num_sequences=num_sequences)
        monkeypatch.setattr("brimful.measure.kernels.BLOCKS", (block,))
        amounts.append(
            sum(kernel.amount for kernel in kernels(CPU, bf16=False) if kernel.rate == "memory")
        )
    assert 1.5 * amounts[0] < amounts[1] <= 2 * amounts[0]


@pytest.mark.parametrize("gpu", ["rtx-3070", "t4", "h200"])
def test_what_is_timed_fits_the_card(gpu):
    with pretend.gpu(gpu) as run:
        for kernel in kernels(torch.device("cuda"), bf16=gpu != "t4"):
            kernel.run()
    report = run.report()
    assert report.fits, report.statement
