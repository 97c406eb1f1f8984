import msgspec
import psutil
import pytest

from brimful.errors import FileFormatError
from brimful.files.writing import cache_dir
from brimful.hardware import probe
from brimful.hardware.calibration import (
    CALIBRATION_SCHEMA,
    Calibration,
    calibration_path,
    load_calibration,
    save_calibration,
)
from brimful.hardware.cluster import MatrixRates
from brimful.hardware.gpus import gpus
from brimful.process.versions import versions
from brimful.units import MIB


def calibration(**changes):
    value = Calibration(
        schema=CALIBRATION_SCHEMA,
        versions=versions(),
        date="2026-01-31",
        machine=probe.probe_local().description,
        num_threads=2,
        matrix_flops_per_s=MatrixRates(fp32=2e11, bf16=8e11),
        memory_bytes_per_s=2e10,
        op_overhead_s=2e-6,
        spread=0.02,
        others_load=0.0,
    )
    return msgspec.structs.replace(value, **changes)


def test_this_machine():
    device = probe.probe_local()
    assert device.name == "local"
    assert device.description
    assert 0 < probe.host_ram_bytes() <= psutil.virtual_memory().total
    assert not device.calibrated
    if device.kernels == "cpu":
        assert device.usable_bytes == probe.host_ram_bytes()
        assert device.matrix_flops_per_s == MatrixRates(fp32=0, bf16=0)
        assert device.memory_bytes_per_s == device.op_overhead_s == device.capability == 0


def test_a_stored_calibration_is_merged():
    save_calibration(calibration())
    device = probe.probe_local()
    assert device.calibrated
    assert device.matrix_flops_per_s == MatrixRates(fp32=2e11, bf16=8e11)
    assert device.memory_bytes_per_s == 2e10
    assert device.op_overhead_s == 2e-6
    assert "2026-01-31" in device.source
    assert "disturbed" not in device.source


def test_a_disturbed_calibration_says_so():
    save_calibration(calibration(others_load=0.5))
    assert "other programs used 50 % of the CPU" in probe.probe_local().source


def test_a_calibration_of_another_torch_or_machine_is_not_merged():
    save_calibration(calibration(versions=("torch 1.0",)))
    device = probe.probe_local()
    assert not device.calibrated
    assert "another version than torch" in device.source
    calibration_path(device.description).unlink()
    save_calibration(calibration(machine="another machine"))
    assert not probe.probe_local().calibrated


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'{"schema": 3}', b"null"])
def test_a_broken_calibration_is_reported_and_survived(content):
    machine = probe.probe_local().description
    path = calibration_path(machine)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="run brimful calibrate again"):
        load_calibration(machine)
    device = probe.probe_local()
    assert not device.calibrated
    assert "run brimful calibrate again" in device.source


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "brimful.calibration/99"},
        {"memory_bytes_per_s": 0.0},
        {"op_overhead_s": -1.0},
        {"matrix_flops_per_s": MatrixRates(fp32=-1, bf16=0)},
    ],
)
def test_a_foreign_or_absurd_calibration_is_reported_and_survived(changes):
    save_calibration(calibration(**changes))
    with pytest.raises(FileFormatError, match="run brimful calibrate again"):
        load_calibration(probe.probe_local().description)
    assert not probe.probe_local().calibrated


