"""ms-swift's command lines read back into flags."""

import pytest

from brimful.errors import InputError, UnsupportedError
from brimful.export.read_source import model_of, program_of, read_source
from brimful.programs.settings import has_settings, settings_file

LORA = (
    "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen3-8B --train_type lora --torch_dtype bfloat16 "
    "--per_device_train_batch_size 2 --learning_rate 1e-4 --lora_rank 8 --lora_alpha 32 "
    "--target_modules q_proj v_proj --gradient_accumulation_steps 8 --max_length 4096 "
    "--attn_impl flash_attn --dataset a.jsonl#500 b#700 --num_train_epochs 2"
)


def taken(line, num_devices=2):
    assert has_settings(line)
    file = settings_file(line)
    read = read_source(file, num_devices=num_devices, num_layers=36)
    return {each.flag: each.value for each in read.taken}, read


def test_adapters_are_read_with_its_defaults():
    said, read = taken(LORA)
    file = settings_file(LORA)
    assert (program_of(file), model_of(file)) == ("ms-swift", "Qwen/Qwen3-8B")
    assert said == {
        "task": "chat", "precision": "bf16-mixed", "method": "lora", "base": "bf16",
        "lora_rank": 8, "lora_alpha": 32.0, "lora_targets": "q_proj,v_proj", "seq_len": 4096,
        "packing": "none", "micro_batch": 2, "global_batch": 32, "optimizer": "adamw",
        "learning_rate": 1e-4, "weight_decay": 0.1, "beta2": 0.95, "clip": 1.0,
        "schedule": "cosine", "steps": 76, "activation_checkpointing": ["full"], "zero": 0,
        "fused_kernels": "none", "loss_chunks": 1, "optimizer_in_backward": False, "ep": 1,
    }  # fmt: skip
    assert not read.unread
    assert any("dataset has 1200 rows" in note for note in read.notes)


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ("--train_type full", {"precision": "bf16", "method": "full", "learning_rate": 1e-5}),
        ("--train_type full --deepspeed zero3", {"precision": "bf16-master", "zero": 3}),
        ("--deepspeed zero2", {"zero": 1, "offload": "none"}),
        ("--deepspeed zero2_offload", {"zero": 2, "offload": "optimizer"}),
        ("--fsdp fsdp2", {"zero": 3}),
        ("--quant_method bnb --quant_bits 4", {"method": "qlora", "base": "nf4-double"}),
        ("--torch_dtype float32", {"precision": "fp16-mixed", "base": "same"}),
        ("--torch_dtype float32 --bf16 true", {"precision": "bf16-mixed", "base": "same"}),
        ("--use_liger_kernel true", {"fused_kernels": "liger"}),
        ("--gradient_checkpointing false", {"activation_checkpointing": ["none"]}),
        ("--packing true", {"packing": "documents"}),
        ("--packing true --packing_length 4096", {"seq_len": 4096}),
        ("--packing_length 4096", {"seq_len": 512}),
        ("--sequence_parallel_size 2", {"seq_len": 256, "global_batch": 16}),
        ("--train_type vera", {"method": "vera"}),
        ("--train_type full --use_galore true", {"optimizer": "galore"}),
        ("--task_type seq_cls", {"task": "sequence-classification"}),
        ("--task_type embedding", {"task": "chat"}),
        ("", {"global_batch": 16, "micro_batch": 1, "lora_targets": "all-linear"}),
    ],
)
def test_each_switch_says_a_flag(more, flags):
    said, _ = taken(f"swift sft --model Qwen/Qwen3-8B --max_length 512 {more}")
    assert {flag: said[flag] for flag in flags} == flags


def test_rows_say_no_steps_where_nobody_knows_a_batch():
    said, read = taken("swift sft --model x --dataset a#9 --per_device_train_batch_size auto")
    assert "steps" not in said
    assert [each.partition("=")[0] for each in read.unread] == ["dataset"]


def test_verbs_say_the_task():
    assert taken("swift pt --model x --max_length 9")[0]["task"] == "causal-lm"
    assert taken("swift rlhf --model x --max_length 9 --beta 0.2")[0]["dpo_beta"] == 0.2
    assert taken("swift rlhf --rlhf_type kto --model x --max_length 9")[0]["task"] == "kto"


def test_processes_that_differ_are_said():
    assert any("without NPROC_PER_NODE" in note for note in taken("swift sft --model x")[1].notes)
    notes = taken(LORA, num_devices=4)[1].notes
    assert not any("without NPROC_PER_NODE" in note for note in notes)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("swift sft --model x --train_type reft", "train_type=reft"),
        ("swift sft --model x --quant_method hqq --quant_bits 4", "quant_method=hqq"),
        ("swift sft --model x --torch_dtype int8", "torch_dtype is int8"),
        ("swift export --model x --quant_bits 4", "swift export is not read"),
    ],
)
def test_what_is_not_planned_is_refused(line, words):
    with pytest.raises((InputError, UnsupportedError), match=words):
        taken(line)


def test_rows_of_a_policy_are_what_is_read_and_what_it_writes():
    line = "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --max_completion_length 1024"
    said, _ = taken(f"{line} --max_length 2048")
    assert (said["task"], said["seq_len"]) == ("grpo", 3072)
