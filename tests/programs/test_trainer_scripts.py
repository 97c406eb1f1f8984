"""Command lines of scripts on top of transformers' Trainer are read as its settings."""

import pytest

from brimful.export.read_source import model_of, program_of, read_source
from brimful.programs.reading import read_command
from brimful.programs.settings import has_settings, script_of, settings_file
from brimful.values.plan import load_yaml

CLM = (
    "python run_clm.py --model_name_or_path Qwen/Qwen2.5-1.5B --dataset_name wikitext "
    "--per_device_train_batch_size 4 --block_size 2048 --bf16 --gradient_checkpointing --do_train"
)
ALPACA = (
    "torchrun --nproc_per_node=4 train.py --model-name-or-path huggyllama/llama-7b --bf16 True "
    "--data_path ./alpaca.json --per_device_train_batch_size=1 --gradient_accumulation_steps 16 "
    "--model_max_length 512 --optim paged_adamw_8bit"
)


def taken(line, num_devices=1):
    assert has_settings(line)
    file = settings_file(line)
    read = read_source(file, num_devices=num_devices, num_layers=24)
    return file, {each.flag: each.value for each in read.taken}


def test_the_line_of_an_example_says_model_lengths_and_batches():
    file, said = taken(CLM)
    assert model_of(file) == "Qwen/Qwen2.5-1.5B"
    assert program_of(file) == "hf-trainer"
    assert said["seq_len"] == 2048
    assert said["packing"] == "wrapped"
    assert said["precision"] == "bf16-mixed"
    assert (said["micro_batch"], said["global_batch"]) == (4, 4)
    assert said["activation_checkpointing"] == ["full"]


def test_a_script_of_ones_own_is_read_by_its_flags_with_hyphens_and_values_too():
    file, said = taken(ALPACA, num_devices=4)
    assert model_of(file) == "huggyllama/llama-7b"
    assert (said["seq_len"], said["packing"]) == (512, "none")
    assert (said["global_batch"], said["optimizer"]) == (64, "paged-adamw-8bit")
    assert said["activation_checkpointing"] == ["none"]


def test_a_line_may_be_longer_than_a_name_of_a_file():
    assert script_of(f"python mine.py --notes {'x' * 5000}") == "mine.py"
    assert has_settings(f"python mine.py --per_device_train_batch_size 4 --notes {'x' * 5000}")


@pytest.mark.parametrize("text", ["settings.yaml", "python mine.py --width 8", "my run/x.json"])
def test_what_has_none_of_the_trainers_flags_is_no_settings(text):
    assert not has_settings(text)


FSDP1 = """
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 4
fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_offload_params: false}
"""
SCRIPT = "run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 1"


@pytest.mark.torch
def test_what_accelerate_s_file_says_counts_where_the_script_says_nothing(tmp_path):
    (tmp_path / "a.yaml").write_text(FSDP1, "utf-8")
    line = f"accelerate launch --config_file {tmp_path / 'a.yaml'} {SCRIPT}"
    _, said = taken(line, num_devices=4)
    assert (said["zero"], said["fsdp"], said["precision"]) == (2, 1, "bf16-mixed")
    _, said = taken(f"{line} --fp16 --fsdp full_shard", num_devices=4)
    assert (said["zero"], said["precision"]) == (3, "fp16-mixed")


@pytest.mark.torch
def test_the_flags_of_accelerate_launch_count_too():
    two = (
        "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward false "
        "--fsdp_activation_checkpointing true"
    )
    _, said = taken(f"accelerate launch {two} --num_processes 4 {SCRIPT}", num_devices=4)
    assert (said["zero"], said["activation_checkpointing"]) == (2, ["full"])
    assert "fsdp" not in said
    staged = "--use_deepspeed --zero_stage 2 --offload_optimizer_device cpu --num_processes 4"
    _, said = taken(f"accelerate launch {staged} {SCRIPT}", num_devices=4)
    assert (said["zero"], said["offload"]) == (2, "optimizer")


@pytest.mark.parametrize(
    ("words", "length"),
    [("--max_source_length 256 --max_target_length 96", 256), ("--max_target_length 96", 1024)],
)
def test_pairs_are_planned_as_long_as_the_longer_of_both(words, length):
    _, said = taken(
        f"run_translation.py --model_name_or_path t5-small --per_device_train_batch_size 4 {words}"
    )
    assert (said["task"], said["seq_len"]) == ("seq2seq", length)


def test_texts_that_are_labelled_are_as_long_as_they_are_cut():
    _, said = taken(
        "run_glue.py --model_name_or_path bert-base-uncased --per_device_train_batch_size 4 "
        "--do_train --max_seq_length 128"
    )
    assert said["seq_len"] == 128


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("accelerate launch -m trl.scripts.sft --bf16", ("trl", "sft", "--bf16")),
        ("python trl/trl/scripts/dpo.py --bf16", ("trl", "dpo", "--bf16")),
        ("python -m axolotl.cli.train a.yaml x=1", ("axolotl", "train", "a.yaml", "x=1")),
        ("python -m swift.cli.pt --bf16", ("swift", "pt", "--bf16")),
        ("python -m llamafactory.cli train a.yaml", ("llamafactory-cli", "train", "a.yaml")),
        (
            "python src/train_bash.py --stage sft --finetuning_type lora",
            ("llamafactory-cli", "train", "--stage", "sft", "--finetuning_type", "lora"),
        ),
    ],
)
def test_what_a_command_starts_may_be_started_by_its_module_or_file(line, command):
    read = read_command(line)
    assert (read.script, *read.arguments) == command
    assert has_settings(line)


def test_flags_alone_are_arguments_of_llama_factory_too():
    line = "llamafactory-cli train --stage sft --finetuning_type lora --bf16 --cutoff-len 2048"
    content = load_yaml(settings_file(line))
    assert content == {"stage": "sft", "finetuning_type": "lora", "bf16": True, "cutoff_len": 2048}
