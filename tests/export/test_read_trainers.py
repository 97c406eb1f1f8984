"""YAMLs of Axolotl and of LLaMA-Factory read back into flags."""

import json
import re

import pytest
import yaml

from brimful.cli.elsewhere import TASKS
from brimful.cli.main import main
from brimful.cli.other_optimizers import OTHER_OPTIMIZERS
from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.read_source import model_of, read_source

AXOLOTL = {
    "base_model": "NousResearch/Llama-3.2-1B",
    "adapter": "qlora",
    "load_in_4bit": True,
    "lora_r": 32,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "sequence_len": 2048,
    "sample_packing": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": "adamw_bnb_8bit",
    "learning_rate": "2e-4",
    "bf16": "auto",
    "gradient_checkpointing": True,
    "datasets": [{"path": "x", "type": "chat_template"}],
}
FACTORY = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B",
    "stage": "sft",
    "finetuning_type": "lora",
    "lora_rank": 8,
    "lora_target": "all",
    "cutoff_len": 2048,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "bf16": True,
    "template": "llama3",
}


def read(tmp_path, content, num_devices=2):
    path = tmp_path / "x.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    found = read_source(path, num_devices=num_devices, num_layers=16)
    return {each.flag: each.value for each in found.taken}, found


def test_axolotl_says_what_is_trained_and_how(tmp_path):
    taken, found = read(tmp_path, AXOLOTL)
    assert taken == {
        "task": "chat", "method": "qlora", "base": "nf4-double", "lora_rank": 32,
        "lora_alpha": 16.0, "lora_targets": "all-linear", "precision": "bf16-mixed",
        "seq_len": 2048, "packing": "documents", "micro_batch": 2, "global_batch": 16,
        "optimizer": "adamw-8bit", "learning_rate": 2e-4, "activation_checkpointing": ["full"],
    }  # fmt: skip
    assert (found.unread, found.left) == ((), ())
    alone, _ = read(tmp_path, AXOLOTL, num_devices=1)
    assert "upcast" not in alone  # norms, embedding and output layer are back in 16 bits


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(
    "lines",
    [
        {"fsdp": None, "fsdp_config": None}, {"fsdp": []}, {"fsdp": {}, "fsdp_config": {}},
        {"fsdp": False}, {"fsdp_config": {"offload_params": None}}, {"fsdp_version": 2},
    ],
)  # fmt: skip
def test_an_empty_fsdp_of_axolotl_shards_nothing(tmp_path, lines, num_devices):
    """As its examples ship it; with it parameters were taken for fp32."""
    plain = {**AXOLOTL, "adapter": None, "load_in_4bit": False}
    without, _ = read(tmp_path, plain, num_devices)
    taken, _ = read(tmp_path, {**plain, **lines}, num_devices)
    assert taken == without
    assert taken["precision"] == "bf16"


def test_axolotl_holds_stacked_experts_in_fp32_unless_they_are_packed(tmp_path):
    mixture = {**AXOLOTL, "base_model": "Qwen/Qwen3-30B-A3B"}
    taken, found = read(tmp_path, mixture, num_devices=1)
    assert taken["upcast"] == "all"
    assert any("experts in fp32" in note for note in found.notes)
    packed, found = read(tmp_path, {**mixture, "quantize_moe_experts": True}, num_devices=1)
    assert "upcast" not in packed
    (words,) = found.stand_ins
    assert re.search(r"planned in 16 bits: packed they take \d+\.\d\d GiB less", words)


