import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.torch
BAR = 0.02
"""Wider than for models of use: a few buffers of the CPU's kernels are 0.7 % of a tiny one."""
CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def harness(root, out, *arguments):
    return subprocess.run(
        [sys.executable, str(root / "benchmarks/gpu/run.py"), "--out", str(out), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )


def test_a_rehearsal_climbs_all_rungs_and_they_agree(root, gpu_rows, tmp_path):
    names = ("tiny-llama-mixed-k",)
    done = harness(root, tmp_path, "--rehearse", "--cases", ",".join(names))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    rows = gpu_rows.read_rows(path)
    assert tuple(row.case.name for row in rows) == names
    for row in rows:
        simulated = row.simulated.simulated_peak_allocated_bytes
        measured = row.measured.measured_peak_requested_bytes
        assert abs(simulated - measured) <= BAR * measured
        assert row.simulated.versions == row.measured.versions
        assert row.device.calibrated
        assert row.measured.attention_ops[0] == CPU_ATTENTION
    assert max(map(len, done.stdout.split("\n\n")[1].splitlines())) <= 100


def test_a_failed_rung_is_a_reason_and_the_other_cases_go_on(root, gpu_rows, tmp_path):
    done = harness(root, tmp_path, "--rehearse", "--cases", "tiny-llama-fp32", "--total-s", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    (row,) = gpu_rows.read_rows(path)
    assert row.predicted is not None
    assert row.simulated is None
    assert row.measured is None
    assert all("time for all cases was used up" in why for why in row.failures)


def test_an_unknown_case_is_refused(root, tmp_path):
    done = harness(root, tmp_path, "--rehearse", "--cases", "tiny-lama")
    assert done.returncode == 2
    assert "no case 'tiny-lama'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, and there is none")
def test_a_case_on_the_gpu(root, gpu_rows, tmp_path):
    done = harness(root, tmp_path, "--cases", "135m-fp32")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.jsonl")
    (row,) = gpu_rows.read_rows(path)
    assert abs(row.errors.simulated_to_requested) <= 0.02
    assert row.measured.attention_ops
    assert row.measured.measured_process_bytes > row.measured.measured_peak_reserved_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_without_a_gpu_the_rehearsal_is_offered(root, tmp_path):
    done = harness(root, tmp_path)
    assert done.returncode == 2
    assert "--rehearse" in done.stderr
