"""FSDP's offload in somebody's file is planned as what there is, and said where there is less."""

import json

import pytest

AXOLOTL = {
    "base_model": "meta-llama/Llama-3.2-1B", "adapter": "qlora", "load_in_4bit": True,
    "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True, "sequence_len": 1024,
    "sample_packing": True, "micro_batch_size": 2, "gradient_accumulation_steps": 2,
    "optimizer": "adamw_torch", "bf16": True, "gradient_checkpointing": True,
    "datasets": [{"path": "text", "type": "alpaca"}], "fsdp": ["full_shard", "auto_wrap"],
    "fsdp_config": {"fsdp_offload_params": True, "fsdp_version": 2},
}  # fmt: skip
FULL = {"adapter": None, "load_in_4bit": None, "lora_target_linear": None}
TUNE = """
_component_: recipe
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 1024}
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: false}
optimizer: {_component_: torch.optim.AdamW, lr: 2e-5}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 1
gradient_accumulation_steps: 2
dtype: bf16
enable_activation_checkpointing: true
enable_activation_offloading: false
fsdp_cpu_offload: true
"""
ACCELERATE = """
distributed_type: FSDP
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_offload_params: true, fsdp_sharding_strategy: FULL_SHARD}
"""


@pytest.fixture
def axolotl(tmp_path):
    """Write a file of Axolotl's, changed."""

    def write(**changes):
        content = {key: value for key, value in (AXOLOTL | changes).items() if value is not None}
        path = tmp_path / "axolotl.yaml"
        path.write_text(json.dumps(content))
        return path

    return write


def taken(said):
    """Return what a file was taken as, by flag."""
    return {each["flag"]: each["value"] for each in json.loads(said.out)["from"]["taken"]}


def test_a_frozen_base_of_shards_on_the_host_is_planned_as_one_for_each_gpu(brimful, axolotl):
    given = ("--from", axolotl(), "--gpus", "2x4090", "--host-memory", "128GB", "--no-proof")
    said = brimful("plan", *given, "--json")
    read, best = taken(said), json.loads(said.out)
    assert (read["offload"], read["zero"], read["packing"]) == ("parameters", 1, "none")
    assert (best["best"]["strategy"]["offload"], said.code) == ("parameters", 0)
    text = brimful("plan", *given)
    words = " ".join(text.out.split())
    assert "stands in offload_params: frozen layers on the host, whole for each GPU" in words
    assert "documents: whole rows of as many tokens, for want of a formula" in words
    assert "planned without that" not in words
    assert "on the host" in words.partition("offload ")[2]


def test_what_trains_whole_says_what_the_shards_would_spare(brimful, axolotl):
    given = ("--from", axolotl(**FULL, sample_packing=False), "--gpus", "2x4090", "--no-proof")
    said = brimful("plan", *given, "--json")
    assert (taken(said)["offload"], taken(said)["zero"]) == ("optimizer", 3)
    words = " ".join(brimful("plan", *given).out.split())
    told = "stands in offload_params moves parameters too, and is planned as optimizer alone: up to"
    assert told in words
    assert "less on each GPU" in words.partition(told)[2]


def test_what_is_typed_beside_it_is_kept(brimful, axolotl):
    given = ("--from", axolotl(sample_packing=False), "--gpus", "2x4090", "--no-proof")
    said = brimful("plan", *given, "--offload", "none", "--json")
    assert "offload" not in taken(said)
    assert taken(said)["zero"] == 3
    assert not json.loads(said.out)["from"]["stand_ins"]


def test_on_one_gpu_all_parameters_wait_on_the_host(brimful, axolotl):
    given = ("--gpus", "4090", "--host-memory", "128GB", "--no-proof", "--json")
    said = brimful("plan", "--from", axolotl(**FULL, sample_packing=False), *given)
    assert taken(said)["offload"] == "parameters"


GIVEN = ("llama-3.2-1b", "--seq-len", "1024", "--global-batch", "4")


@pytest.mark.parametrize(
    ("text", "flags", "key"),
    [(TUNE, (), "fsdp_cpu_offload"), (ACCELERATE, GIVEN, "fsdp_offload_params")],
)
def test_each_program_s_switch_is_told_beside_the_verdict(brimful, tmp_path, text, flags, key):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    said = brimful("plan", *flags, "--from", path, "--gpus", "2x4090", "--no-proof", "--json")
    read = json.loads(said.out)["from"]
    assert f"{key} moves parameters too" in " ".join(read["stand_ins"])
    assert "planned without that" not in " ".join(read["notes"])
