"""Machines as clouds name them."""

import pytest

from brimful.errors import InputError
from brimful.hardware.datasheets import datasheets
from brimful.hardware.instances import cloud_of, clouds, find_instance, network_of_instances
from brimful.hardware.names import machine_of, split_counts

SAID = {
    "p4d.24xlarge": (1, 8, "a100-40gb"),
    "2xp5.48xlarge": (2, 8, "h100-80gb"),
    "ml.g5.12xlarge": (1, 4, "a10g"),
    "AWS P4de.24xlarge": (1, 8, "a100-80gb"),
    "Standard_ND96isr_H100_v5": (1, 8, "h100-80gb"),
    "nd96isr h200 v5": (1, 8, "h200"),
    "p5.48xlarge:2": (2, 8, "h100-80gb"),
    "p5.48xlarge x2": (2, 8, "h100-80gb"),
    "4 x a3-megagpu-8g": (4, 8, "h100-80gb"),
    "gcp:g2-standard-48": (1, 4, "l4"),
    "BM.GPU.MI300X.8": (1, 8, "mi300x"),
    "2xgpu_8x_h100_sxm5": (2, 8, "h100-80gb"),
    "8xh100": (1, 8, "h100"),
    "p4d.12xlarge": (1, 1, "p4d.12xlarge"),
}


@pytest.mark.parametrize("typed", SAID)
def test_a_machine_is_a_node_with_what_is_in_it(typed):
    assert split_counts(typed) == SAID[typed]


@pytest.mark.parametrize("typed", [typed for typed, (_, num, _) in SAID.items() if num > 1])
def test_what_is_counted_is_still_a_clouds(typed):
    assert (cloud_of(machine_of(typed)) == "") == (typed == "8xh100")


@pytest.mark.parametrize("typed", ["p5.48xlarge", "p5.48xlarge x2", "2 x p5.48xlarge"])
def test_what_lies_between_is_told_however_it_is_counted(typed):
    assert network_of_instances(machine_of(typed)) == network_of_instances("p5.48xlarge") != ""


def test_every_machine_holds_gpus_that_are_known():
    for cloud in clouds():
        assert cloud.source.startswith("https://")
        for name, inside in cloud.gpus.items():
            count, _, gpu = inside.partition("x")
            assert 1 <= int(count) <= 16
            assert gpu in datasheets()
            assert find_instance(name) == inside


@pytest.mark.parametrize("typed", ["", "standard_", "ml.", "aws", "x" * 5000])
def test_what_names_no_machine_names_none(typed):
    assert find_instance(typed) == ""


def test_an_absurd_number_of_machines_is_refused():
    with pytest.raises(InputError, match="use 1xp4d"):
        split_counts(f"{'9' * 50}xp4d.24xlarge")
