"""torchtune's YAML read back into flags."""

import pytest
import yaml

from brimful.cli.elsewhere import METHODS, TASKS
from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.changed_keys import sayable
from brimful.export.fused_losses import CHUNKED_LOSSES
from brimful.export.read_source import model_of, program_of, read_source, unnamed_words
from brimful.export.torchtune_models import known_model
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.models.names import find
from brimful.values.job import plain_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import Strategy

LINEAR, IN_CHUNKS = sorted(CHUNKED_LOSSES, reverse=True)
FULL = {
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 2048},
    "dataset": {"_component_": "torchtune.datasets.chat_dataset", "packed": True},
    "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
    "batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": "2e-5", "fused": True},
    "loss": {"_component_": f"torchtune.modules.loss.{LINEAR}"},
    "enable_activation_checkpointing": True,
    "dtype": "bf16",
}
LORA = {
    **FULL,
    "model": {
        "_component_": "torchtune.models.llama3_2.lora_llama3_2_1b",
        "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "lora_rank": 64,
        "lora_alpha": 128,
    },
}


def merged(content, changes):
    """Return a file with dotted keys changed; a part is named by its builder."""
    new = yaml.safe_load(yaml.safe_dump(content))
    for path, value in changes.items():
        *above, name = path.split(".")
        place = new
        for each in above:
            place = place.setdefault(each, {})
        place[name] = value
    return new


def read(tmp_path, content, num_devices=1):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(content))
    found = read_source(path, num_devices=num_devices, num_layers=16)
    return {each.flag: each.value for each in found.taken}, found


def test_full_training_is_said_whole(tmp_path):
    taken, found = read(tmp_path, FULL)
    assert taken == {
        "allocator": "expandable_segments:True", "task": "chat", "method": "full",
        "precision": "bf16", "seq_len": 2048, "packing": "documents", "attention": "flex",
        "zero": 0, "dp_replicate": 1, "tp": 1, "optimizer_in_backward": False, "micro_batch": 2,
        "global_batch": 8, "optimizer": "adamw", "learning_rate": 2e-5, "weight_decay": 0.01,
        "epsilon": 1e-8, "beta1": 0.9, "beta2": 0.999, "warmup_steps": 0, "schedule": "constant",
        "clip": 0.0, "compile": "none", "loss_chunks": 2, "activation_checkpointing": ["full"],
        "offload": "none", "pp": 1, "ep": 1, "fused_kernels": "none",
    }  # fmt: skip
    assert found.unread == ()
    assert program_of(tmp_path / "x.yaml") == "torchtune"
    assert model_of(tmp_path / "x.yaml") == "llama3.2-1b"


def test_adapters_are_beside_the_layers_that_are_named(tmp_path):
    taken, _ = read(tmp_path, LORA)
    assert taken.items() >= {
        "method": "lora", "base": "same", "lora_rank": 64, "lora_alpha": 128.0,
        "lora_targets": "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
        "optimizer_in_backward": False,
    }.items()  # fmt: skip


