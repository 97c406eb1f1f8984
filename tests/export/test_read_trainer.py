"""Arguments of the Trainer and of TRL read back into flags."""

import dataclasses
import json

import pytest
import yaml

from brimful.cli.main import main
from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.export.leaves import without
from brimful.export.read_source import model_of, read_source
from brimful.export.read_trainer import DEFAULTS, LEARNING_RATES, TRL_DEFAULTS
from round_trips import MODEL, plan_from, plan_of

GIVEN = Given("plan.yaml", "my/data", "out")
ONE, TWO = ("--gpus", "rtx-4090"), ("--gpus", "2xrtx-4090")
LENGTH = ("--seq-len", "512")
BATCHES = ("--global-batch", "8", "--micro-batch", "2")
TRAINER = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": "1e-4",
    "bf16": True,
    "gradient_checkpointing": True,
    "num_train_epochs": 3,
}
SFT = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "dataset_name": "trl-lib/Capybara",
    "dtype": "bfloat16",
    "max_length": 2048,
    "packing": True,
    "use_peft": True,
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_target_modules": "all-linear",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8,
}
QLORA = {**SFT, "load_in_4bit": True}
DPO = {**SFT, "loss_type": "sigmoid", "beta": 0.2, "packing": None}


def read(tmp_path, content, num_devices=2, name="x.yaml"):
    path = tmp_path / name
    text = json.dumps(content) if name.endswith("json") else yaml.safe_dump(content)
    path.write_text(text)
    found = read_source(path, num_devices=num_devices, num_layers=24)
    return {each.flag: each.value for each in found.taken}, found


@pytest.mark.parametrize("name", ["arguments.yaml", "arguments.json"])
def test_the_trainer_says_how_it_trains_what_it_is_given(tmp_path, name):
    taken, found = read(tmp_path, TRAINER, name=name)
    assert taken == {
        "precision": "bf16-mixed", "micro_batch": 4, "global_batch": 16, "optimizer": "adamw",
        "learning_rate": 1e-4, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999,
        "epsilon": 1e-8, "clip": 1.0, "schedule": "linear", "warmup_steps": 0, "seed": 42,
        "zero": 0, "activation_checkpointing": ["full"],
    }  # fmt: skip
    assert sorted(found.unread) == ["num_train_epochs=3", 'output_dir="out"']
    (stood_in,) = [note for note in found.notes if "defaults" in note]
    assert "adam_beta2=0.999" in stood_in
    assert "learning_rate" not in stood_in
    assert any("whole model" in note for note in found.notes)


def test_trl_may_say_do_train_as_scripts_do(tmp_path):
    """It was read as a script's then, of which neither adapters nor lengths are known."""
    expected, _ = read(tmp_path, SFT, num_devices=1)
    assert read(tmp_path, SFT | {"do_train": True}, num_devices=1)[0] == expected
    assert expected["method"] == "lora"


