"""Accelerate's YAML read back into flags."""

import json

import pytest
import yaml

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.read_source import read_source

FSDP = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 4}


def read(tmp_path, content, num_devices=4):
    path = tmp_path / "accelerate.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    found = read_source(path, num_devices=num_devices, num_layers=8)
    return {each.flag: each.value for each in found.taken}, found


WHOLE = {"tp": 1, "pp": 1, "ep": 1}
"""What FSDP alone does not cut: a file without degrees was planned with tensor parallel."""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": True}, {"zero": 3}),
        ({"fsdp_version": 2, "fsdp_reshard_after_forward": False}, {"zero": 2}),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {"zero": 2, "fsdp": 1}),
        ({"fsdp_version": 1, "fsdp_sharding_strategy": 1}, {"zero": 3, "fsdp": 1}),
        ({"fsdp_version": 1, "fsdp_reshard_after_forward": "NO_SHARD"}, {"zero": 0}),
        (
            {"fsdp_version": 2, "fsdp_activation_checkpointing": "true"},
            {"zero": 3, "activation_checkpointing": ["full"]},
        ),
        (
            {"fsdp_version": 2, "fsdp_offload_params": True},
            {"zero": 3, "offload": "optimizer"},
        ),
    ],
)
def test_fsdp_is_a_stage_of_zero(tmp_path, own, expected):
    taken, _ = read(tmp_path, {**FSDP, "fsdp_config": own})
    all_share = {"dp_replicate": 1} if expected["zero"] else {}
    common = {"precision": "bf16-mixed", "offload": "none", **WHOLE, **all_share}
    assert taken == {**common, **expected}


@pytest.mark.parametrize(("machines", "shards"), [(2, 2), (1, None), (3, None), ("2", None)])
def test_a_hybrid_strategy_shards_within_the_machines_of_the_file(tmp_path, machines, shards):
    own = {"fsdp_version": 1, "fsdp_sharding_strategy": "HYBRID_SHARD"}
    content = {**FSDP, "fsdp_config": own, "num_machines": machines}
    taken, found = read(tmp_path, content)
    assert (taken["zero"], taken.get("dp_shard")) == (3, shards)
    said = any("--dp-shard says over how many" in note for note in found.notes)
    assert said == (shards is None)
    assert any("num_machines" in each for each in found.unread) == (shards is None)


def test_what_is_no_part_of_a_plan_is_said(tmp_path):
    content = {**FSDP, "num_processes": 8, "debug": False, "mixed_precision": "no"}
    taken, found = read(tmp_path, content)
    assert taken == {"zero": 3, "offload": "none", "fsdp": 1, "dp_replicate": 1, **WHOLE}
    assert {"debug=false", 'mixed_precision="no"'} <= set(found.unread)


def test_deepspeeds_plugin_is_read(tmp_path):
    own = {"zero_stage": 3, "offload_optimizer_device": "cpu", "gradient_clipping": 1}
    content = {"distributed_type": "DEEPSPEED", "deepspeed_config": own}
    assert read(tmp_path, content)[0] == {"zero": 3, "offload": "optimizer", "clip": 1.0}
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "steps_per_print": 1}')
    content["deepspeed_config"] = {"deepspeed_config_file": "ds.json"}
    taken, found = read(tmp_path, content)
    assert (taken["zero"], taken["precision"]) == (2, "fp32")
    assert "steps_per_print=1" in found.unread
    assert dict(found.known)["distributed_type"] is str  # its own keys can be changed


@pytest.mark.parametrize("own", [{"zero_stage": 3}, {"deepspeed_config_file": "ds.json"}])
def test_mixed_precision_beside_deepspeed_is_its_own(tmp_path, own):
    """Accelerate turns DeepSpeed's section on: masters, no autocast."""
    content = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": own}
    settings = {"zero_optimization": {"stage": 3}}
    for section in ({}, {"bf16": {"enabled": "auto"}}):
        (tmp_path / "ds.json").write_text(json.dumps({**settings, **section}))
        assert read(tmp_path, content)[0]["precision"] == "bf16-master"


def test_micro_batches_that_are_added_up_are_the_batch(tmp_path):
    """Of how many texts each is, the script says; one on each GPU is the least."""
    own = {"zero_stage": 3, "gradient_accumulation_steps": 8}
    content = {"distributed_type": "DEEPSPEED", "deepspeed_config": own}
    taken, found = read(tmp_path, content)
    assert taken["global_batch"] == 32
    assert [each.is_each for each in found.taken if each.flag == "global_batch"] == [True]
    assert any("gradient_accumulation_steps=8 says no batch" in note for note in found.notes)
    assert not any("accumulation" in each for each in found.unread)
    own["gradient_accumulation_steps"] = 1
    assert "global_batch" not in read(tmp_path, content)[0]


def test_deepspeeds_plugin_that_says_nothing_has_its_defaults(tmp_path):
    assert read(tmp_path, {"distributed_type": "DEEPSPEED", "deepspeed_config": None})[0] == {
        "zero": 2,
        "offload": "none",
    }


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("- 1", FileFormatError),
        ("a: 1", FileFormatError),
        ("{", FileFormatError),
        ({**FSDP, "num_processes": "four"}, FileFormatError),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 9}}, InputError),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"offload_param_device": "tape"}},
            UnsupportedError,
        ),
        ({**FSDP, "fsdp_config": {"fsdp_reshard_after_forward": ["FULL_SHARD"]}}, InputError),
        ({**FSDP, "fsdp_config": {"fsdp_sharding_strategy": "ALL"}}, InputError),
        ("distributed_type: 2026-11-26", FileFormatError),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, content, error):
    with pytest.raises(error):
        read(tmp_path, content)
