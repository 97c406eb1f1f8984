"""Plans as LLaMA-Factory takes them, and as its importer reads them back."""

import msgspec
import pytest
import yaml

from brimful.cli.main import main
from brimful.errors import UnsupportedError
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.export.read_source import read_source
from brimful.values.plan import read_plan
from round_trips import MODEL, plan_from, plan_of

TO = "llama-factory"
ONE, TWO = ("--gpus", "rtx-4090"), ("--gpus", "2xrtx-4090")
BATCHES = ("--seq-len", "512", "--global-batch", "8", "--micro-batch", "2")
GIVEN = Given("plan.yaml", "my/data", "out")


def planned(*more):
    return plan_of(*BATCHES, *(() if "--gpus" in more else ONE), *more)


def written(plan):
    exported = TARGETS[TO](plan, GIVEN)
    return yaml.safe_load(exported.text), {each.field: each for each in exported.lost}


def of_strategy(plan, **changes):
    return msgspec.structs.replace(plan, strategy=msgspec.structs.replace(plan.strategy, **changes))


@pytest.mark.parametrize("base", ["nf4", "nf4-double", "llm-int8"])
def test_a_quantised_base_is_loaded_as_the_plan_holds_it(base):
    content, lost = written(planned("--method", "qlora", "--base", base, "--ac", "none"))
    assert content["quantization_bit"] == (8 if base == "llm-int8" else 4)
    assert content.get("double_quantization") == {"nf4": False, "nf4-double": True}.get(base)
    assert (content["finetuning_type"], content["lora_target"]) == ("lora", "all")
    assert (content["lora_rank"], content["lora_alpha"]) == (16, 32)
    assert content["model_name_or_path"] == "Qwen/Qwen2.5-0.5B"
    assert content["per_device_train_batch_size"] == 2
    assert content["gradient_accumulation_steps"] == 4
    assert content["disable_gradient_checkpointing"]
    assert content["do_train"]
    assert "adapter" not in lost


@pytest.mark.parametrize("more", [(), ("--task", "chat", "--packing", "none")])
def test_how_it_is_started_and_what_its_stage_learns_are_said(more):
    text = TARGETS[TO](planned("--method", "lora", *more), GIVEN).text
    assert "# started by: llamafactory-cli train THIS_FILE" in text
    assert ("stage pt learns all of a plain text" in text) == (not more)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--packing", "wrapped"), {"stage": "pt", "packing": None}),
        (("--packing", "none"), {"stage": "pt", "packing": False}),
        (("--packing", "documents"),
         {"stage": "sft", "neat_packing": True, "train_on_prompt": True, "template": "empty"}),
        (("--task", "chat", "--packing", "none"), {"stage": "sft", "packing": False}),
        (("--task", "chat", "--packing", "documents"),
         {"stage": "sft", "neat_packing": True, "train_on_prompt": None}),
        (("--task", "dpo", "--method", "lora", "--dpo-beta", "0.3", "--label-smoothing", "0.1"),
         {"stage": "dpo", "pref_loss": "sigmoid", "pref_beta": 0.3, "dpo_label_smoothing": 0.1}),
        (("--method", "dora"), {"use_dora": True}),
        (("--precision", "bf16"), {"pure_bf16": True, "bf16": False, "finetuning_type": "full"}),
        (("--precision", "tf32"), {"tf32": True, "bf16": False, "pure_bf16": None}),
        (("--fused-kernels", "liger"), {"enable_liger_kernel": True, "use_liger_kernel": None}),
        (("--ac", "full"), {"disable_gradient_checkpointing": False, "use_reentrant_gc": False,
                            "gradient_checkpointing": None}),
        ((*TWO, "--zero", "2"), {"fsdp": True}),
    ],
)  # fmt: skip
def test_what_is_learnt_and_held_is_said_in_its_names(more, expected):
    content, _ = written(planned(*more))
    assert {key: content.get(key) for key in expected} == expected


def test_its_own_checkpoints_stand_in_for_fsdps():
    content, lost = written(planned(*TWO, "--zero", "3", "--ac", "full"))
    assert content["fsdp_config"]["reshard_after_forward"]
    assert not content["fsdp_config"]["activation_checkpointing"]
    assert not content["disable_gradient_checkpointing"]
    assert "loads the model whole" in lost["weights"].why
    assert "NPROC_PER_NODE" in lost["dp_shard"].why


