"""The table itself: that every value has a source, and that no figure is a sparse one."""

import re
from typing import get_args

import pytest

from brimful.hardware.abilities import tensor_core_types
from brimful.hardware.datasheets import (
    MatrixType,
    cited,
    cited_documents,
    datasheets,
    documents,
    fp4_rate,
    source_of,
)
from brimful.hardware.devices import cards, gpus, has_cuda, reported_as
from brimful.hardware.usable import DRIVER_SHARES, SHARES, usable_memory
from brimful.units import GIB
from each_case import each

SHEETS = datasheets()
NVIDIA = {name: sheet for name, sheet in SHEETS.items() if has_cuda(sheet)}
CORES = {6.0: 64, 6.1: 128, 7.0: 64, 7.5: 64, 8.0: 64, 8.6: 128, 8.9: 128, 9.0: 128, 10.0: 128,
         12.0: 128, 12.1: 128}  # fmt: skip
"""FP32 CUDA cores of a multiprocessor, of the CUDA C++ Programming Guide."""
FP16_PER_CLOCK = {7.0: 1024, 7.5: 1024, 8.0: 2048, 8.6: 1024, 8.9: 1024, 9.0: 4096, 10.0: 8192,
                  12.0: 1024, 12.1: 1024}  # fmt: skip
"""Dense fp16 FLOP with fp32 accumulation per clock and multiprocessor, of NVIDIA's whitepapers."""
HALVED = {
    "a10g",
    "l40",
    "l20",
    *(name for name, sheet in SHEETS.items() if "GeForce" in sheet.description),
}
"""Cards whose tensor cores accumulate in fp32 at half their rate."""
CAPPED = {"h20", "h20-141gb"}
"""Cut down for export below what its clock would give."""
SOLD_IN_TWO_SIZES = (
    "NVIDIA GeForce RTX 2060", "GeForce RTX 2060", "NVIDIA GeForce RTX 3080",
    "NVIDIA GeForce RTX 4060 Ti", "NVIDIA GeForce RTX 5060 Ti", "NVIDIA GeForce RTX 3060",
    "GeForce RTX 3060", "NVIDIA H20",
)  # fmt: skip
BEFORE = {
    "h100-80gb": (84932978278, 66.9e12, 989.4e12, 3.35e12),
    "h200": (150023207649, 66.9e12, 989.4e12, 4.8e12),
    "a100-80gb": (84986665370, 19.5e12, 312e12, 2.039e12),
    "a100-40gb": (42283953029, 19.5e12, 312e12, 1.555e12),
    "l4": (23654532383, 30.3e12, 121e12, 0.3e12),
    "l40s": (47695611822, 91.6e12, 362.05e12, 0.864e12),
    "rtx-3090": (25297357373, 35.6e12, 71e12, 0.936e12),
    "rtx-4090": (25254407700, 82.6e12, 165.2e12, 1.008e12),
    "rtx-a6000": (50895362458, 38.7e12, 154.8e12, 0.768e12),
    "v100-32gb": (34069828076, 15.7e12, 0, 0.9e12),
    "t4": (15633680957, 8.1e12, 0, 0.32e12),
    "b200": (191501854310, 75e12, 2250e12, 7.7e12),
}
"""The first twelve GPUs of the table: plans and published predictions rest on these numbers."""


def test_there_are_gpus_of_every_generation_and_maker():
    assert len(SHEETS) >= 40
    assert {sheet.architecture for sheet in SHEETS.values()} >= {
        *("Pascal", "Volta", "Turing", "Ampere", "Ada", "Hopper", "Blackwell"),
        *("CDNA 2", "CDNA 3", "CDNA 4"),
    }
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in SHEETS)


@pytest.mark.parametrize(("name", "numbers"), BEFORE.items())
def test_the_first_gpus_have_the_numbers_that_they_had(name, numbers):
    device = gpus()[name]
    rates = device.matrix_flops_per_s
    told = (device.usable_bytes, rates.fp32, rates.bf16, device.memory_bytes_per_s)
    assert told == numbers


def test_rates_of_nvfp4_are_of_blackwell():
    assert fp4_rate("gb300") == 1.5 * fp4_rate("gb200")
    assert fp4_rate("h100-80gb") == fp4_rate("no such card") == 0


@each("name", SHEETS)
def test_every_value_has_a_source_that_is_listed(name):
    sheet = SHEETS[name]
    fields = ["memory_bytes", "capability", "memory_bytes_per_s"]
    fields += [f"matrix_flops_per_s.{kind}" for kind in get_args(MatrixType)]
    fields += [f"links.{link.kind}" for link in sheet.links]
    optional = ("usable_bytes", "driver_bytes", "tdp_w", "num_multiprocessors")
    fields += [field for field in optional if getattr(sheet, field) is not None]
    fields += ["matrix_flops_per_s.fp4"] if sheet.matrix_flops_per_s.fp4 else []
    fields += ["per_node"] if sheet.per_node != 8 else []
    fields += ["linked"] if sheet.linked else []
    fields += ["processor"] if sheet.processor != "x86" else []
    for field in fields:
        key = re.split(r"[; ]", source_of(sheet, field))[0]
        assert key in cited_documents(sheet), field
        assert documents()[key].title in cited(sheet, field)
    assert set(sheet.sources) <= {*fields, "matrix_flops_per_s"}


def test_documents_have_addresses_and_are_all_cited():
    used = {key for sheet in SHEETS.values() for key in cited_documents(sheet)}
    assert used == set(documents())
    for key, document in documents().items():
        assert document.url.startswith("https://") or key == "recalled"