def test_llama_factory_says_what_is_trained_and_how(tmp_path):
    _, found = read(tmp_path, {**FACTORY, "use_unsloth_gc": True})
    assert any("recomputed layers on the host" in each for each in found.stand_ins)
    taken, found = read(tmp_path, FACTORY)
    assert taken == {
        "task": "chat", "method": "lora", "base": "bf16", "lora_rank": 8,
        "lora_alpha": 16.0, "lora_targets": "all-linear", "precision": "bf16-mixed",
        "seq_len": 2048, "packing": "none", "micro_batch": 1, "global_batch": 16,
        "activation_checkpointing": ["full"], "zero": 0,
    }  # fmt: skip
    assert found.unread == ('template="llama3"',)
    assert any("hold a whole model" in note for note in found.notes)
    assert any("--input-requires-grad" in note for note in found.notes)


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (AXOLOTL, {"adapter": None, "load_in_4bit": False},
         {"method": "full", "precision": "bf16"}),
        (AXOLOTL, {"adapter": "lora", "load_in_4bit": False}, {"method": "lora", "base": "bf16"}),
        (AXOLOTL, {"adapter": "lora", "load_in_4bit": False, "load_in_8bit": True},
         {"method": "qlora", "base": "llm-int8"}),
        (AXOLOTL, {"adapter": "lora", "load_in_4bit": False, "peft_use_dora": True},
         {"method": "dora"}),
        (AXOLOTL, {"lora_target_linear": False, "lora_target_modules": ["q_proj", "v_proj"]},
         {"lora_targets": "q_proj,v_proj"}),
        (AXOLOTL, {"datasets": [{"type": "completion"}]}, {"task": "causal-lm"}),
        (AXOLOTL, {"rl": "dpo"}, {"task": "dpo"}),
        (AXOLOTL, {"liger_fused_linear_cross_entropy": True}, {"fused_kernels": "liger"}),
        (AXOLOTL, {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": False}},
         {"zero": 2}),
        (AXOLOTL, {"fsdp_config": {"reshard_after_forward": True}}, {"zero": 3, "fsdp": 1}),
        (FACTORY, {"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"version": 1}},
         {"zero": 2, "fsdp": 1}),
        (AXOLOTL, {"fsdp_version": 2, "fsdp_config": {"offload_params": True}},
         {"zero": 3, "offload": "optimizer"}),
        (AXOLOTL, {"adapter": None, "load_in_4bit": False, "fsdp_config": {"version": 2}},
         {"method": "full", "precision": "bf16-mixed"}),
        (AXOLOTL, {"adapter": None, "load_in_4bit": False, "fsdp": ["full_shard", "auto_wrap"]},
         {"method": "full", "precision": "bf16-mixed"}),
        (AXOLOTL, {"dp_shard_size": 2, "tensor_parallel_size": 2}, {"dp_shard": 2, "tp": 2}),
        (FACTORY, {"finetuning_type": "full"}, {"method": "full", "precision": "bf16-mixed"}),
        (FACTORY, {"finetuning_type": "full", "bf16": False, "pure_bf16": True},
         {"precision": "bf16"}),
        (FACTORY, {"quantization_bit": 4}, {"method": "qlora", "base": "nf4-double"}),
        (FACTORY, {"quantization_bit": 8, "lora_target": "q_proj, v_proj"},
         {"base": "llm-int8", "lora_targets": "q_proj,v_proj"}),
        (FACTORY, {"quantization_bit": 4, "double_quantization": False, "lora_rank": None},
         {"base": "nf4", "lora_rank": 8, "lora_alpha": 16.0}),
        (FACTORY, {"cutoff_len": None, "lora_target": None},
         {"seq_len": 2048, "lora_targets": "all-linear"}),
        (AXOLOTL, {"optimizer": "adamw_torch_4bit", "warmup_steps": 0.1},
         {"optimizer": "adamw-4bit", "warmup_steps": None}),
        (AXOLOTL, {"optimizer": "muon", "expert_parallel_size": 2}, {"optimizer": "muon", "ep": 2}),
        (AXOLOTL, {"fp8": True}, {"precision": "fp8"}),
        (AXOLOTL, {"tf32": True}, {"precision": "bf16-mixed"}),
        (AXOLOTL, {"tf32": True, "bf16": False}, {"precision": "tf32"}),
        (FACTORY, {"quantization_bit": 4, "quantization_method": "bitsandbytes"},
         {"base": "nf4-double"}),
        (FACTORY, {"stage": "pt"}, {"task": "causal-lm", "packing": "wrapped"}),
        (FACTORY, {"stage": "dpo", "pref_loss": "sigmoid"}, {"task": "dpo"}),
        (FACTORY, {"neat_packing": True}, {"packing": "documents"}),
        (FACTORY, {"disable_gradient_checkpointing": True}, {"activation_checkpointing": ["none"]}),
        (FACTORY, {"enable_liger_kernel": True}, {"fused_kernels": "liger"}),
        (FACTORY, {"use_muon": True}, {"optimizer": "muon"}),
        (FACTORY, {"train_on_prompt": True}, {"task": "causal-lm", "packing": "none"}),
        (FACTORY, {"finetuning_type": "full", "bf16": None}, {"precision": "fp32"}),
        (FACTORY, {"bf16": None}, {"precision": "bf16", "base": "same", "adapter_dtype": "fp32"}),
        (FACTORY, {"quantization_bit": 4, "upcast_layernorm": True}, {"upcast": "norms"}),
        (FACTORY, {"additional_target": "lm_head,embed_tokens"},
         {"trained_modules": "lm_head,embed_tokens"}),
        (FACTORY, {"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, {"zero": 2}),
        (FACTORY, {"disable_gradient_checkpointing": True, "gradient_checkpointing": True},
         {"activation_checkpointing": ["full"]}),
        (FACTORY, {"stage": "dpo", "pref_beta": "1e-1", "dpo_label_smoothing": 0.1},
         {"dpo_beta": 0.1, "label_smoothing": 0.1}),
        (FACTORY, {"optim": "adamw_torch_fused", "lr_scheduler_type": "cosine", "max_steps": 30},
         {"optimizer": "adamw", "schedule": "cosine", "steps": 30}),
    ],
)  # fmt: skip
def test_switches_of_theirs_are_flags_of_ours(tmp_path, base, changes, expected):
    taken, _ = read(tmp_path, {**base, **changes})
    assert {flag: taken.get(flag) for flag in expected} == expected


@pytest.mark.parametrize(
    ("base", "changes", "error", "words"),
    [
        (AXOLOTL, {"adapter": "vera"}, UnsupportedError, "adapter=vera"),
        (AXOLOTL, {"rl": "grpo"}, UnsupportedError, "rl=grpo"),
        (AXOLOTL, {"context_parallel_size": 4}, InputError, "does not divide 2 devices"),
        (AXOLOTL, {"activation_offloading": "tape"}, FileFormatError, "none of Axolotl's"),
        (AXOLOTL, {"activation_offloading": True, "gradient_checkpointing": False}, InputError,
         "gradient_checkpointing alone"),
        (AXOLOTL, {"fsdp_config": {"sharding_strategy": "SOME"}}, InputError, "is SOME"),
        (
            AXOLOTL, {"peft_use_dora": True, "load_in_4bit": False, "load_in_8bit": True},
            UnsupportedError, "DoRA on a base of 8 bits",
        ),
        (AXOLOTL, {"optimizer": "other_adamw"}, UnsupportedError, "optimizer=other_adamw"),
        (AXOLOTL, {"micro_batch_size": 0}, InputError, "micro_batch_size is 0"),
        (AXOLOTL, {"micro_batch_size": "many"}, FileFormatError, "wants a whole number"),
        (AXOLOTL, {"lora_target_modules": {"a": 1}, "lora_target_linear": 3}, FileFormatError,
         "true or false"),
        (AXOLOTL, {"lora_target_modules": [1]}, FileFormatError, "wants names"),
        (AXOLOTL, {"dp_shard_size": -1}, InputError, "dp_shard_size is -1"),
        (AXOLOTL, {"deepspeed": "nowhere.json"}, InputError, "nowhere.json"),
        (FACTORY, {"finetuning_type": "freeze"}, UnsupportedError, "finetuning_type=freeze"),
        (AXOLOTL, {"adapter": None}, InputError, "goes with an adapter"),
        (AXOLOTL, {"reward_model": True}, UnsupportedError, "reward_model"),
        (FACTORY, {"quantization_bit": 4, "quantization_type": "fp4"}, UnsupportedError,
         "quantization_type=fp4"),
        (FACTORY, {"use_llama_pro": True}, UnsupportedError, "use_llama_pro"),
        (FACTORY, {"use_asft_loss": True}, UnsupportedError, "use_asft_loss"),
        (FACTORY, {"mixture_of_depths": "convert"}, UnsupportedError, "mixture_of_depths=convert"),
        (FACTORY, {"stage": "xyz"}, UnsupportedError, "stage=xyz"),
        (FACTORY, {"stage": "dpo", "pref_loss": "hinge"}, UnsupportedError, "pref_loss=hinge"),
        (FACTORY, {"quantization_bit": 3}, InputError, "quantization_bit is 3"),
        (FACTORY, {"quantization_bit": 4, "finetuning_type": "full"}, InputError, "lora alone"),
    ],
)  # fmt: skip
def test_what_is_not_run_is_refused_in_a_sentence(tmp_path, base, changes, error, words):
    with pytest.raises(error, match=words):
        read(tmp_path, {**base, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "some: thing\n", "model: x\noutput_dir: y\n", "- a\n- b\n",
        "base_model: x\nbase_model: y\n",
        "base_model: !!python/object/apply:os.system ['true']\n", "base_model: [\n",
    ],
)  # fmt: skip
def test_a_yaml_that_is_nobodys_is_told_so(tmp_path, text):
    with pytest.raises(FileFormatError):
        read(tmp_path, text)


@pytest.mark.parametrize("base", [AXOLOTL, FACTORY], ids=["axolotl", "llama-factory"])
def test_deepspeeds_json_beside_it_is_read_too(tmp_path, base):
    (tmp_path / "zero3.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}})
    )
    inner = tmp_path / "examples" / "lora"
    inner.mkdir(parents=True)
    for folder in (tmp_path, inner):
        taken, _ = read(folder, {**base, "deepspeed": "zero3.json"})
        assert (taken["zero"], taken["precision"]) == (3, "bf16-master")


@pytest.mark.parametrize(
    ("base", "name", "expected"),
    [
        (FACTORY, "examples/deepspeed/ds_z3_config.json", (3, "none")),
        (FACTORY, "cache/ds_z2_offload_config.json", (2, "optimizer")),
        (AXOLOTL, "deepspeed_configs/zero3_bf16_cpuoffload_all.json", (3, "parameters")),
    ],
)
def test_settings_that_a_program_brings_along_are_known_by_name(tmp_path, base, name, expected):
    taken, found = read(tmp_path, {**base, "deepspeed": name})
    assert (taken["zero"], taken["offload"]) == expected
    assert any(f"{name} is not here: read as it stands in" in note for note in found.notes)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path, {**base, "deepspeed": "my.json"})


def test_the_model_is_what_the_file_names(tmp_path):
    for base, name in (
        (AXOLOTL, "NousResearch/Llama-3.2-1B"),
        (FACTORY, "meta-llama/Llama-3.1-8B"),
    ):
        path = tmp_path / "x.yaml"
        path.write_text(yaml.safe_dump(base))
        assert model_of(path) == name
        path.write_text(yaml.safe_dump({**base, "base_model": 3, "model_name_or_path": 3}))
        with pytest.raises(FileFormatError, match="names 3 as its model"):
            model_of(path)
    other = tmp_path / "accelerate.yaml"
    other.write_text("distributed_type: 'NO'\n")
    assert model_of(other) == ""


def test_a_plan_wants_a_model(tmp_path, capsys):
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: 'NO'\n")
    for more, words in (
        ((), "no model was given; give one"),
        (("--from", str(path)), "names none"),
    ):
        assert main(["plan", *more, "--gpus", "rtx-4090"]) == 2
        assert words in capsys.readouterr().err


def test_a_model_that_is_typed_wins(tmp_path, capsys):
    path = tmp_path / "lora.yaml"
    path.write_text(yaml.safe_dump(FACTORY))
    given = ("plan", "llama-3.2-1b", "--from", str(path), "--gpus", "rtx-4090", "--no-proof")
    assert main(given) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "LoRA of llama-3.2-1b at 2,048 tokens" in said
    assert "llama-3.2-1b stands in for meta-llama/Llama-3.1-8B" in said


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (AXOLOTL, {"adapter": "vera"}, "adapter=vera"),
        (AXOLOTL, {"rl": "grpo"}, "rl=grpo"),
        (FACTORY, {"finetuning_type": "freeze"}, "finetuning_type=freeze"),
    ],
)
def test_a_refusal_is_a_sentence_where_the_file_alone_names_the_model(
    tmp_path, capsys, base, changes, words
):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({**base, **changes}))
    assert main(["plan", "--from", str(path), "--gpus", "rtx-4090"]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""  # an answer would be of other numbers than the file's


def test_two_gpus_plan_what_axolotl_says(tmp_path, capsys):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({**AXOLOTL, "tf32": True, "sample_packing": False}))
    assert main(["plan", "--from", str(path), "--gpus", "2xh100", "--no-proof"]) == 0
    assert "precision=bf16-mixed" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("changes", "task"),
    [({"stage": "ppo"}, "ppo"), ({"stage": "dpo", "pref_loss": "orpo"}, "orpo")],
)
def test_a_task_that_is_not_run_is_left_to_the_refusal_that_names_the_nearest(
    tmp_path, changes, task
):
    taken, _ = read(tmp_path, {**FACTORY, **changes})
    assert taken["task"] == task in TASKS