def test_a_layer_that_holds_several_stands_in_for_them(tmp_path):
    phi = merged(LORA, {"model._component_": "torchtune.models.phi3.lora_phi3_mini"})
    taken, found = read(tmp_path, phi)
    assert taken["lora_targets"] == "o_proj,down_proj,qkv_proj,gate_up_proj"
    assert any("are planned of o_proj" in words for words in found.stand_ins)


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (LORA, {"model.quantize_base": True}, {"method": "qlora", "base": "nf4-double"}),
        (LORA, {"model._component_": "torchtune.models.llama3_2.qlora_llama3_2_1b"},
         {"method": "qlora"}),
        (LORA, {"model.use_dora": True}, {"method": "dora"}),
        (LORA, {"optimizer_in_bwd": True}, {"optimizer_in_backward": False}),
        (FULL, {"dtype": "fp32"}, {"precision": "fp32"}),
        (FULL, {"dataset._component_": "torchtune.datasets.alpaca_dataset"},
         {"task": "causal-lm"}),
        (FULL, {"dataset": [{"_component_": "torchtune.datasets.text_completion_dataset"}]},
         {"task": "causal-lm", "packing": "none"}),
        (FULL, {"dataset.train_on_input": True}, {"task": "causal-lm"}),
        (FULL, {"optimizer.fused": False}, {"optimizer": "adamw-foreach"}),
        (FULL, {"optimizer._component_": "bitsandbytes.optim.AdamW8bit"},
         {"optimizer": "adamw-8bit"}),
        (FULL, {"optimizer._component_": "torchao.optim.AdamW4bit"}, {"optimizer": "adamw-4bit"}),
        (FULL, {"optimizer._component_": "torchao.optim.CPUOffloadOptimizer"},
         {"optimizer": "adamw", "offload": "optimizer"}),
        (FULL, {"optimizer": {"_component_": "torch.optim.SGD", "lr": 0.1}},
         {"optimizer": "sgd", "beta1": 0.0}),
        (FULL, {"optimizer._component_": "bitsandbytes.optim.PagedLion8bit"},
         {"optimizer": "paged-lion-8bit"}),
        (FULL, {"optimizer.betas": [0.8, 0.95]}, {"beta1": 0.8, "beta2": 0.95}),
        (FULL, {"gradient_accumulation_steps": 1, "optimizer_in_bwd": True},
         {"optimizer_in_backward": True}),
        (FULL, {"clip_grad_norm": "inf"}, {"clip": 0.0}),
        (FULL, {"clip_grad_norm": 1.0}, {"clip": 1.0}),
        (FULL, {"lr_scheduler._component_": "x.get_cosine_schedule_with_warmup",
                "lr_scheduler.num_warmup_steps": 100},
         {"schedule": "cosine", "warmup_steps": 100}),
        (FULL, {"max_steps_per_epoch": 50, "epochs": 3}, {"steps": 150}),
        (FULL, {"enable_activation_offloading": True}, {"offload": "activations:16"}),
        (FULL, {"compile": True}, {"compile": "blocks", "loss_chunks": 6}),
        (FULL, {"compile": {"model": False}}, {"compile": "none", "loss_chunks": 6}),
        (FULL, {"loss.num_output_chunks": 2}, {"loss_chunks": 1}),
        (FULL, {"loss._component_": "torch.nn.CrossEntropyLoss"}, {"loss_chunks": 1}),
        (FULL, {"enable_activation_checkpointing": False, "ac_mode": "selective", "ac_option": 2},
         {"activation_checkpointing": ["full:8"]}),
        (FULL, {"ac_mode": "full"}, {"activation_checkpointing": ["none"]}),
        (FULL, {"batch_size": 4, "batch_size_val": "${batch_size}"}, {"micro_batch": 4}),
    ],
)  # fmt: skip
def test_each_key_is_the_flag_that_says_the_same(tmp_path, base, changes, expected):
    taken, _ = read(tmp_path, merged(base, changes))
    assert taken.items() >= expected.items()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"zero": 3, "dp_replicate": 1, "global_batch": 64}),
        ({"fsdp_reshard_after_forward": False}, {"zero": 2}),
        ({"tensor_parallel_dim": 2, "tensor_parallel_plan._component_": "x.plan"},
         {"tp": 2, "dp_replicate": 1, "global_batch": 32}),
        ({"data_parallel_replicate_dim": 2}, {"dp_replicate": 2, "zero": 3}),
        ({"context_parallel_dim": 2}, {"seq_len": 1024, "dp_replicate": 1, "global_batch": 64}),
        ({"fsdp_cpu_offload": True, "enable_activation_offloading": True},
         {"offload": "optimizer,activations:16"}),
    ],
)  # fmt: skip
def test_several_devices_share_the_work(tmp_path, changes, expected):
    taken, found = read(tmp_path, merged(FULL, changes), num_devices=8)
    assert taken.items() >= expected.items()
    assert found.unread == ()