def test_no_calibration_is_none():
    assert load_calibration("never seen") is None


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("BRIMFUL_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "brimful"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "brimful"


def write(folder, name, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_cgroup_v2_limits_count_on_every_level(tmp_path):
    write(tmp_path / "a" / "b", "memory.max", "max\n")
    write(tmp_path / "a", "memory.max", "4096\n")
    assert list(probe.cgroup_limits_bytes("0::/a/b\n", tmp_path)) == [4096]


def test_cgroup_v1_limits_count_from_inside_a_container_too(tmp_path):
    write(tmp_path / "memory", "memory.limit_in_bytes", "8192\n")
    membership = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n"
    assert list(probe.cgroup_limits_bytes(membership, tmp_path)) == [8192]


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert list(probe.cgroup_limits_bytes("0::/\n", tmp_path)) == []


def test_a_known_gpu_gets_its_datasheet(nvidia_smi):
    nvidia_smi("echo 'NVIDIA H100 80GB HBM3, 9.0, 81559, 551, 5, 16'")
    device = probe.probe_local()
    assert device.usable_bytes == (81559 - 551) * MIB
    assert device.capability == 9.0
    assert device.matrix_flops_per_s == gpus()["h100-80gb"].matrix_flops_per_s
    assert "datasheet of h100-80gb" in device.source


def test_an_unknown_gpu_keeps_unknown_rates(nvidia_smi):
    nvidia_smi("echo 'NVIDIA Imaginary 9000, 12.0, 49140, [N/A], 5, 16'")
    device = probe.probe_local()
    assert device.usable_bytes == 49140 * MIB
    assert device.matrix_flops_per_s == MatrixRates(fp32=0, bf16=0)
    assert device.memory_bytes_per_s == 0


def test_a_card_of_another_size_under_a_known_name_keeps_unknown_rates(nvidia_smi):
    """The RTX 4090 is sold with 48 GB too, by others than NVIDIA."""
    nvidia_smi("echo 'NVIDIA GeForce RTX 4090, 8.9, 49140, 400, 4, 16'")
    device = probe.probe_local()
    assert device.memory_bytes_per_s == 0
    nvidia_smi("echo 'NVIDIA GeForce RTX 4090, 8.9, 24564, 400, 4, 16'")
    assert probe.probe_local().memory_bytes_per_s == 1008e9


def test_cards_of_two_sizes_under_one_name_are_told_apart(nvidia_smi):
    """The RTX 3060 is sold with 8 GB too, on a narrower bus."""
    nvidia_smi("echo 'NVIDIA GeForce RTX 3060, 8.6, 8192, 200, 4, 16'")
    assert probe.probe_local().memory_bytes_per_s == 240e9
    nvidia_smi("echo 'NVIDIA GeForce RTX 3060, 8.6, 12288, 350, 4, 16'")
    assert probe.probe_local().memory_bytes_per_s == 360e9


def test_a_gpu_that_shares_the_hosts_memory_means_the_cpu(nvidia_smi):
    nvidia_smi("echo 'NVIDIA GB10, 12.1, [N/A], [N/A], [N/A], [N/A]'")
    assert probe.probe_local().kernels == "cpu"


def test_a_gpu_that_answers_is_the_device(nvidia_smi):
    nvidia_smi("echo 'NVIDIA L4, 8.9, 23034, 400'")
    device = probe.probe_local()
    assert device.kernels == "cuda"
    assert device.usable_bytes == (23034 - 400) * MIB


def test_an_old_driver_is_asked_again_without_the_reserved_bytes(nvidia_smi):
    nvidia_smi('case "$*" in *reserved*) exit 2;; *) echo "Tesla T4, 7.5, 15360";; esac')
    assert probe.probe_local().usable_bytes == 15360 * MIB


def test_a_failing_nvidia_smi_means_the_cpu(nvidia_smi):
    nvidia_smi("echo 'NVIDIA-SMI has failed'; exit 9")
    assert probe.probe_local().kernels == "cpu"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_gpu_hidden_by_the_user_is_not_probed(nvidia_smi, monkeypatch, visible):
    nvidia_smi("echo 'NVIDIA L4, 8.9, 23034, 400'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert probe.probe_local().kernels == "cpu"


def test_a_torch_without_cuda_means_the_cpu(nvidia_smi, monkeypatch):
    nvidia_smi("echo 'NVIDIA L4, 8.9, 23034, 400'")
    monkeypatch.setattr(probe, "_torch_version", lambda: "2.13.0+cpu")
    assert probe.probe_local().kernels == "cpu"
