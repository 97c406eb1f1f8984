import subprocess
import sys

import pytest

from brimful.errors import InputError, UnknownNameError, UnsupportedError
from brimful.hardware.cluster import matrix_rate
from brimful.hardware.datasheets import datasheets, reported_as
from brimful.hardware.gpus import gpus, load_cluster
from brimful.hardware.probe import probe_local
from brimful.units import GIB

WITHOUT_BF16 = {"v100-32gb", "t4"}


@pytest.mark.parametrize("name", sorted(gpus()))
def test_every_datasheet_is_within_reason_and_says_its_source(name):
    device = gpus()[name]
    rates = device.matrix_flops_per_s
    assert device.name == name
    assert device.kernels == "cuda"
    assert not device.calibrated
    assert 14 * GIB < device.usable_bytes < 180 * GIB
    assert 7.0 <= device.capability <= 10.0
    assert 8e12 <= rates.fp32 <= 100e12
    assert (rates.bf16 == 0) == (name in WITHOUT_BF16) == (device.capability < 8.0)
    assert rates.bf16 == 0 or rates.fp32 < rates.bf16 <= 2.5e15
    assert 3e11 <= device.memory_bytes_per_s <= 8e12
    assert 5e-6 <= device.op_overhead_s <= 8e-6
    assert "datasheet" in device.source or "whitepaper" in device.source
    assert "launch time assumed" in device.source


def test_usable_is_less_than_the_number_in_the_name():
    for name, size_gib in {"h100-80gb": 80, "a100-40gb": 40, "t4": 16, "rtx-4090": 24}.items():
        assert 0.9 * size_gib < gpus()[name].usable_bytes / GIB < size_gib


def test_no_two_gpus_report_the_same_name():
    names = [name for sheet in datasheets().values() for name in sheet.reported_names]
    assert len(names) == len(set(names))
    for name, sheet in datasheets().items():
        for reported in sheet.reported_names:
            assert reported_as(reported) == gpus()[name]
    assert reported_as("Voodoo 2") is None


def test_bf16_on_a_gpu_without_it_is_unknown():
    assert matrix_rate(gpus()["t4"], "bf16-mixed") == 0
    assert matrix_rate(gpus()["t4"], "fp32") == 8.1e12


@pytest.mark.parametrize("name", ["h100-80gb", "1xh100-80gb", "1XH100-80GB"])
def test_one_gpu_by_name(name):
    cluster = load_cluster(name, memory_limit_bytes=None)
    assert cluster.name == "h100-80gb"
    assert cluster.num_devices == 1
    assert cluster.device == gpus()["h100-80gb"]
    assert cluster.host_ram_bytes == 0


def test_local_is_this_machine():
    cluster = load_cluster("local", memory_limit_bytes=None)
    assert cluster.device == probe_local()
    assert cluster.host_ram_bytes > 0


@pytest.mark.parametrize(("name", "count"), [("8xh100-80gb", 8), ("4x8xh100-80gb", 32)])
def test_many_gpus_are_refused_with_the_way_out(name, count):
    with pytest.raises(UnsupportedError, match=f"{name} asks for {count}; use 1xh100-80gb"):
        load_cluster(name, memory_limit_bytes=None)


@pytest.mark.parametrize("name", ["h1000-80gb", "8xh1000-80gb", "", "x", "8x", "2x2x2xh200"])
def test_unknown_names(name):
    with pytest.raises(UnknownNameError, match="brimful gpus lists them"):
        load_cluster(name, memory_limit_bytes=None)


@pytest.mark.parametrize("name", ["0xh200", f"{'9' * 6000}xh200"])
def test_absurd_counts(name):
    with pytest.raises(InputError, match="use 1xh200"):
        load_cluster(name, memory_limit_bytes=None)


def test_misspelt_names_get_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean .*h100-80gb"):
        load_cluster("h100-8gb", memory_limit_bytes=None)


def test_a_memory_limit_replaces_the_usable_bytes():
    assert load_cluster("t4", memory_limit_bytes=GIB).device.usable_bytes == GIB
    whole = gpus()["t4"].usable_bytes
    assert load_cluster("t4", memory_limit_bytes=whole).device.usable_bytes == whole


@pytest.mark.parametrize("extra_bytes", [1, 10**15])
def test_a_memory_limit_over_what_there_is(extra_bytes):
    whole = gpus()["t4"].usable_bytes
    with pytest.raises(InputError) as caught:
        load_cluster("t4", memory_limit_bytes=whole + extra_bytes)
    assert str(whole) in str(caught.value)
    assert str(whole + extra_bytes) in str(caught.value)


@pytest.mark.parametrize("limit_bytes", [0, -5])
def test_a_memory_limit_of_nothing(limit_bytes):
    with pytest.raises(InputError, match=f"limit of {limit_bytes} bytes .* 14.56 GiB of t4"):
        load_cluster("t4", memory_limit_bytes=limit_bytes)


def test_planning_for_this_machine_imports_no_torch():
    code = (
        "import sys; from brimful.hardware.gpus import load_cluster; "
        "load_cluster('local', memory_limit_bytes=None); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