def test_a_reward_model_reads_two_answers_a_row(tmp_path):
    plain, _ = read(tmp_path, FACTORY)
    scored, found = read(tmp_path, {**FACTORY, "stage": "rm"})
    for size in ("micro_batch", "global_batch"):
        assert scored[size] == 2 * plain[size]
    assert any("batches count both" in note for note in found.notes)


def test_an_optimizer_that_is_not_run_is_left_to_the_refusal_that_names_the_nearest(tmp_path):
    for base, key in ((FACTORY, "optim"), (AXOLOTL, "optimizer")):
        taken, _ = read(tmp_path, {**base, key: "paged_lion_8bit"})
        assert taken["optimizer"] in OTHER_OPTIMIZERS
    for switches, word in (
        ({"use_badam": True}, "badam"),
        ({"use_adam_mini": True}, "adam-mini"),
        ({"use_galore": True, "galore_layerwise": True}, "galore-adamw-layerwise"),
    ):
        taken, _ = read(tmp_path, {**FACTORY, **switches})
        assert taken["optimizer"] == word in OTHER_OPTIMIZERS


@pytest.mark.parametrize(("rl", "task"), [("kto", "kto"), ("orpo", "orpo"), ("ipo", "dpo")])
def test_what_axolotl_learns_of_answers_is_a_task_or_one_that_is_answered_by_another(
    tmp_path, rl, task
):
    taken, _ = read(tmp_path, {**AXOLOTL, "rl": rl})
    assert taken["task"] == task
    assert task == "dpo" or task in TASKS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"name": "llama", "hidden_size": 64}}, "none of what is read"),
        ({"model": ["a", "b"]}, "none of what is read"),
        ({"base_model": {"name": "llama"}}, "names a section as its model under base_model"),
        ({"model_name_or_path": 3, "output_dir": "x"}, "names 3 as its model"),
        ({"model_name_or_path": "", "output_dir": "x"}, "names '' as its model"),
    ],
)
def test_what_names_no_model_in_words_is_refused_in_one_sentence(tmp_path, capsys, content, words):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(content))
    assert main(["plan", "--from", str(path), "--gpus", "h100"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "{" not in said
    assert len(said.splitlines()) == 1


WHOLE = {
    **{key: value for key, value in AXOLOTL.items() if not key.startswith("lora_")},
    "adapter": None, "load_in_4bit": False,
}  # fmt: skip
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        # adapters: offloaded in place of recomputing; else what recomputing begins with
        (AXOLOTL, {"activation_offloading": True},
         {"activation_checkpointing": ["none"], "offload": "activations:16"}),
        (AXOLOTL, {"activation_offloading": "hidden_states"},
         {"activation_checkpointing": ["full"], "offload": "activations:16"}),
        (WHOLE, {"activation_offloading": "legacy"},
         {"activation_checkpointing": ["full"], "offload": "activations:16"}),
        (WHOLE, {"gradient_checkpointing": "offload"},
         {"activation_checkpointing": ["full"], "offload": "activations:16"}),
        (AXOLOTL, {"gradient_checkpointing": "unsloth"}, {"offload": "activations:16"}),
        (WHOLE, {"activation_offloading": True, "fsdp_version": 2,
                 "fsdp_config": {"offload_params": True}},
         {"offload": "optimizer,activations:16", "zero": 3}),
        (WHOLE, {"activation_offloading": True,
                 "deepspeed": {"zero_optimization": {"stage": 2,
                               "offload_optimizer": {"device": "cpu"}}}},
         {"offload": "optimizer,activations:16", "zero": 2}),
        (WHOLE, {"fsdp": ["shard_grad_op", "auto_wrap"]}, {"zero": 2, "fsdp": 1}),
        (WHOLE, {"fsdp_config": {"fsdp_sharding_strategy": "NO_SHARD"}}, {"zero": 0}),
        (WHOLE, {"fsdp": ["full_shard", "offload"]}, {"zero": 3, "offload": "optimizer"}),
        (WHOLE, {"flash_attention": False, "flex_attention": True}, {"attention": "flex"}),
        (WHOLE, {"eager_attention": True}, {"attention": "eager"}),
        (WHOLE, {"context_parallel_size": 2}, {"seq_len": 1024, "global_batch": 16}),
        (WHOLE, {"qat": {"weight_dtype": "int4", "group_size": 32}},
         {"method": "qat", "qat_scheme": "int4", "qat_group_size": 32}),
        (WHOLE, {"qat": {"weight_dtype": "nvfp4", "group_size": 16}}, {"qat_scheme": "int4"}),
        (WHOLE, {"batch_size": 8, "gradient_accumulation_steps": None}, {"global_batch": 16}),
    ],
)  # fmt: skip
def test_axolotls_files_say_what_is_kept_where(tmp_path, base, changes, expected):
    taken, found = read(tmp_path, {**base, **changes})
    assert taken.items() >= expected.items()
    assert {each.flag for each in found.taken} == taken.keys()
    assert sum(each.flag == "offload" for each in found.taken) <= 1
    assert found.unread == ()


