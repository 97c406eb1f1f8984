"""LitGPT's YAML read back into flags."""

import pytest
import yaml

from brimful.errors import InputError, UnsupportedError
from brimful.export.read_source import model_of, program_of, read_source

QLORA = {
    "checkpoint_dir": "checkpoints/meta-llama/Llama-2-7b-hf", "precision": "bf16-true",
    "quantize": "bnb.nf4", "devices": 1, "lora_r": 32, "lora_alpha": 16, "lora_query": True,
    "lora_mlp": True, "seed": 1337,
    "train": {"global_batch_size": 8, "micro_batch_size": 2, "max_seq_length": 512,
              "lr_warmup_steps": 10, "max_norm": None},
    "optimizer": {"class_path": "torch.optim.AdamW",
                  "init_args": {"lr": 0.0002, "weight_decay": 0.0}},
}  # fmt: skip
PRETRAIN = {
    "model_name": "tiny-llama-1.1b", "precision": "bf16-mixed", "devices": "auto",
    "train": {"global_batch_size": 512, "micro_batch_size": 4, "max_seq_length": 2048},
}  # fmt: skip


def read(tmp_path, content, num_devices=1):
    path = tmp_path / "lit.yaml"
    path.write_text(yaml.safe_dump(content), "utf-8")
    found = read_source(path, num_devices=num_devices, num_layers=32)
    return {each.flag: each.value for each in found.taken}, found, path


def test_fine_tuning_on_one_gpu(tmp_path):
    said, _, path = read(tmp_path, QLORA)
    assert (program_of(path), model_of(path)) == ("litgpt", "meta-llama/Llama-2-7b-hf")
    assert said == {
        "task": "causal-lm", "packing": "none", "precision": "bf16", "method": "qlora",
        "base": "nf4", "lora_rank": 32, "lora_alpha": 16.0, "seq_len": 512, "micro_batch": 2,
        "lora_targets": "q_proj,v_proj,gate_proj,up_proj,down_proj", "global_batch": 8,
        "optimizer": "adamw-foreach", "learning_rate": 0.0002, "weight_decay": 0.0,
        "schedule": "cosine", "clip": 0.0, "seed": 1337,
        "activation_checkpointing": ["none"], "fused_kernels": "none", "loss_chunks": 1,
    }  # fmt: skip


def test_on_several_gpus_it_is_fsdp_and_recomputes(tmp_path):
    full = {key: x for key, x in QLORA.items() if not key.startswith(("lora", "quant"))}
    said, *_ = read(tmp_path, full, num_devices=4)
    flags = {"method": "full", "zero": 3, "fsdp": 1, "activation_checkpointing": ["full"],
             "micro_batch": 2, "global_batch": 8}  # fmt: skip
    assert {flag: said[flag] for flag in flags} == flags


def test_pretraining_keeps_full_logits(tmp_path):
    said, found, path = read(tmp_path, PRETRAIN, num_devices=8)
    assert model_of(path) == "tiny-llama-1.1b"
    assert (said["packing"], said["loss_chunks"]) == ("wrapped", 1)
    assert said["activation_checkpointing"] == ["none"]
    assert any("compiles" in each for each in found.stand_ins)


@pytest.mark.parametrize(
    ("more", "error"),
    [({"precision": "8"}, InputError), ({"quantize": "bnb.fp4"}, UnsupportedError)],
)
def test_what_is_not_planned_is_refused(tmp_path, more, error):
    with pytest.raises(error):
        read(tmp_path, {**QLORA, **more})