def test_trl_says_what_is_trained_too(tmp_path):
    taken, found = read(tmp_path, SFT, num_devices=1)
    assert taken == {
        "task": "causal-lm", "packing": "documents", "seq_len": 2048, "precision": "bf16-mixed",
        "method": "lora", "base": "bf16", "lora_rank": 32, "lora_alpha": 16.0,
        "lora_targets": "all-linear", "micro_batch": 2, "global_batch": 16, "optimizer": "adamw",
        "learning_rate": 2e-5, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999,
        "epsilon": 1e-8, "clip": 1.0, "schedule": "linear", "warmup_steps": 0, "seed": 42,
        "activation_checkpointing": ["full"],
    }  # fmt: skip
    assert found.unread == ('dataset_name="trl-lib/Capybara"',)


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (TRAINER, {"bf16": False}, {"precision": "fp32"}),
        (TRAINER, {"bf16": False, "tf32": True}, {"precision": "tf32"}),
        (TRAINER, {"bf16": False, "fp16": True}, {"precision": "fp16-mixed"}),
        (TRAINER, {"tf32": True}, {"precision": "bf16-mixed"}),
        (TRAINER, {"per_device_train_batch_size": None, "gradient_accumulation_steps": None},
         {"micro_batch": 8, "global_batch": 16}),
        (TRAINER, {"gradient_checkpointing": None}, {"activation_checkpointing": ["none"]}),
        (TRAINER, {"gradient_checkpointing": None, "activation_checkpointing": True},
         {"activation_checkpointing": ["full"]}),
        (TRAINER, {"optim": "paged_adamw_8bit", "max_steps": 40, "seed": 3},
         {"optimizer": "paged-adamw-8bit", "steps": 40, "seed": 3}),
        (TRAINER, {"optim": "sgd", "adam_beta1": 0.8}, {"optimizer": "sgd", "beta1": 0.0}),
        (TRAINER, {"lr_scheduler_type": "cosine", "warmup_steps": 9},
         {"schedule": "cosine", "warmup_steps": 9}),
        (TRAINER, {"warmup_ratio": 0.1}, {"warmup_steps": None}),
        (TRAINER, {"warmup_steps": 0.1}, {"warmup_steps": None}),
        (TRAINER, {"use_liger_kernel": True}, {"fused_kernels": "liger"}),
        (TRAINER, {"fsdp": "full_shard auto_wrap", "gradient_checkpointing": False},
         {"zero": 3, "activation_checkpointing": ["none"]}),
        (TRAINER, {"fsdp": ["shard_grad_op", "offload"]}, {"zero": 2, "offload": "optimizer"}),
        (TRAINER, {"fsdp": True, "fsdp_config": {"fsdp_offload_params": "True"}},
         {"zero": 3, "offload": "optimizer"}),
        (TRAINER, {"fsdp": True, "fsdp_config": {"offload_params": "FALSE"}},
         {"zero": 3, "offload": "none"}),
        (TRAINER, {"fsdp": True, "fsdp_config": {"fsdp_reshard_after_forward": False,
                   "activation_checkpointing": True}, "gradient_checkpointing": False},
         {"zero": 2, "activation_checkpointing": ["full"]}),
        (TRAINER, {"fsdp": True, "fsdp_config": {"version": 1,
                   "reshard_after_forward": "hybrid_shard"}}, {"zero": 3}),
        (TRAINER, {"fsdp": "", "fsdp_config": {"min_num_params": 0}}, {"zero": 0}),
        (TRAINER, {"accelerator_config": {"gradient_accumulation_kwargs":
                   {"sync_each_batch": False}}}, {"accumulate": "hold"}),
        (TRAINER, {"deepspeed": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}},
         {"zero": 3, "dp_replicate": 1, "precision": "bf16-master", "global_batch": 16}),
        (TRAINER, {"deepspeed": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}},
         {"zero": 2, "precision": "bf16-master"}),
        (TRAINER, {"deepspeed": {"zero_optimization": {"stage": 2}}}, {"precision": "bf16-master"}),
        (SFT, {"use_peft": False}, {"method": "full", "precision": "bf16", "lora_rank": None}),
        (SFT, {"use_peft": False, "fsdp": "full_shard auto_wrap"}, {"precision": "bf16-mixed"}),
        (SFT, {"use_peft": False, "dtype": None}, {"precision": "bf16-mixed"}),
        (SFT, {"use_peft": False, "dtype": "auto"}, {"precision": "bf16"}),
        (SFT, {"use_peft": False, "dtype": None, "bf16": False}, {"precision": "fp32"}),
        (SFT, {"use_peft": False, "dtype": None, "fp16": True}, {"precision": "fp16-mixed"}),
        (SFT, {"dtype": None}, {"base": "same", "precision": "bf16-mixed"}),
        (SFT, {"bf16": False}, {"precision": "bf16", "base": "same", "adapter_dtype": "fp32"}),
        (SFT, {"use_dora": True}, {"method": "dora"}),
        (SFT, {"lora_r": None, "lora_alpha": None, "lora_target_modules": None},
         {"lora_rank": 16, "lora_alpha": 32.0, "lora_targets": "q_proj,v_proj"}),
        (SFT, {"lora_target_modules": ["q_proj", "o_proj"], "lora_modules_to_save": ["lm_head"]},
         {"lora_targets": "q_proj,o_proj", "trained_modules": "lm_head"}),
        (QLORA, {}, {"method": "qlora", "base": "nf4", "upcast": None}),
        (QLORA, {"use_bnb_nested_quant": True}, {"base": "nf4-double"}),
        (QLORA, {"dtype": None}, {"base": "nf4", "upcast": "all"}),
        (SFT, {"load_in_8bit": True}, {"method": "qlora", "base": "llm-int8"}),
        (SFT, {"packing": None}, {"packing": "none"}),
        (SFT, {"packing_strategy": "wrapped"}, {"packing": "wrapped"}),
        (SFT, {"assistant_only_loss": True, "packing_strategy": "wrapped"},
         {"task": "chat", "packing": "documents"}),
        (SFT, {"completion_only_loss": True}, {"task": "chat"}),
        (SFT, {"loss_type": "chunked_nll"}, {"task": "causal-lm"}),
        (SFT, {"gradient_checkpointing": False}, {"activation_checkpointing": ["none"]}),
        (SFT, {"attn_implementation": "eager"}, {"attention": "eager"}),
        (DPO, {}, {"task": "dpo", "dpo_beta": 0.2, "packing": "none", "learning_rate": 1e-6,
                   "seq_len": 2048}),
        (DPO, {"loss_type": None, "beta": None, "precompute_ref_log_probs": True},
         {"task": "dpo", "reference": "precomputed", "dpo_beta": None}),
    ],
)  # fmt: skip
def test_switches_of_theirs_are_flags_of_ours(tmp_path, base, changes, expected):
    taken, _ = read(tmp_path, {**base, **changes})
    assert {flag: taken.get(flag) for flag in expected} == expected