def test_axolotl_with_its_second_fsdp_says_so_in_either_place(tmp_path):
    for version in ({"fsdp_version": 2}, {"fsdp_config": {"version": 2}}):
        config = {"reshard_after_forward": True, **version.pop("fsdp_config", {})}
        taken, _ = read(tmp_path, {**WHOLE, "fsdp_config": config, **version})
        assert taken["zero"] == 3
        assert "fsdp" not in taken


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict.fromkeys(KERNELS, True), f"planned without {', '.join(KERNELS)}, which takes more"),
        ({"use_kernels": True, "tiled_mlp": True}, "planned without use_kernels, tiled_mlp"),
        ({"lora_dropout": 0.05}, "planned without lora_dropout, which keeps a mask"),
        ({"use_scattermoe": True}, "experts of use_scattermoe are planned as PyTorch's grouped"),
        ({"lora_target_parameters": ["a.b"]}, "come on top of what is planned"),
        ({"unfrozen_parameters": ["a"]}, "all parameters are planned to train"),
    ],
)
def test_what_axolotl_does_otherwise_is_said_beside_the_verdict(tmp_path, changes, words):
    _, found = read(tmp_path, {**AXOLOTL, **changes})
    assert any(words in each for each in found.stand_ins)
    assert found.unread == ()


def test_axolotls_kernels_of_adapters_are_on_where_nothing_says_so(tmp_path):
    def says(changes):
        _, found = read(tmp_path, {**AXOLOTL, **changes}, num_devices=1)
        return any("turns on lora_mlp_kernel" in note for note in found.notes)

    assert says({})
    assert says({"flash_attention": True, "lora_dropout": 0})
    for other in ({"lora_o_kernel": False}, {"trust_remote_code": True}, {"rl": "dpo"}):
        assert not says(other)