@pytest.mark.parametrize(
    ("name", "compiled", "kept"),
    [(LINEAR, False, "5 bytes"), (IN_CHUNKS, False, "6.5 bytes"), (IN_CHUNKS, True, "2 bytes")],
)
def test_a_loss_that_keeps_its_chunks_is_said_to(tmp_path, name, compiled, kept):
    changes = {"loss._component_": f"torchtune.modules.loss.{name}", "compile": compiled}
    _, found = read(tmp_path, merged(FULL, changes))
    assert any(f"{kept} a logit" in words for words in found.stand_ins)


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (LORA, {"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss", "beta": 0.2}},
         {"task": "dpo", "dpo_beta": 0.2, "loss_chunks": 1, "packing": "none"}),
        (LORA, {"teacher_model._component_": "torchtune.models.llama3_1.llama3_1_8b"},
         {"task": "knowledge-distillation", "method": "lora"}),
        (FULL, {"loss._component_": "torchtune.dev.grpo.loss.GRPOSimpleLoss", "batch_size": 1,
                "grpo_samples": 16, "max_generated_tokens": 512, "gradient_accumulation_steps": 1},
         {"task": "grpo", "micro_batch": 16, "global_batch": 16, "seq_len": 2560}),
        (FULL, {"loss._component_": "torchtune.rlhf.loss.PPOLoss", "batch_size": 64,
                "ppo_batch_size": 32},
         {"task": "ppo", "micro_batch": 8, "global_batch": 32}),
        (FULL, {"quantizer": {"_component_": "x.Int8DynActInt4WeightQATQuantizer",
                              "groupsize": 256}},
         {"method": "qat", "qat_scheme": "int4", "qat_group_size": 256}),
        (LORA, {"quantizer._component_": "x.Int8DynActInt4WeightQATQuantizer"},
         {"method": "qat-lora"}),
    ],
)  # fmt: skip
def test_other_recipes_are_known_by_their_parts(tmp_path, base, changes, expected):
    taken, _ = read(tmp_path, merged(base, changes))
    assert taken.items() >= expected.items()
    known = {"causal-lm", "chat", "dpo", "full", "lora", "qat"}
    assert {taken["task"], taken["method"]} <= known | {*TASKS} | {*METHODS}


@pytest.mark.parametrize(
    ("builder", "model"),
    [
        ("llama2.llama2_7b", "llama-2-7b"),
        ("llama3.qlora_llama3_8b", "llama-3-8b"),
        ("llama3_1.llama3_1_405b", "llama-3.1-405b"),
        ("llama3_2_vision.lora_llama3_2_vision_11b", "llama-3.2-11b-vision"),
        ("llama4.llama4_scout_17b_16e", "llama-4-scout"),
        ("qwen2.qwen2_0_5b", "qwen2-0.5b"),
        ("qwen2_5.lora_qwen2_5_1_5b_instruct", "qwen2.5-1.5b"),
        ("qwen3.qwen3_0_6b_base", "qwen3-0.6b"),
        ("gemma2.gemma2_9b", "gemma-2-9b"),
        ("phi4.phi4_14b", "phi-4"),
        ("smol.smollm2_1_7b", "smollm2-1.7b"),
    ],
)
def test_a_builder_is_a_model_by_a_rule(builder, model):
    assert find(known_model(f"torchtune.models.{builder}")).name == model


@pytest.mark.parametrize("builder", ["torchtune.models.llama2.llama2", "mine.models.thing_3q"])
def test_a_builder_that_is_not_known_names_no_model(tmp_path, builder):
    read(tmp_path, merged(FULL, {"model._component_": builder}))
    assert model_of(tmp_path / "x.yaml") == ""
    assert unnamed_words(tmp_path / "x.yaml").startswith(f"builds {builder}, which is no model")