@pytest.mark.parametrize("typed", [{}, {"seq_len": 9}, {"tp": 2}, {"dp_shard": 2}, {"zero": 0}])
def test_all_share_what_fsdp_shards_until_a_degree_is_typed(tmp_path, typed):
    taken, found = read(tmp_path, {**TRAINER, "fsdp": "full_shard auto_wrap"})
    assert (taken["dp_replicate"], taken["tp"], taken["pp"]) == (1, 1, 1)
    assert "dp_shard" not in taken  # more GPUs share it too
    kept, _ = without(found, typed)
    is_kept = not {"dp_shard", "zero"} & typed.keys()
    assert ("dp_replicate" in {each.flag for each in kept}) is is_kept


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (SFT, {"dtype": "auto"}, "planned as bfloat16"),
        (SFT, {"lora_target_modules": None}, "PEFT's choice"),
        (SFT, {"gradient_checkpointing": None}, "gradient_checkpointing=True"),
        (QLORA, {}, "are bfloat16 in TRL"),
        (SFT, {"attn_implementation": "flash_attention_2"}, "as --attention says"),
        (TRAINER, {"bf16": False}, "--precision bf16"),
        (TRAINER, {"lr_scheduler_type": "cosine_with_min_lr"}, "planned to end at 0.1"),
    ],
)
def test_what_is_planned_otherwise_is_said(tmp_path, base, changes, words):
    _, found = read(tmp_path, {**base, **changes})
    assert any(words in note for note in found.notes)


def test_no_limit_of_rows_is_left_to_the_flags(tmp_path):
    taken, found = read(tmp_path, {**SFT, "max_length": None})
    assert "seq_len" not in taken
    assert any("--seq-len" in note for note in found.notes)