@pytest.mark.parametrize(
    ("more", "field", "changes", "words"),
    [
        (("--method", "lora", "--base", "same"), "adapter", "mathematics", "of its checkpoint"),
        (("--method", "lora", "--precision", "bf16"), "adapter", "mathematics", "PEFT holds"),
        (("--method", "lora", "--precision", "fp32"), "precision", "mathematics", "computes in"),
        (("--method", "lora", "--ac", "full"), "adapter", "memory", "takes a gradient"),
        (("--method", "qlora", "--upcast", "all"), "adapter", "memory", "norms alone"),
        (("--ac", "full:3"), "activation_checkpointing", "memory", "every block"),
        (("--attention", "flash"), "attention", "speed", "picks among"),
        (("--packing", "documents"), "task", "mathematics", "prompts and answers"),
        (("--task", "dpo", "--loss-chunks", "4"), "reference", "memory", "second model"),
        (("--task", "dpo", "--loss-chunks", "4"), "loss_chunks", "memory", "whole"),
        (TWO, "allocator", "memory", "OPTIM_TORCH=0"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_told_is_listed(more, field, changes, words):
    exported = TARGETS[TO](planned(*more), GIVEN)
    found = [each for each in exported.lost if each.field == field and words in each.why]
    assert [each.changes for each in found] == [changes]


def test_an_allocator_that_its_launcher_sets_is_said():
    plan = of_strategy(planned(*TWO), allocator="expandable_segments:True")
    assert "allocator" not in written(plan)[1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--method", "lora", "--lora-alpha", "1.5"), "alpha=1.5"),
        (("--precision", "bf16-master"), "precision=bf16-master"),
        (("--method", "qlora", "--base", "int8"), "base=int8"),
        ((*TWO, "--zero", "1", "--precision", "bf16"), "precision=bf16 with DeepSpeed"),
        ((*TWO, "--tp", "2", "--zero", "0"), "tp=2"),
    ],
)
def test_what_would_train_something_else_is_refused(more, words):
    with pytest.raises(UnsupportedError, match=f"{words}.* cannot be said to {TO}"):
        written(planned(*more))


def test_bf16_beside_deepspeed_is_refused_by_the_trainer_too():
    plan = planned(*TWO, "--zero", "1", "--precision", "bf16")
    with pytest.raises(UnsupportedError, match="precision=bf16 with DeepSpeed cannot be said"):
        TARGETS["hf-trainer"](plan, GIVEN)


ROUND_TRIPS = [
    ("--ac", "full", "--packing", "none"),
    ("--ac", "none"),
    ("--precision", "bf16", "--packing", "documents"),
    ("--precision", "fp32", "--schedule", "constant", "--warmup-steps", "3"),
    ("--precision", "tf32", "--attention", "eager", "--seed", "7"),
    ("--precision", "fp16-mixed", "--fused-kernels", "liger"),
    ("--task", "chat", "--packing", "none", "--schedule", "linear"),
    ("--task", "chat", "--packing", "documents", "--method", "lora", "--ac", "none"),
    ("--method", "lora", "--ac", "full", "--lora-targets",
     "q_proj,v_proj", "--trained-modules", "lm_head"),
    ("--method", "lora", "--precision", "bf16", "--adapter-dtype", "fp32", "--ac", "none"),
    ("--method", "dora", "--ac", "none"),
    ("--method", "qlora", "--base", "nf4", "--upcast", "norms", "--ac", "none"),
    ("--method", "qlora", "--base", "nf4-double", "--ac", "none", "--optimizer", "adamw-8bit"),
    ("--method", "qlora", "--base", "llm-int8", "--ac", "none"),
    ("--task", "dpo", "--method", "lora", "--dpo-beta", "0.3", "--ac", "none"),
    ("--task", "dpo", "--ac", "full", "--label-smoothing", "0.1"),
    (*TWO, "--zero", "0"),
    (*TWO, "--zero", "1", "--precision", "fp32"),
    (*TWO, "--zero", "2", "--ac", "none", "--accumulate", "hold", "--method", "lora"),
    (*TWO, "--zero", "3", "--ac", "full"),
]  # fmt: skip


@pytest.mark.parametrize("more", ROUND_TRIPS, ids=" ".join)
def test_what_it_was_given_is_read_back(tmp_path, more):
    """From the YAML alone, which names the model too."""
    plan, path = planned(*more), tmp_path / "factory.yaml"
    path.write_text(TARGETS[TO](plan, GIVEN).text)
    num_devices = plan.cluster.num_devices
    read = plan_from(path, *(TWO if num_devices > 1 else ONE), num_devices=num_devices)
    assert read.job == plan.job
    assert read.strategy == plan.strategy


def test_the_command_line_writes_and_reads_it(tmp_path):
    plan, yaml_file, again = (tmp_path / name for name in ("plan.yaml", "x.yaml", "again.yaml"))
    asked = ("plan", MODEL, *ONE, *BATCHES, "--ac", "none", "--no-proof", "-o", str(plan))
    assert main(asked) == 0
    assert main(["export", str(plan), "--to", TO, "-o", str(yaml_file)]) == 0
    assert main(["plan", "--from", str(yaml_file), *ONE, "--no-proof", "-o", str(again)]) == 0
    assert read_plan(again).job == read_plan(plan).job
    assert read_plan(again).strategy == read_plan(plan).strategy


@pytest.mark.parametrize(
    ("precision", "zero", "offload"),
    [("bf16-master", 3, "parameters"), ("bf16-master", 2, "optimizer"), ("fp16-master", 1, "none")],
)
def test_deepspeeds_settings_inside_it_are_read_too(tmp_path, precision, zero, offload):
    plan = planned(*TWO, "--zero", "2", "--precision", precision)
    plan = of_strategy(plan, engine="deepspeed", zero=zero, offload=offload)
    path = tmp_path / "factory.yaml"
    path.write_text(TARGETS[TO](plan, GIVEN).text)
    found = read_source(path, num_devices=2, num_layers=24)
    taken = {each.flag: each.value for each in found.taken}
    assert (taken["precision"], taken["zero"], taken["dp_replicate"]) == (precision, zero, 1)
    assert taken.get("offload", "none") == offload
    assert taken["global_batch"] == 8


def test_the_most_rows_are_the_length_of_the_run(tmp_path):
    path = tmp_path / "lf.yaml"
    content = {
        "model_name_or_path": "qwen3-8b", "stage": "dpo", "finetuning_type": "lora",
        "dataset": "one,other", "max_samples": 1000, "num_train_epochs": 2.0,
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8,
    }  # fmt: skip

    def steps_of(**changes):
        path.write_text(yaml.safe_dump({**content, **changes}))
        found = read_source(path, num_devices=1, num_layers=36)
        return {each.flag: each.value for each in found.taken}.get("steps"), found

    steps, found = steps_of()
    assert steps == 2 * 1000 * 2 // 8
    assert any("500 steps at most" in note for note in found.notes)
    assert steps_of(max_steps=7)[0] == 7
    assert steps_of(stage="sft", packing=True)[0] is None
    assert steps_of(max_samples=None)[0] is None
