"""Command lines of other programs: each flag is taken for ours, left out, or refused."""

from itertools import pairwise

import pytest

from brimful.cli.other_flags import taken_for_ours
from brimful.errors import InputError

PLAN = {
    "--seq-len", "--micro-batch", "--global-batch", "--gpus", "--method", "--ac", "--precision",
    "--zero", "--tp", "--pp", "--lora-rank", "--task", "--optimizer", "--base",
}  # fmt: skip
TRL = (
    "--model_name_or_path", "qwen3-8b", "--gpus", "2x4090", "--use_peft", "--lora_r", "32",
    "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "8", "--max_length",
    "2048", "--bf16", "--gradient_checkpointing", "False", "--output_dir", "out",
)  # fmt: skip


def test_a_command_line_of_trl_is_ours():
    taken = taken_for_ours(TRL, PLAN)
    assert taken.arguments == [
        "qwen3-8b", "--precision", "bf16-mixed", "--method", "lora", "--gpus", "2x4090",
        "--lora-rank", "32", "--micro-batch", "2", "--seq-len", "2048", "--global-batch", "32",
    ]  # fmt: skip
    assert taken.notes == [
        "--lora-rank is taken for --lora_r",
        "--micro-batch is taken for --per_device_train_batch_size",
        "--seq-len is taken for --max_length",
        "--gradient_checkpointing False is left out",
        "--output_dir out is left out",
        "--method lora is taken for --use_peft",
        "--precision bf16-mixed is taken for --bf16",
        "--global-batch 32 is taken for --gradient_accumulation_steps 8",
    ]


def test_what_is_accumulated_counts_replicas_not_devices():
    typed = "--gpus 2x8xh100 --tensor-model-parallel-size 4 --mbs 1 --gradient-accumulation-steps=3"
    assert taken_for_ours(typed.split(), PLAN).arguments[-2:] == ["--global-batch", "12"]


def test_what_is_accumulated_of_no_size_is_refused():
    with pytest.raises(InputError, match="needs the sequences of a micro-batch beside it"):
        taken_for_ours(["--gradient_accumulation_steps", "8"], PLAN)


@pytest.mark.parametrize(
    ("typed", "method"),
    [
        (["--use_peft", "--load_in_4bit", "true"], "qlora"),
        (["--use_peft", "--use_dora"], "dora"),
        (["--use_peft", "--load_in_4bit", "False"], "lora"),
        (["--method", "full", "--use_peft"], "full"),
    ],
)
def test_of_two_that_say_a_method_one_holds(typed, method):
    ours = taken_for_ours(typed, PLAN).arguments
    methods = [value for flag, value in pairwise(ours) if flag == "--method"]
    assert methods[-1] == method


def test_our_flags_with_underscores_are_ours():
    assert taken_for_ours(["--seq_len", "512"], PLAN).arguments == ["--seq-len", "512"]


def test_unknown_flags_stay():
    assert taken_for_ours(["x", "--frobnicate", "3"], PLAN).arguments == ["x", "--frobnicate", "3"]


def test_a_verb_that_asks_for_no_job_keeps_what_was_typed():
    typed = ["--gpu", "t4", "--", "x.py", "--model", "a", "--output_dir", "b"]
    assert taken_for_ours(typed, {"--gpu"}).arguments == typed


def test_values_are_known_in_any_case(brimful):
    asked = ("estimate", "smollm2-135m", "--gpus", "1*h100-80gb", "--method")
    said = brimful(*asked, "QLoRA")
    assert (said.code, said.out) == (0, brimful(*asked, "qlora").out)
    assert "--method qlora is taken for 'QLoRA'" in said.err
