"""Slices of a GPU (MIG): their names, what they have of a card, and that a run has one."""

import pytest

from brimful.errors import UnknownNameError, UnsupportedError
from brimful.hardware.gpus import gpus, load_cluster
from brimful.hardware.names import split_counts
from brimful.hardware.slices import find_slice, slice_device, sliced
from brimful.units import GIB


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a100-40gb-mig-3g.20gb", "a100-40gb-mig-3g.20gb"),
        ("h100-mig-1g.10gb", "h100-80gb-mig-1g.10gb"),
        ("1g.10gb", "a100-80gb-mig-1g.10gb"),
        ("nvidia.com/mig-1g.5gb", "a100-40gb-mig-1g.5gb"),
        ("a100 3g.20gb", "a100-40gb-mig-3g.20gb"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a100-80gb-mig-3g.40gb"),
        ("1g.10gb+me", "a100-80gb-mig-1g.10gb"),
        ("a100-80gb-mig-9g.99gb", ""),
        ("rtx-4090-mig-1g.10gb", ""),
        ("a100-80gb", ""),
    ],
)
def test_names_of_profiles_are_slices(text, key):
    assert find_slice(text) == key


def test_every_profile_is_part_of_a_known_card():
    for each in sliced():
        for name in each.gpus:
            for profile, cut in each.profiles.items():
                device, whole = slice_device(f"{name}-mig-{profile}"), gpus()[name]
                label = float(profile.partition("g.")[2].removesuffix("gb"))
                assert 0.85 < device.usable_bytes / (label * GIB) <= 1.02, (name, profile)
                assert device.usable_bytes <= whole.usable_bytes
                share = cut.memory_slices / each.memory_slices
                assert device.memory_bytes_per_s == pytest.approx(whole.memory_bytes_per_s * share)
                share = cut.compute_slices / each.compute_slices
                rate = device.matrix_flops_per_s.bf16
                assert rate == pytest.approx(whole.matrix_flops_per_s.bf16 * share)
                assert profile.startswith(f"{cut.compute_slices}g.")


def test_a_run_has_one_slice():
    assert load_cluster("h100-mig-1g.10gb", memory_limit_bytes=None).num_devices == 1
    assert split_counts("2xa100-mig-3g.40gb").per_node == 2
    with pytest.raises(UnsupportedError, match="CUDA gives a process one") as told:
        load_cluster("2xa100-mig-3g.40gb", memory_limit_bytes=None)
    assert told.value.nearest == {"gpus": "a100-80gb-mig-3g.40gb"}


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("gaudi-3", {"gpus": "dgx-spark", "card_memory": 128 * GIB}),
        ("2xrx-7900-gre", {"gpus": "2x", "card_memory": 16 * GIB}),
        ("mi50", {"gpus": "", "card_memory": 32 * GIB}),
        ("2x AMD Instinct MI60", {"gpus": "2x", "card_memory": 32 * GIB}),
        ("Radeon VII", {"gpus": "", "card_memory": 16 * GIB}),
        ("tpu-v5e", {}),
        ("m1", {"gpus": "", "card_memory": 5 * GIB}),
        ("m2-max", {"gpus": "", "card_memory": 21 * GIB}),
        ("m3-max", {"gpus": "", "card_memory": 27 * GIB}),
        ("m3-max-64gb", {"gpus": "", "card_memory": 48 * GIB}),
    ],
)
def test_what_is_not_modelled_is_answered_on_a_card_as_large(text, near):
    with pytest.raises(UnknownNameError) as told:
        load_cluster(text, memory_limit_bytes=None)
    found = told.value.nearest
    assert found.get("card_memory") == near.get("card_memory")
    assert found.get("gpus", "").startswith(near.get("gpus", ""))
    if near:
        load_cluster(found["gpus"], memory_limit_bytes=None)