@pytest.mark.parametrize(
    ("base", "changes", "error", "words"),
    [
        (TRAINER, {"optim": "other_adamw"}, UnsupportedError, "optim=other_adamw"),
        (TRAINER, {"per_device_train_batch_size": 0}, InputError, "batch_size is 0"),
        (TRAINER, {"seed": "seven"}, FileFormatError, "wants a whole number"),
        (TRAINER, {"adam_beta1": 10**400}, FileFormatError, "wants a number"),
        (TRAINER, {"fsdp": "half_shard"}, InputError, "fsdp is half_shard"),
        (TRAINER, {"fsdp": True, "fsdp_config": "nowhere.json"}, InputError, "nowhere.json"),
        (
            TRAINER,
            {"fsdp": True, "fsdp_config": {"offload_params": "sometimes"}},
            FileFormatError,
            'fsdp_config.offload_params is "sometimes" and',
        ),
        (TRAINER, {"deepspeed": "nowhere.json"}, InputError, "nowhere.json"),
        (SFT, {"load_in_4bit": True, "use_peft": False}, InputError, "goes with adapters"),
        (SFT, {"load_in_4bit": True, "load_in_8bit": True}, InputError, "4 bits or in 8"),
        (QLORA, {"bnb_4bit_quant_type": "fp4"}, UnsupportedError, "bnb_4bit_quant_type=fp4"),
        (
            QLORA,
            {"use_dora": True, "load_in_4bit": False, "load_in_8bit": True},
            UnsupportedError,
            "DoRA on a base of 8 bits",
        ),
        (SFT, {"lora_target_parameters": ["experts"]}, UnsupportedError, "target_parameters"),
        (SFT, {"dtype": "float8"}, InputError, "dtype is float8"),
        (SFT, {"dtype": ["bfloat16"]}, InputError, "dtype is"),
        (SFT, {"attn_implementation": ["sdpa"]}, FileFormatError, "wants text"),
        (SFT, {"data_seed": [1], "seed": 1, "max_length": "all"}, FileFormatError, "wants a whole"),
        (SFT, {"loss_type": "dft"}, UnsupportedError, "loss_type=dft"),
        (SFT, {"num_ppo_epochs": 4}, UnsupportedError, "of PPO"),
        (DPO, {"loss_type": ["sigmoid", "sft"]}, UnsupportedError, "loss_type=sft"),
        (DPO, {"loss_type": "ipo"}, UnsupportedError, "loss_type=ipo"),
        (DPO, {"f_divergence_type": "forward_kl"}, UnsupportedError, "forward_kl"),
        (DPO, {"sync_ref_model": True}, UnsupportedError, "sync_ref_model"),
    ],
)
def test_what_is_not_run_is_refused_in_a_sentence(tmp_path, base, changes, error, words):
    with pytest.raises(error, match=words):
        read(tmp_path, {**base, **changes})


def test_settings_in_files_beside_it_are_read_too(tmp_path):
    (tmp_path / "zero3.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3}, "fp16": {"enabled": True}})
    )
    (tmp_path / "fsdp.json").write_text(json.dumps({"reshard_after_forward": False}))
    sharded, _ = read(tmp_path, {**SFT, "deepspeed": "zero3.json"})
    assert (sharded["zero"], sharded["precision"]) == (3, "fp16-master")
    sharded, _ = read(tmp_path, {**SFT, "fsdp": True, "fsdp_config": "fsdp.json"})
    assert sharded["zero"] == 2


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_the_model_is_what_trl_names(tmp_path, name):
    read(tmp_path, SFT, name=name)
    assert model_of(tmp_path / name) == "Qwen/Qwen2.5-0.5B"
    read(tmp_path, TRAINER, name=name)
    assert model_of(tmp_path / name) == ""


@pytest.mark.torch
def test_what_transformers_writes_itself_is_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(output_dir="out", use_cpu=True, max_steps=7)
    path = tmp_path / "arguments.json"
    path.write_text(arguments.to_json_string())
    found = read_source(path, num_devices=1, num_layers=24)
    taken = {each.flag: each.value for each in found.taken}
    assert (taken["micro_batch"], taken["steps"], taken["learning_rate"]) == (8, 7, 5e-5)
    assert not any("defaults: " in note and "optim" in note for note in found.notes)


