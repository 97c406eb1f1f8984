"""The YAML that ``axolotl train`` reads.

Source: ``src/axolotl/utils/schemas`` (``config.py``, ``peft.py``, ``fsdp.py``, ``training.py``) and
``loaders/model.py`` of Axolotl 0.19.0.
"""

from collections.abc import Iterator
from typing import Any

from brimful.export import deepspeed, hf_trainer
from brimful.export.adapters import attention_lost, attention_name, length, model_name
from brimful.export.given import Exported, Given, in_yaml
from brimful.export.lost import BITSANDBYTES, Lost, lost, refuse, split_degrees, unsaid
from brimful.models.mixtures import has_stacks
from brimful.techniques.offload import away_of
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS
from brimful.values.job import ALL_LINEAR, Adapter, Job
from brimful.values.plan import Plan
from brimful.values.strategy import (
    gathers,
    is_flat,
    is_selective,
    num_checkpointed,
    num_micro_batches,
    world_size,
)

TO = "axolotl"
_SAID = (
    "model", "task", "method", "adapter", "precision", "seq_len", "packing", "attention",
    "global_batch", "micro_batch", "num_steps", "learning_rate", "weight_decay", "beta1", "beta2",
    "epsilon", "clip", "seed", "optimizer", "schedule", "warmup_steps", "zero", "dp_shard",
    "dp_replicate", "activation_checkpointing", "engine", "fused_kernels",
    "accumulate",
)  # fmt: skip
_LIGER = {
    "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    "liger_rope": True,
    "liger_rms_norm": True,
    "liger_glu_activation": True,
    "liger_fused_linear_cross_entropy": True,
}
_COSINE = {"lr_scheduler": "cosine", "cosine_min_lr_ratio": deepspeed.COSINE_ENDS_AT}
_TASKS = {"causal-lm": "completion", "chat": "chat_template"}
"""Of a data set."""


def text(plan: Plan, given: Given) -> Exported:
    """Return the YAML, and what it does not say."""
    use = "started by: axolotl train THIS_FILE"
    return in_yaml(plan, given, TO, config(plan, given), losses(plan), use=use)


def config(plan: Plan, given: Given) -> dict[str, Any]:
    """Return the YAML's content.

    Raises UnsupportedError: Axolotl would train something else.
    """
    job, strategy = plan.job, plan.strategy
    refuse(plan, TO, [*split_degrees(strategy, "tp", "pp"), *_refused(plan)], bases=BITSANDBYTES)
    is_half = job.precision in {"bf16", "fp16"}
    kind = job.precision.partition("-")[0]
    return {
        "base_model": model_name(plan),
        **({} if job.adapter is None else _adapter(job, job.adapter)),
        "datasets": [{"path": given.data, "type": _TASKS[job.task]}],
        "output_dir": given.out,
        "sequence_len": job.seq_len,
        "sample_packing": job.packing == "documents",
        "pad_to_sequence_len": True,
        "attn_implementation": attention_name(strategy),
        "micro_batch_size": strategy.micro_batch,
        "gradient_accumulation_steps": num_micro_batches(job, strategy),
        **length(plan, "num_epochs", given.rows),
        **hf_trainer.rates(job, _COSINE, optimizer="optimizer", schedule="lr_scheduler"),
        **({"bfloat16" if kind == "bf16" else "float16": True} if is_half else {}),
        **({kind: True} if kind in {"bf16", "fp16"} and not is_half else {}),
        **({} if kind == "bf16" else {"bf16": False}),  # left out, it is what the card has
        "tf32": job.precision == "tf32",
        "seed": job.seed,
        **(_LIGER if strategy.fused_kernels == "liger" else {}),
        **_memory(plan),
    }


