"""Rates per recipe: what a datasheet says follows from another figure, and what is unknown."""

import pytest

from brimful.hardware.cluster import matrix_rate
from brimful.hardware.gpus import gpus
from samples import make_cluster

NVIDIA_TF32 = {"a100-80gb": 156e12, "h100-80gb": 494.7e12, "rtx-4090": 82.6e12, "l40s": 183e12}
"""Dense, of NVIDIA's datasheets; L40S's is written without digits."""


@pytest.mark.parametrize(("name", "rate"), NVIDIA_TF32.items())
def test_tf32_is_that_of_the_datasheet(name, rate):
    assert matrix_rate(gpus()[name], "tf32") == pytest.approx(rate, rel=0.012)


def test_without_tf32_units_products_run_in_fp32():
    for device in (gpus()["v100-32gb"], gpus()["t4"], make_cluster("cpu").device):
        assert matrix_rate(device, "tf32") == matrix_rate(device, "fp32") > 0


@pytest.mark.parametrize("precision", ["fp16", "fp16-mixed", "fp16-master"])
def test_fp16_is_as_fast_as_bf16_on_a_gpu_and_unknown_on_a_cpu(precision):
    assert matrix_rate(gpus()["h100-80gb"], precision) == matrix_rate(gpus()["h100-80gb"], "bf16")
    assert matrix_rate(gpus()["t4"], precision) == 0
    assert matrix_rate(make_cluster("cpu").device, precision) == 0
