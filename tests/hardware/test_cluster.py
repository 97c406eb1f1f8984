"""Rates per recipe, and how many devices a cluster has: what is known, assumed, or refused."""

import msgspec
import pytest

from brimful.errors import InputError
from brimful.hardware.cluster import Cluster, MatrixRates, check_cluster, matrix_rate
from brimful.hardware.gpus import gpus
from samples import make_cluster

NVIDIA_TF32 = {"a100-80gb": 156e12, "h100-80gb": 494.7e12, "rtx-4090": 82.6e12, "l40s": 183e12}
"""Dense, of NVIDIA's datasheets; L40S's is written without digits."""
FP16 = ("fp16", "fp16-mixed", "fp16-master")


@pytest.mark.parametrize(("name", "rate"), NVIDIA_TF32.items())
def test_tf32_is_that_of_the_datasheet(name, rate):
    assert matrix_rate(gpus()[name], "tf32") == rate


@pytest.mark.parametrize("name", NVIDIA_TF32)
def test_without_a_rate_of_its_own_tf32_is_half_of_bf16(name):
    device = gpus()[name]
    old = MatrixRates(fp32=1e12, bf16=device.matrix_flops_per_s.bf16)
    stored = msgspec.structs.replace(device, matrix_flops_per_s=old)
    assert matrix_rate(stored, "tf32") == pytest.approx(NVIDIA_TF32[name], rel=0.012)


def test_without_tf32_units_products_run_in_fp32():
    for device in (gpus()["v100-32gb"], gpus()["t4"], make_cluster("cpu").device):
        assert matrix_rate(device, "tf32") == matrix_rate(device, "fp32") > 0


@pytest.mark.parametrize("precision", FP16)
def test_fp16_has_the_rate_of_its_own_datasheet(precision):
    assert matrix_rate(gpus()["h100-80gb"], precision) == matrix_rate(gpus()["h100-80gb"], "bf16")
    assert matrix_rate(gpus()["t4"], precision) == 65e12
    assert matrix_rate(gpus()["v100-16gb"], precision) == 125e12


@pytest.mark.parametrize("precision", FP16)
def test_fp16_is_unknown_on_a_cpu_and_before_tensor_cores(precision):
    """A P100's 18.7 TFLOP/s accumulate in fp16, and PyTorch accumulates in fp32."""
    for device in (make_cluster("cpu").device, gpus()["p100-16gb"], gpus()["p40"]):
        assert matrix_rate(device, precision) == 0


def test_a_calibration_measures_bf16_and_fp16_is_taken_to_be_as_fast():
    device = make_cluster("cuda").device
    assert device.matrix_flops_per_s.fp16 is None
    assert matrix_rate(device, "fp16") == matrix_rate(device, "bf16") == 2e12


@pytest.mark.parametrize("name", ["t4", "v100-32gb", "p40", "gtx-1080-ti"])
def test_emulated_bf16_has_no_rate_and_says_why(name):
    assert matrix_rate(gpus()[name], "bf16-mixed") == 0
    assert "PyTorch emulates it slowly" in gpus()[name].source


def clustered(**changes):
    return msgspec.structs.replace(make_cluster("cuda"), **changes)


def test_what_one_device_has_no_use_for_is_not_written():
    one = msgspec.to_builtins(make_cluster("cuda"))
    assert set(one) == {"name", "device", "num_devices", "host_ram_bytes"}
    assert msgspec.convert(one, Cluster) == make_cluster("cuda")
    many = clustered(num_devices=16, num_nodes=2, devices_per_node=8, network="ib-ndr-400")
    assert msgspec.convert(msgspec.to_builtins(many), Cluster) == many


@pytest.mark.parametrize("counts", [{"num_nodes": 2}, {"devices_per_node": 8}, {"num_nodes": 0}])
def test_counts_of_a_plan_that_disagree(counts):
    with pytest.raises(InputError, match=r"num_devices=1 is not num_nodes=.*; give 1 or more"):
        check_cluster(clustered(**counts))


@pytest.mark.parametrize("kind", ["tf32", "fp16", "fp8", "int8"])
@pytest.mark.parametrize("rate", [-1.0, float("inf"), float("nan")])
def test_an_absurd_rate_of_any_type(kind, rate):
    rates = MatrixRates(**{"fp32": 1e12, "bf16": 1e12, kind: rate})
    cluster = make_cluster("cuda", matrix_flops_per_s=rates)
    with pytest.raises(InputError, match="has a rate of"):
        check_cluster(cluster)
