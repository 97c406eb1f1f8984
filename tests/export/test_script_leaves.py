"""Scripts on top of the Trainer: their texts, their adapters, and older TRL's words."""

import pytest

from brimful.export.read_source import read_source
from brimful.export.unread import could_matter
from brimful.programs.settings import settings_file

BEGINS = "torchrun train.py --model_name_or_path gpt2 --per_device_train_batch_size 2 --bf16 True "
LLAVA = (
    "deepspeed --num_gpus 2 train_mem.py --lora_enable True --lora_r 128 --lora_alpha 256 "
    "--model_name_or_path gpt2 --model_max_length 2048 --bf16 True "
    "--per_device_train_batch_size 16"
)
QLORA = (
    f"{BEGINS} --bits 4 --lora_r 64 --lora_alpha 16 --lora_modules all --double_quant "
    "--quant_type nf4 --source_max_len 16 --target_max_len 512"
)
CHAT = (
    "deepspeed --num_gpus 2 main.py --actor_model_name_or_path gpt2 --max_seq_len 512 "
    "--zero_stage 3 --offload --deepspeed --lora_dim 128 --per_device_train_batch_size 4"
)


def taken(line):
    read = read_source(settings_file(line), num_devices=2, num_layers=12)
    return {each.flag: each.value for each in read.taken}, read


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        (LLAVA, {"method": "lora", "lora_rank": 128, "lora_alpha": 256.0,
                 "lora_targets": "all-linear", "seq_len": 2048}),
        (QLORA,
         {"method": "qlora", "base": "nf4-double", "lora_rank": 64, "lora_targets": "all-linear",
          "seq_len": 528}),
        (f"{BEGINS} --use_lora 1 --lora_r 8 --target_modules q_proj v_proj --block_size 512",
         {"method": "lora", "base": "bf16", "lora_targets": "q_proj,v_proj", "packing": "wrapped"}),
        (f"{BEGINS} --q_lora --model_max_length 64", {"method": "qlora", "lora_rank": 8}),
        (f"{BEGINS} --query_max_len 512 --passage_max_len 256 --train_group_size 8",
         {"seq_len": 512, "micro_batch": 18, "global_batch": 36}),
        (CHAT,
         {"zero": 3, "offload": "parameters", "method": "lora", "lora_rank": 128, "seq_len": 512,
          "precision": "fp16-master"}),
    ],
)  # fmt: skip
def test_what_many_scripts_share_is_read_by_its_names(line, flags):
    said, _ = taken(line)
    assert {flag: said.get(flag) for flag in flags} == flags


@pytest.mark.parametrize("more", ["--lora_enable False --lora_r 8", "--model_max_length 64"])
def test_without_adapters_none_are_read(more):
    assert "method" not in taken(f"{BEGINS} {more}")[0]


def test_what_is_frozen_may_change_what_fits():
    _, read = taken(f"{BEGINS} --freeze_llm True --lora_dropout 0.1 --model_max_length 64")
    assert could_matter(read.unread) == ("freeze_llm",)


def test_older_trl_is_read_by_what_it_calls_things():
    words = "--model_name_or_path gpt2 --max_seq_length 4096 --torch_dtype bfloat16"
    said, read = taken(f"trl sft {words}")
    assert (said["seq_len"], said["precision"]) == (4096, "bf16")
    assert not any("max_seq" in each or "torch_dtype" in each for each in read.unread)


def test_a_policy_with_a_beta_is_no_pair_of_answers():
    line = (
        "python grpo_fast.py --model_name_or_path gpt2 --beta 0.01 --response_length 512 "
        "--max_prompt_token_length 256 --num_samples_per_prompt_rollout 16 "
        "--per_device_train_batch_size 1"
    )
    said, _ = taken(line)
    assert (said["task"], said["seq_len"]) == ("grpo", 768)