def _adapter(job: Job, adapter: Adapter) -> dict[str, Any]:
    is_4bit = adapter.base in {"nf4", "nf4-double"}
    content: dict[str, Any] = {
        "adapter": "qlora" if is_4bit else "lora",
        "load_in_4bit": is_4bit,
        "load_in_8bit": adapter.base == "llm-int8",
        "lora_r": adapter.rank,
        "lora_alpha": int(adapter.alpha),
        "lora_dropout": 0.0,
    }
    if ALL_LINEAR in adapter.targets:
        content["lora_target_linear"] = True
    else:
        content["lora_target_modules"] = list(adapter.targets)
    if adapter.trained_modules:
        content["lora_modules_to_save"] = list(adapter.trained_modules)
    if job.method == "dora":
        content["peft_use_dora"] = True
    if adapter.base == "nf4":  # it is double otherwise
        content["bnb_config_kwargs"] = {"bnb_4bit_use_double_quant": False}
    if job.precision in {"bf16", "fp16"} and adapter.dtype == "same":
        content["peft_autocast_adapter_dtype"] = False
    return content


def _memory(plan: Plan) -> dict[str, Any]:
    strategy, layers = plan.strategy, plan.job.model.num_layers
    has_checkpoints = num_checkpointed(strategy, num_layers=layers) > 0
    content: dict[str, Any] = {"gradient_checkpointing": has_checkpoints}
    if has_checkpoints:
        content["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if world_size(strategy) > 1:
        each = {"sync_each_batch": strategy.accumulate == "reduce-each"}
        content["accelerator_config"] = {"gradient_accumulation_kwargs": each}
    if not gathers(strategy):
        return content
    if strategy.dp_replicate > 1:
        content |= {
            "dp_replicate_size": strategy.dp_replicate, "dp_shard_size": strategy.dp_shard,
        }  # fmt: skip
    return content | {
        "fsdp_version": 2,
        "fsdp_config": {
            "reshard_after_forward": strategy.zero == 3,  # noqa: PLR2004 - ZeRO-3
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "offload_params": away_of(strategy.offload, num_layers=layers).optimizer,
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }


def _refused(plan: Plan) -> Iterator[tuple[str, str]]:
    job, strategy = plan.job, plan.strategy
    if job.task not in _TASKS:
        yield f"task={job.task}", "use task=causal-lm or chat"
    if OPTIMIZERS[job.optimizer].transformers is None:
        yield f"optimizer={job.optimizer}", f"use optimizer={DEFAULT}"
    if job.precision.endswith("-master"):
        yield f"precision={job.precision}", "use precision=bf16"
    if job.adapter is None and job.precision.endswith("-mixed"):
        # It loads what trains in the type that it computes in.
        yield (
            f"precision={job.precision} with method=full",
            f"use precision={job.precision.removesuffix('-mixed')}",
        )
    if job.adapter is not None and job.adapter.alpha != int(job.adapter.alpha):
        yield f"alpha={job.adapter.alpha:g}", "use a whole number"
    if strategy.zero == 1:
        yield "zero=1", "plan with --zero 0, 2 or 3"
    if is_flat(strategy):
        yield "fsdp=1", "use fsdp=2"
    if strategy.engine != "torch":
        yield f"engine={strategy.engine}", "use engine=torch"


def losses(plan: Plan) -> tuple[Lost, ...]:
    """List what the YAML does not say, or says in part."""
    whys = {
        "offload": "FSDP keeps parameters, gradients and state on the host, of all blocks or none",
    }
    return (*unsaid(plan, _SAID, whys), *_in_part(plan))


def _in_part(plan: Plan) -> Iterator[Lost]:
    yield from attention_lost(plan)
    job, strategy = plan.job, plan.strategy
    if job.packing == "wrapped":
        yield lost(plan, "packing", "each sample is a row of its own, padded to sequence_len")
    if job.schedule == "cosine" or job.warmup_steps:
        yield lost(plan, "schedule", "its steps count from 0: each has an earlier one's rate")
    adapter = job.adapter
    if adapter is not None and adapter.base in BITSANDBYTES:
        is_upcast = has_stacks(job.model) and not gathers(strategy)
        if is_upcast != (adapter.upcast == "all"):
            how = "experts are held in fp32" if is_upcast else "norms and embeddings are not upcast"
            yield lost(plan, "adapter", f"{how} (prepare_model_for_kbit_training)", "memory")
    blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    if blocks and (blocks < job.model.num_layers or is_selective(strategy)):
        yield lost(plan, "activation_checkpointing", "its switch recomputes every block in full")
    if world_size(strategy) > 1 and strategy.zero == 0:
        yield lost(plan, "dp_replicate", "axolotl train starts a process on every GPU it sees")