def defaults_of(kind):
    return {field.name: field.default for field in dataclasses.fields(kind)}


@pytest.mark.torch
def test_what_stands_in_is_what_transformers_has():
    transformers = pytest.importorskip("transformers")
    theirs = defaults_of(transformers.TrainingArguments)
    assert {key: theirs[key] for key in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(("kind", "config"), [("sft", "SFTConfig"), ("dpo", "DPOConfig")])
def test_what_stands_in_is_what_trl_has(kind, config):
    trl = pytest.importorskip("trl")
    theirs = {**defaults_of(trl.ModelConfig), **defaults_of(getattr(trl, config))}
    ours = {**DEFAULTS, **TRL_DEFAULTS, "learning_rate": LEARNING_RATES[kind]}
    assert {key: theirs[key] for key in ours} == ours


ROUND_TRIPS = [
    ("--ac", "full"),
    ("--precision", "fp32", "--schedule", "constant", "--warmup-steps", "3"),
    ("--precision", "tf32", "--optimizer", "adafactor", "--seed", "7"),
    ("--precision", "fp16-mixed", "--fused-kernels", "liger"),
    (*TWO, "--zero", "0"),
    (*TWO, "--zero", "1", "--precision", "fp32"),
    (*TWO, "--zero", "2"),
    (*TWO, "--zero", "3", "--ac", "full", "--accumulate", "hold"),
]
OF_TRL = [
    *ROUND_TRIPS,
    ("--precision", "bf16", "--packing", "none"),
    ("--task", "chat", "--packing", "documents", "--schedule", "linear"),
    ("--attention", "flex", "--packing", "documents"),
    ("--method", "lora", "--lora-targets", "q_proj,v_proj", "--trained-modules", "lm_head"),
    ("--method", "lora", "--base", "same"),
    ("--method", "lora", "--precision", "bf16", "--adapter-dtype", "fp32"),
    ("--method", "dora"),
    ("--method", "qlora", "--base", "nf4"),
    ("--method", "qlora", "--base", "nf4-double", "--optimizer", "adamw-8bit"),
    ("--method", "qlora", "--base", "llm-int8"),
]


@pytest.mark.parametrize(
    ("target", "more"),
    [*(("hf-trainer", more) for more in ROUND_TRIPS), *(("trl", more) for more in OF_TRL)],
)
def test_what_they_were_given_is_read_back(tmp_path, target, more):
    where = TWO if "--gpus" in more else ONE
    plan, path = plan_of(*LENGTH, *BATCHES, *where, *more), tmp_path / "arguments.yaml"
    path.write_text(TARGETS[target](plan, GIVEN).text)
    flags, model = ((*where, *LENGTH), MODEL) if target == "hf-trainer" else (where, None)
    read = plan_from(path, *flags, num_devices=plan.cluster.num_devices, model=model)
    assert read.job == plan.job
    assert read.strategy == plan.strategy


def test_the_command_line_reads_them(tmp_path, capsys):
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump({**SFT, "max_length": 512}))
    short = ("--no-proof", "--loss-chunks", "1")
    assert main(["plan", "--from", str(path), *ONE, *short]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "LoRA of qwen2.5-0.5b at 512 tokens" in said
    assert "TRL's defaults: " in said
    path.write_text(yaml.safe_dump(TRAINER))
    given = ["plan", "--from", str(path), *ONE, *short]
    assert main(given) == 2
    assert "names none" in capsys.readouterr().err
    assert main([*given, MODEL, *LENGTH, "--precision", "bf16"]) == 0
    assert "--precision stands in for bf16=bf16-mixed" in " ".join(capsys.readouterr().out.split())
    path.write_text(yaml.safe_dump({**DPO, "loss_type": "ipo"}))
    assert main(given) == 2
    assert capsys.readouterr().err.count("\n") == 1