@pytest.mark.parametrize(
    ("base", "changes", "error", "said"),
    [
        (FULL, {"batch_size": "two"}, FileFormatError, "torchtune wants a whole number"),
        (FULL, {"batch_size": 0}, InputError, "give 1 or more"),
        (FULL, {"optimizer.betas": [0.9]}, FileFormatError, "wants two numbers"),
        (FULL, {"clip_grad_norm": "much"}, FileFormatError, "wants a number"),
        (FULL, {"compile": 3}, FileFormatError, "true or false"),
        (FULL, {"dtype": "fp16"}, InputError, "recipes do not train"),
        (FULL, {"optimizer_in_bwd": True}, InputError, "no gradient_accumulation_steps"),
        (FULL, {"enable_activation_offloading": True, "enable_activation_checkpointing": False},
         InputError, "goes with enable_activation_checkpointing"),
        (FULL, {"enable_activation_checkpointing": False, "ac_mode": "op"}, InputError,
         "ac_mode=op"),
        (FULL, {"tensor_parallel_dim": 3}, InputError, "are 3 devices"),
        (FULL, {"context_parallel_dim": 3}, InputError, "context 3 are 3 devices"),
        (FULL, {"optimizer._component_": "mine.Foo"}, UnsupportedError, "mine.Foo"),
        (FULL, {"orchestration.num_steps": 3}, UnsupportedError, "parts GPUs"),
        (FULL, {"tune.run": "full_finetune_single_device"}, InputError, "runs on one GPU"),
        (FULL, {"loss.num_output_chunks": 0}, InputError, "give 1 or more"),
        (LORA, {"model.lora_attn_modules": ["o_proj"]}, InputError, "none of torchtune's"),
        (LORA, {"model.lora_attn_modules": [], "model.apply_lora_to_mlp": False}, InputError,
         "beside no layer"),
        (LORA, {"model.lora_attn_modules": "q_proj"}, FileFormatError, "a list"),
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(tmp_path, base, changes, error, said):
    with pytest.raises(error, match=said):
        read(tmp_path, merged(base, changes), num_devices=1 if base is LORA else 2)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("PagedAdamW", "32bit"), ("PagedAdamW32bit", "32bit"), ("PagedAdamW8bit", "8bit"),
     ("PagedAdam8bit", "8bit")],
)  # fmt: skip
def test_a_paged_optimizer_is_one_and_nothing_stands_in_for_it(tmp_path, name, meant):
    taken, found = read(
        tmp_path, merged(FULL, {"optimizer._component_": f"bitsandbytes.optim.{name}"})
    )
    assert taken["optimizer"] == f"paged-adamw-{meant}"
    assert not any("moments" in each for each in found.stand_ins)


def test_what_is_not_read_is_said(tmp_path):
    changes = {
        "optimizer._component_": "bitsandbytes.optim.AdamW", "output_dir": "x",
        "model.lora_dropout": 0.1, "tune": {"run": "lora_finetune_distributed", "processes": 4},
        "model.apply_lora_to_output": True, "enable_fp8_training": True,
    }  # fmt: skip
    taken, found = read(tmp_path, merged(LORA, changes))
    assert found.unread == ("model.lora_dropout=0.1", 'output_dir="x"')
    assert taken["optimizer"] == "adamw"
    for words in ("moments in fp32", "the head has no adapter", "enable_fp8_training"):
        assert any(words in each for each in found.stand_ins)


@pytest.mark.parametrize("changes", [{"compile": False}, {"compile": {"model": True}},
                                     {"dataset": [{"packed": True}]}])  # fmt: skip
def test_keys_that_are_tried_stand_in_no_others_way(tmp_path, changes):
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(merged(FULL, changes)))
    job = plain_job(load_model("llama-3.2-1b"), precision="bf16", seq_len=2048)
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None, network_name="")
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="full", loss_chunks=1, attention="sdpa"
    )
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)
    told = {"activation_checkpointing": ("none", "full"), "tp": (1, 2), "pp": (1, 2)}
    assert sayable(path, plan, told) == {"tp": [1], "pp": [1]}
