"""Known GPUs under the names that people, clouds and drivers give them."""

import pytest

from brimful.errors import UnknownNameError, UnsupportedError
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import check_gpu, load_cluster
from brimful.hardware.names import find_gpu, split_counts

SAME = {
    "h100-80gb": (
        "h100",
        "H100",
        "NVIDIA H100 80GB HBM3",
        "nvidia-h100-mega-80gb",
        "H100 SXM5",
        "H100-80GB",
    ),
    "h100-pcie": ("h100-pcie", "NVIDIA H100 PCIe", "H100 80GB PCIe"),
    "h100-nvl": ("H100 NVL", "h100-94gb"),
    "h200": ("h200-141gb", "H200 SXM"),
    "b200": ("B200", "B200 192GB"),
    "gh200": ("NVIDIA GH200 480GB",),
    "a100-80gb": ("a100", "A100 80GB", "a100-sxm4-80gb", "NVIDIA A100-SXM4-80GB", "A100-80g"),
    "a100-40gb": ("A100 40 GB", "NVIDIA A100-SXM4-40GB"),
    "a100-40gb-pcie": ("A100 40GB PCIe",),
    "rtx-4090": ("4090", "RTX 4090", "rtx4090", "RTX_4090", "NVIDIA GeForce RTX 4090"),
    "rtx-4090-d": ("4090d", "RTX 4090 D"),
    "rtx-3090-ti": ("3090ti", "rtx3090ti"),
    "rtx-a6000": ("A6000", "RTX_A6000"),
    "rtx-6000-ada": ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation"),
    "rtx-pro-6000": ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
    "gtx-1080-ti": ("1080ti", "GTX 1080 Ti"),
    "titan-rtx": ("Titan RTX",),
    "l40s": ("L40S", "nvidia-l40s"),
    "rtx-4060-laptop": ("4060 laptop", "RTX 4060 Mobile"),
    "t4": ("Tesla T4", "nvidia-tesla-t4"),
    "v100-16gb": ("v100", "Tesla V100-SXM2-16GB"),
    "v100-32gb": ("V100 32GB",),
    "a10g": ("NVIDIA A10G",),
    "mi300x": ("MI300X",),
}
UNKNOWN = (
    "2070", "rtx 6000", "h300", "h1000-80gb", "h200-80gb", "h100-8gb", "a100-64gb", "rtx", "", "x",
    "8x", "quadro", "tpu-v5e", "5" * 5000, "h100" * 1000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "name"), [(typed, name) for name, spelled in SAME.items() for typed in spelled]
)
def test_a_gpu_under_another_name(typed, name):
    assert find_gpu(typed) == name


@pytest.mark.parametrize("name", datasheets())
def test_every_gpu_is_found_by_what_its_maker_and_driver_call_it(name):
    sheet = datasheets()[name]
    assert find_gpu(name.upper().replace("-", " ")) == name
    assert find_gpu(sheet.description) == name
    assert all(find_gpu(reported) for reported in sheet.reported_names)


@pytest.mark.parametrize("typed", UNKNOWN)
def test_a_gpu_that_is_another_is_not_taken(typed):
    assert find_gpu(typed) == ""
    with pytest.raises(UnknownNameError, match="brimful gpus lists them"):
        check_gpu(typed)


@pytest.mark.parametrize(
    "typed",
    ["8xh100", "8 x H100", "8\u00d7H100", "H100:8", "h100x8", "8 h100s", "8x H100 (80 GB SXM5)"],
)
def test_eight_of_them(typed):
    cluster = load_cluster(typed, memory_limit_bytes=None)
    assert (cluster.name, cluster.num_nodes, cluster.num_devices) == ("h100-80gb", 1, 8)


@pytest.mark.parametrize(
    ("typed", "alike"),
    [
        ("rtx-3090,rtx-4090", "2xrtx-3090"),
        ("3090 + 3060", "2xrtx-3060"),
        ("2xh100 and 2xa100", "4xa100-80gb"),
    ],
)
def test_several_kinds_are_planned_as_the_least_of_them(typed, alike):
    with pytest.raises(UnsupportedError, match=f"use {alike}") as refused:
        load_cluster(typed, memory_limit_bytes=None)
    assert refused.value.nearest == {"gpus": alike}


@pytest.mark.parametrize(
    ("typed", "counted"),
    [("4x8xh100", (4, 8)), ("2x3090", (1, 2)), ("rtx 4090", (1, 1)), ("l4x1", (1, 1))],
)
def test_counts_are_told_from_names(typed, counted):
    assert split_counts(typed)[:2] == counted


def test_cards_of_the_same_chip_are_suggested():
    with pytest.raises(UnknownNameError, match="did you mean rtx-4080 or rtx-4080-super"):
        check_gpu("4080-ti")
