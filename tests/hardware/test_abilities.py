"""What precision and which kernels a GPU really has."""

from itertools import pairwise

import pytest

from brimful.hardware.abilities import (
    TENSOR_CORES_SINCE,
    abilities,
    attention_kernels,
    tensor_core_types,
)
from brimful.hardware.datasheets import datasheets
from brimful.techniques.kernel_support import Place, why_not
from samples import make_job

SHEETS = datasheets()


@pytest.mark.parametrize(
    ("name", "types", "bf16"),
    [
        ("p100-16gb", (), "emulated"),
        ("v100-32gb", ("fp16",), "emulated"),
        ("t4", ("fp16", "int8"), "emulated"),
        ("a100-40gb", ("fp16", "int8", "bf16", "tf32"), "native"),
        ("rtx-3090", ("fp16", "int8", "bf16", "tf32"), "native"),
        ("l4", ("fp16", "int8", "bf16", "tf32", "fp8"), "native"),
        ("h100-80gb", ("fp16", "int8", "bf16", "tf32", "fp8"), "native"),
        ("b300", ("fp16", "int8", "bf16", "tf32", "fp8"), "native"),
        ("mi250x", ("fp32", "fp16", "bf16", "int8"), "native"),
        ("mi300x", ("fp32", "tf32", "fp16", "bf16", "fp8", "int8"), "native"),
    ],
)
def test_types_with_units_of_their_own(name, types, bf16):
    has = abilities(SHEETS[name])
    assert has.tensor_core_types == types
    assert has.bf16 == bf16
    assert has.tf32 == ("tf32" in types)
    assert has.fp8 == ("fp8" in types)


@pytest.mark.parametrize(
    ("name", "half", "full"),
    [
        ("p40", ("efficient",), ("efficient",)),
        ("t4", ("efficient", "flex"), ("efficient", "flex")),
        ("a100-40gb", ("flash", "efficient", "cudnn", "flex"), ("efficient", "flex")),
        ("rtx-5090", ("flash", "efficient", "cudnn", "flex"), ("efficient", "flex")),
        ("mi300x", ("flash", "efficient", "flex"), ("efficient", "flex")),
        ("mi100", None, None),
    ],
)
def test_attention_kernels(name, half, full):
    has = abilities(SHEETS[name])
    assert (has.attention_16bit, has.attention_fp32) == (half, full)


def test_attention_kernels_are_those_of_the_rules_that_jobs_are_checked_with():
    job = make_job(precision="fp16")
    for name, sheet in SHEETS.items():
        listed = attention_kernels(sheet, "fp16")
        if listed is not None:
            reason = why_not(job, "flash", Place("cuda", sheet.capability))
            assert ("flash" in listed) == (reason is None), name


def test_notes_say_what_a_choice_of_recipe_should_know():
    assert not abilities(SHEETS["h100-80gb"]).notes
    assert "emulates it slowly" in " ".join(abilities(SHEETS["t4"]).notes)
    assert "no Tensor Cores" in " ".join(abilities(SHEETS["p40"]).notes)
    assert "ROCm" in " ".join(abilities(SHEETS["mi300x"]).notes)


def test_tensor_cores_never_lose_a_type():
    assert set(TENSOR_CORES_SINCE) == {"fp16", "int8", "bf16", "tf32", "fp8"}
    nvidia = [sheet for sheet in SHEETS.values() if sheet.maker == "NVIDIA"]
    by_age = sorted(nvidia, key=lambda sheet: sheet.capability)
    types = [set(tensor_core_types(sheet)) for sheet in by_age]
    assert all(older <= newer for older, newer in pairwise(types))
    assert types[0] == set() != types[-1]
