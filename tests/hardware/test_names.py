"""Known GPUs under the names that people, clouds and drivers give them."""

import pytest

from brimful.errors import UnknownNameError, UnsupportedError
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import check_gpu, load_cluster
from brimful.hardware.names import find_gpu, split_counts, with_memory
from brimful.units import GIB
from each_case import each

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
    "a100-80gb": (
        "a100",
        "A100 80GB",
        "a100-sxm4-80gb",
        "NVIDIA A100-SXM4-80GB",
        "A100-80g",
        "A100-80",
    ),
    "a100-40gb": ("A100 40 GB", "a100-40", "NVIDIA A100-SXM4-40GB"),
    "a100-40gb-pcie": ("A100 40GB PCIe",),
    "rtx-4090": ("4090", "RTX 4090", "rtx4090", "RTX_4090", "NVIDIA GeForce RTX 4090"),
    "rtx-4090-d": ("4090d", "RTX 4090 D"),
    "rtx-3090-ti": ("3090ti", "rtx3090ti"),
    "rtx-a6000": ("A6000", "RTX_A6000"),
    "rtx-6000-ada": ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation"),
    "rtx-pro-6000": ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
    "gtx-1080-ti": ("1080ti", "GTX 1080 Ti"),
    "titan-rtx": ("Titan RTX",),
    "rtx-2060": ("2060", "RTX 2060 6GB", "NVIDIA GeForce RTX 2060"),
    "rtx-2070": ("2070", "rtx2070"),
    "rtx-2080-super": ("2080 super", "RTX 2080 SUPER 8GB"),
    "quadro-rtx-5000": ("Quadro RTX 5000",),
    "quadro-rtx-6000": ("quadro 6000", "NVIDIA Quadro RTX 6000"),
    "quadro-rtx-8000": ("rtx-8000", "RTX8000", "Quadro RTX 8000", "quadro-rtx-8000"),
    "rtx-3080": ("3080", "RTX 3080 10GB", "NVIDIA GeForce RTX 3080"),
    "rtx-3080-12gb": ("3080 12gb",),
    "rtx-a2000": ("a2000",),
    "rtx-a2000-12gb": ("A2000 12GB", "NVIDIA RTX A2000 12GB"),
    "rtx-a4500": ("a4500", "NVIDIA RTX A4500"),
    "rtx-4060-ti-16gb": ("4060 ti", "NVIDIA GeForce RTX 4060 Ti"),
    "rtx-4060-ti-8gb": ("RTX 4060 Ti 8 GB",),
    "rtx-5060-ti-16gb": ("5060ti",),
    "rtx-4000-ada": ("rtx 4000 ada", "NVIDIA RTX 4000 Ada Generation"),
    "rtx-pro-5000": ("RTX PRO 5000 Blackwell",),
    "rtx-pro-6000-max-q": ("RTX PRO 6000 Max-Q",),
    "dgx-spark": ("DGX Spark", "gb10", "NVIDIA GB10", "nvidia-dgx-spark"),
    "h200-nvl": ("H200 NVL",),
    "h800-pcie": ("H800 PCIe",),
    "h800-80gb": ("h800",),
    "a800-80gb": ("a800",),
    "a800-40gb": ("A800 40GB",),
    "gb300": ("GB300", "GB300 288GB"),
    "mi250": ("MI250",),
    "l40s": ("L40S", "nvidia-l40s"),
    "rtx-4060-laptop": ("4060 laptop", "RTX 4060 Mobile"),
    "t4": ("Tesla T4", "nvidia-tesla-t4"),
    "v100-16gb": ("v100", "Tesla V100-SXM2-16GB"),
    "v100-32gb": ("V100 32GB", "Tesla V100-SXM3-32GB"),
    "a10g": ("NVIDIA A10G",),
    "mi300x": ("MI300X",),
}
UNKNOWN = (
    "2050", "rtx 6000", "rtx 5000", "rtx pro 5000 72gb", "4000 sff ada",
    "h300", "h1000-80gb", "h200-80gb", "h100-8gb", "a100-64gb", "rtx", "", "x",
    "8x", "quadro", "tpu-v5e", "5" * 5000, "h100" * 1000,
)  # fmt: skip


@each("typed, name", [(typed, name) for name, spelled in SAME.items() for typed in spelled])
def test_a_gpu_under_another_name(typed, name):
    assert find_gpu(typed) == name


@each("name", datasheets())
def test_every_gpu_is_found_by_what_its_maker_and_driver_call_it(name):
    sheet = datasheets()[name]
    assert find_gpu(name.upper().replace("-", " ")) == name
    assert find_gpu(sheet.description) == name
    assert all(find_gpu(reported) for reported in sheet.reported_names)


@each("typed", UNKNOWN)
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


@pytest.mark.parametrize(
    ("typed", "named"),
    [("M4 Max", "M4 Max-64gb"), ("m4-max-36gb", "m4-max-36gb"), ("h100", "h100"), ("x", "x")],
)
def test_a_machine_of_several_sizes_is_named_with_the_one_that_is_given(typed, named):
    assert with_memory(typed, 64 * GIB) == named


def test_digits_in_another_order_are_those_that_were_meant():
    with pytest.raises(UnknownNameError, match="did you mean rtx-4090"):
        check_gpu("rtx-4900")


@pytest.mark.parametrize(
    ("typed", "meant", "nearest"),
    [("rtx-4095", "rtx-4090 or", {"gpus": "rtx-4090"}), ("h101", "h100-80gb or", {})],
)
def test_what_is_spelt_most_alike_is_suggested_first(typed, meant, nearest):
    with pytest.raises(UnknownNameError, match=f"did you mean {meant}") as told:
        check_gpu(typed)
    assert told.value.nearest == nearest


def test_cards_of_the_same_chip_are_suggested():
    with pytest.raises(UnknownNameError, match="did you mean rtx-4080 or rtx-4080-super"):
        check_gpu("4080-ti")
