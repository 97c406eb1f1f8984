"""Command lines of other programs: each flag is taken for ours, left out, or refused."""

import json
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
        (["--use_peft", "--load_in_8bit"], "qlora"),
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


@pytest.mark.parametrize("typed", ["--r", "--lora_r", "--lora-r", "--lora_rank", "--rank"])
def test_the_rank_of_adapters_by_any_name(typed):
    ours = taken_for_ours(["qwen3-8b", typed, "32"], PLAN).arguments
    assert ours == ["qwen3-8b", "--lora-rank", "32"]


def test_flags_of_unsloth_and_peft_are_ours_or_named(brimful):
    typed = "--load_in_4bit --max_seq_length 512 --r 8 --lora_alpha 16 --random_state 3407"
    more = "--use_gradient_checkpointing unsloth --bnb_4bit_use_double_quant true"
    ask = ("estimate", "unsloth/Qwen3-4B-bnb-4bit", "--gpus", "rtx-4090", *typed.split())
    said = brimful(*ask, *more.split(), "--json")
    assert "as --offload activations does" in " ".join(said.err.split())
    job = json.loads(said.out)["job"]
    assert (job["adapter"]["rank"], job["adapter"]["alpha"], job["seed"]) == (8, 16.0, 3407)
    assert (job["method"], job["adapter"]["base"]) == ("qlora", "nf4-double")
    refused = brimful("estimate", "qwen3-4b", "--torch_dtype", "1")
    assert refused.code == 2
    assert "--torch_dtype" in refused.err


def test_of_two_switches_the_one_that_lost_is_said():
    taken = taken_for_ours(["--bf16", "--fp8", "--gradient_checkpointing"], PLAN)
    assert "fp8" in taken.arguments
    assert "bf16-mixed" not in taken.arguments
    assert "--bf16 is left out beside --fp8" in taken.notes
    assert not any("left out" in note for note in taken_for_ours(["--bf16"], PLAN).notes)


@pytest.mark.parametrize(
    ("typed", "recipe"),
    [
        (["--dtype", "bfloat16"], "bf16"),
        (["--torch_dtype=torch.bfloat16", "--bf16"], "bf16"),
        (["--dtype", "float32", "--bf16"], "bf16-mixed"),
        (["--dtype", "float32"], "fp32"),
        (["--dtype", "auto", "--bf16"], "bf16-mixed"),
        (["--dtype", "bfloat16", "--precision", "fp8"], "fp8"),
    ],
)
def test_weights_of_16_bits_train_so_whatever_autocast_does(typed, recipe):
    ours = taken_for_ours(typed, PLAN).arguments
    recipes = [value for flag, value in pairwise(ours) if flag == "--precision"]
    assert recipes[-1] == recipe


def test_what_has_no_place_here_stops_no_answer():
    typed = ["qwen3-4b", "--num_train_epochs", "3", "--lora_dropout=0.05", "--seq-len", "512"]
    taken = taken_for_ours(typed, PLAN)
    assert taken.arguments == ["qwen3-4b", "--seq-len", "512"]
    assert [note.partition(":")[0] for note in taken.notes] == [
        "--num_train_epochs 3 is left out", "--lora_dropout=0.05 is left out",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "gpus", "ours"),
    [
        ("HYBRID_SHARD", "2x8xh100", ["--zero", "3", "--dp-shard", "8"]),
        ("hybrid_shard_zero2", "4xh100", ["--zero", "2"]),
        ("2", "8xh100", ["--zero", "2"]),
        ("NO_SHARD", "8xh100", ["--zero", "0"]),
    ],
)
def test_strategies_of_fsdp1_say_what_is_sharded_and_over_how_many(typed, gpus, ours):
    said = ["--sharding-strategy", typed, "--gpus", gpus]
    assert taken_for_ours(said, PLAN | {"--dp-shard"}).arguments == [*ours, "--gpus", gpus]


def test_a_strategy_that_fsdp1_has_not_is_refused_with_those_it_has():
    said = ["--sharding-strategy", "SOME_SHARD"]
    with pytest.raises(InputError, match="SOME_SHARD: give one of FULL_SHARD, SHARD_GRAD_OP"):
        taken_for_ours(said, PLAN | {"--dp-shard"})


def test_money_and_time_go_by_other_names_where_a_verb_has_them():
    shop = PLAN | {"--money-budget", "--prices", "--deadline"}
    typed = ["--budget", "500eur", "--price-list", "a.yaml", "--max-time", "3d"]
    ours = ["--money-budget", "500eur", "--prices", "a.yaml", "--deadline", "3d"]
    assert taken_for_ours(typed, shop).arguments == ours
    plan = shop | {"--budget"}
    assert taken_for_ours(["--budget", "60"], plan).arguments == ["--budget", "60"]
    assert taken_for_ours(["--budget=500 eur"], plan).arguments == ["--money-budget", "500 eur"]


def test_attention_and_markets_are_known_by_others_words(brimful):
    asked = ("estimate", "qwen3-4b", "--gpus", "h100-80gb")
    said = brimful(*asked, "--attn_implementation", "flash_attention_2", "--json")
    assert json.loads(said.out)["strategy"]["attention"] == "sdpa"
    said = brimful(*asked, "--market", "spot")
    assert "--market community is taken for 'spot': no prices of spot machines ship" in said.err


def test_tokens_that_are_read_and_written_are_one_text():
    taken = taken_for_ours(["--num-generations", "8", "--max-completion-length", "2048"], PLAN)
    assert taken.arguments == ["--seq-len", "2560"]
    assert "--seq-len 2560 is taken for --max-prompt-length 512" in taken.notes[-1]
    said = ["--seq-len", "4096", "--max_completion_length", "1024"]
    assert taken_for_ours(said, PLAN).arguments == said[:2]


def test_lightnings_batches_are_summed_up_too():
    typed = "--micro-batch 4 --accumulate-grad-batches 8"
    assert taken_for_ours(typed.split(), PLAN).arguments[-2:] == ["--global-batch", "32"]


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("--method grpo", "--task grpo"),
        ("--finetuning_type dpo", "--task dpo"),
        ("--method pretrain", "--method pretrain"),
        ("--packing --seq-len 512", "--packing wrapped --seq-len 512"),
        ("--packing False", "--packing none"),
        ("--packing documents", "--packing documents"),
        ("--fp8", "--precision fp8"),
        ("--num_train_epochs 3 --max_train_samples 9k", "--epochs 3 --rows 9k"),
    ],
)
def test_what_means_the_same_by_another_flag_is_taken(typed, ours):
    known = PLAN | {"--packing", "--rows", "--epochs"}
    assert taken_for_ours(typed.split(), known).arguments == ours.split()
