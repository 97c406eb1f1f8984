import pytest
import torch

import processes

pytestmark = pytest.mark.torch
BAR = 0.02
"""Wider than for models of use: a few buffers of the CPU's kernels are 0.7 % of a tiny one."""
CPU_ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


PATIENT = ("--child-s", "900", "--total-s", "3600")
"""Limits that a machine busy with other things keeps too; they are for what hangs."""


def harness(root, out, *arguments):
    """Run the harness; a quarter of a machine's cores simulate, one here."""
    command = [root / "benchmarks/gpu/run.py", "--out", out, *PATIENT, *arguments]
    return processes.run(command, cwd=root, forks=True)


@pytest.mark.long  # rungs agree in simulate/test_measured.py, rows are tested below
@pytest.mark.parametrize("predicted", [(), ("tiny-llama-mixed-k",)])
def test_a_rehearsal_climbs_all_rungs_and_they_agree(root, gpu_rows, tmp_path, predicted):
    names = (*predicted, "tiny-offload")
    done = harness(root, tmp_path, "--rehearse", "--cases", ",".join(names))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
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
    assert not any(row.peers or row.absent for row in rows)
    away = rows[-1]
    assert away.predicted is None
    assert "no formula" in away.failures[0]
    assert gpu_rows.is_whole(away)
    assert away.simulated.simulated_peak_host_bytes == away.measured.measured_peak_host_bytes > 0
    again = harness(root, tmp_path, "--rehearse", "--cases", ",".join(names))
    assert again.returncode == 0
    assert "done" not in again.stdout, "what has a row is not run again"
    assert gpu_rows.read_rows(path) == rows


def test_what_there_was_no_time_for_is_left_for_the_next_call(root, tmp_path):
    done = harness(root, tmp_path, "--rehearse", "--cases", "tiny-llama-fp32", "--total-s", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 cases are left; run the same again to go on" in done.stdout
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.long
def test_other_trainers_do_the_same_work_or_say_why_not(root, gpu_rows, tmp_path):
    done = harness(root, tmp_path, "--rehearse", "--cases", "tiny-llama-fp32")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    (row,) = gpu_rows.read_rows(path)
    (peer,) = row.peers
    assert peer.trainer == "hf"
    assert peer.measured_peak_allocated_bytes > 0.8 * row.measured.measured_peak_allocated_bytes
    assert peer.measured_step_s > 0
    assert {why.partition(":")[0] for why in row.absent} == {"hf-liger", "trl"}
    assert all("not installed" in why for why in row.absent)
    assert "theirs to ours" in done.stdout


def test_every_case_can_be_asked_for_and_names_are_of_one_case_each(root):
    done = harness(root, root, "--list")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert len(lines) == len({line.split()[1] for line in lines}) >= 100


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
    (path,) = tmp_path.glob("*.json")
    (row,) = gpu_rows.read_rows(path)
    assert abs(row.errors.simulated_to_requested) <= 0.02
    assert row.measured.attention_ops
    assert row.measured.measured_process_bytes > row.measured.measured_peak_reserved_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_without_a_gpu_the_rehearsal_is_offered(root, tmp_path):
    done = harness(root, tmp_path)
    assert done.returncode == 2
    assert "--rehearse" in done.stderr


def test_cases_that_share_a_device_are_measured_first_and_simulated_later(root, gpu_rows, tmp_path):
    names = "tiny-llama-fp32,tiny-8bit"
    done = harness(
        root, tmp_path, "--rehearse", "--cases", names, "--only-measure", "--at-once", "2"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    for row in gpu_rows.read_rows(path):
        assert row.simulated is None
        assert row.measured.measured_step_s is None
        assert gpu_rows.LATER in row.failures[-1]
    done = harness(root, tmp_path, "--complete", path)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in gpu_rows.read_rows(path):
        assert not row.failures
        assert abs(row.errors.simulated_to_requested) <= BAR