@each("name", SHEETS)
def test_nothing_and_unknown_are_told_apart(name):
    """Types that the chip has no units for have the rate 0, all others a rate or None."""
    sheet = SHEETS[name]
    for kind in ("tf32", "bf16", "fp8"):
        rate = getattr(sheet.matrix_flops_per_s, kind)
        if sheet.target == "gfx950" and kind == "tf32":
            assert rate is None  # not stated; its matrix cores have no units for it
        else:
            assert (rate == 0) == (kind not in tensor_core_types(sheet)), kind


@each("name", [n for n in NVIDIA if NVIDIA[n].num_multiprocessors])
def test_rates_are_what_the_multiprocessors_can_do_in_a_clock(name):
    """A sparse figure, or one with fp16 accumulation, would be twice what this allows."""
    sheet = SHEETS[name]
    rates, units = sheet.matrix_flops_per_s, sheet.num_multiprocessors
    clock_hz = rates.fp32 / (2 * CORES[sheet.capability] * units)
    assert 1.2e9 < clock_hz < 2.7e9
    if sheet.capability >= 7.0 and name not in CAPPED:
        full = FP16_PER_CLOCK[sheet.capability] * (0.5 if name in HALVED else 1)
        assert rates.fp16 / (units * clock_hz) == pytest.approx(full, rel=0.15)


@each("name", SHEETS)
def test_rates_double_as_types_halve(name):
    rates = SHEETS[name].matrix_flops_per_s
    if rates.bf16:
        assert rates.bf16 * (2 if name == "mi100" else 1) == rates.fp16
    if rates.tf32 and rates.bf16:
        assert rates.bf16 / rates.tf32 == pytest.approx(2.0, rel=0.08)
    if rates.fp8 and rates.bf16:
        assert rates.fp8 / rates.bf16 == pytest.approx(2.0, rel=0.03)
    if rates.int8 and rates.bf16:
        is_equal = name.startswith("mi2") or SHEETS[name].architecture in {"RDNA 3", "RDNA 3.5"}
        times = 4 if name in HALVED - {"a10g", "l40"} else 1 if is_equal else 2
        assert rates.int8 / rates.bf16 == pytest.approx(times, rel=0.03)


@each("name", SHEETS)
def test_what_is_known_of_the_memory_is_within_the_rule_for_what_is_not(name):
    sheet = SHEETS[name]
    memory = usable_memory(sheet)
    low, high = SHARES[sheet.memory_kind]
    assert memory.low_bytes <= memory.num_bytes <= memory.high_bytes <= sheet.memory_bytes
    if not memory.is_known:
        assert memory.num_bytes == memory.low_bytes
        assert memory.why.startswith("assumed")
        return
    assert low <= memory.num_bytes / sheet.memory_bytes <= high
    if sheet.driver_bytes is not None:
        assert DRIVER_SHARES[0] <= memory.num_bytes / sheet.driver_bytes <= DRIVER_SHARES[1]


@pytest.mark.parametrize(("name", "known"), [("h100-80gb", True), ("h800-80gb", False)])
def test_assumed_memory_says_so_in_the_device(name, known):
    assert usable_memory(SHEETS[name]).is_known == known
    assert ("usable bytes: assumed" in gpus()[name].source) == (not known)


def test_no_two_gpus_of_a_size_report_the_same_name():
    names = [name for sheet in SHEETS.values() for name in sheet.reported_names]
    assert {name for name in names if names.count(name) > 1} == set(SOLD_IN_TWO_SIZES)
    for name, sheet in NVIDIA.items():
        memory = usable_memory(sheet)  # of one that the host shares the driver's total is all of it
        known = memory.high_bytes if sheet.memory_kind == "unified" else memory.num_bytes
        total_bytes = sheet.driver_bytes or known
        for reported in sheet.reported_names:
            assert reported_as(reported, total_bytes=total_bytes) == gpus()[name]
    assert reported_as("Voodoo 2", total_bytes=12 * GIB) is None


def rate(name, kind="bf16"):
    return getattr(SHEETS[name].matrix_flops_per_s, kind)


def nvlink(name):
    return SHEETS[name].links[0].bytes_per_s


def test_variants_of_a_name_are_not_mixed_up():
    assert rate("h100-pcie") < rate("h100-nvl") < rate("h100-80gb")
    assert rate("a10g") < rate("a10")
    assert rate("rtx-4090-d") < rate("rtx-4090")
    assert rate("h20") < 0.2 * rate("h800-80gb")
    # 400 GB/s in both directions, for export; the H20 has all of its links again
    assert nvlink("a800-80gb") == nvlink("h800-80gb") == 200e9
    assert nvlink("h20") == nvlink("h100-80gb") == 450e9
    assert rate("p100-16gb", "fp16") == pytest.approx(2 * rate("p100-16gb", "fp32"), rel=0.02)
    assert rate("p40", "fp16") == pytest.approx(rate("p40", "fp32") / 64, rel=0.02)
    assert rate("gtx-1080-ti", "fp16") == pytest.approx(rate("gtx-1080-ti", "fp32") / 64, rel=0.02)


def test_cards_are_all_gpus_that_come_without_a_computer_smallest_first():
    sizes = [device.usable_bytes for device in cards()]
    assert sizes == sorted(sizes)
    left_out = set(gpus()) - {device.name for device in cards()}
    built_in = {"dgx-spark", *(name for name in gpus() if name.endswith("-laptop"))}
    assert left_out == built_in | {name for name in gpus() if not has_cuda(SHEETS[name])}


def test_memory_that_the_host_shares_is_not_promised_whole():
    memory = usable_memory(SHEETS["dgx-spark"])
    assert not memory.is_known
    assert memory.num_bytes < 102 * GIB
    assert "the host's processes share" in memory.why
