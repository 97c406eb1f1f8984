"""The YAML that ``llamafactory-cli train`` reads: the Trainer's, with model, adapters and rows.

Source: ``src/llamafactory/hparams``, ``model/loader.py``, ``model/adapter.py``,
``model/model_utils/checkpointing.py``, ``train/trainer_utils.py`` and ``launcher.py`` of
LLaMA-Factory 0.9.6.dev0 (commit ff6d4d1).
"""

from collections.abc import Iterator
from typing import Any

from brimful.export import hf_trainer
from brimful.export.adapters import attention_name, half_type, model_name, refused_job
from brimful.export.given import Exported, Given, in_yaml
from brimful.export.lost import BITSANDBYTES, Lost, lost, refuse
from brimful.values.job import ALL_LINEAR, PREFERENCE, Adapter, Job
from brimful.values.plan import Plan
from brimful.values.strategy import default_reference, gathers, num_checkpointed, world_size

TO = "llama-factory"
_SAID = (
    "model", "task", "method", "adapter", "seq_len", "packing", "attention", "preference",
)  # fmt: skip
_TASKS = frozenset({"causal-lm", "chat", PREFERENCE})
_ATTENTIONS = {"eager": "disabled", "sdpa": "sdpa"}
_OTHERWISE = (
    "gradient_checkpointing", "gradient_checkpointing_kwargs", "remove_unused_columns",
    "use_liger_kernel",
)  # fmt: skip
"""Keys of the Trainer's that LLaMA-Factory has another name for, or sets itself."""
_PLAIN = "pt"
_ALLOCATOR = "expandable_segments:True"
_PACKED_BITS = {"nf4": 4, "nf4-double": 4, "llm-int8": 8}


def text(plan: Plan, given: Given) -> Exported:
    """Return the YAML, and what it does not say."""
    content = config(plan, given)
    use = "started by: llamafactory-cli train THIS_FILE"
    if content["stage"] == _PLAIN:
        use += "; stage pt learns all of a plain text: for prompts and answers plan --task chat"
    return in_yaml(plan, given, TO, content, losses(plan), use=use)


def config(plan: Plan, given: Given) -> dict[str, Any]:
    """Return the YAML's content.

    Raises UnsupportedError: LLaMA-Factory would train something else.
    """
    job = plan.job
    refuse(
        plan,
        TO,
        refused_job(job, _TASKS, "causal-lm, chat or dpo"),
        bases=BITSANDBYTES,
        tasks=_TASKS,
    )
    return {
        "model_name_or_path": model_name(plan),
        "flash_attn": _ATTENTIONS.get(attention_name(plan.strategy), "sdpa"),
        "do_train": True,
        **_learnt(job),
        "dataset": given.data,
        "cutoff_len": job.seq_len,
        **({"finetuning_type": "full"} if job.adapter is None else _adapter(job, job.adapter)),
        **({"pure_bf16": True} if job.precision == "bf16" else {}),
        **_memory(plan),
        **_trainer(plan, given),
    }


def _learnt(job: Job) -> dict[str, Any]:
    """Return what the loss is of, and how rows are made of samples."""
    if job.preference is not None:
        return {
            "stage": "dpo",
            "pref_loss": "sigmoid",
            "pref_beta": job.preference.beta,
            "dpo_label_smoothing": job.preference.label_smoothing,
        }
    if job.packing == "documents":  # which its pre-training has not
        all_tokens = {"template": "empty", "train_on_prompt": True}
        plain = all_tokens if job.task == "causal-lm" else {}
        return {"stage": "sft", **plain, "neat_packing": True}
    if job.packing == "wrapped":  # said, ``packing`` would make each row a token shorter
        return {"stage": _PLAIN}
    return {"stage": _PLAIN if job.task == "causal-lm" else "sft", "packing": False}


def _adapter(job: Job, adapter: Adapter) -> dict[str, Any]:
    content: dict[str, Any] = {
        "finetuning_type": "lora",
        "lora_rank": adapter.rank,
        "lora_alpha": int(adapter.alpha),
        "lora_dropout": 0.0,
        "lora_target": "all" if ALL_LINEAR in adapter.targets else ",".join(adapter.targets),
        "use_dora": job.method == "dora",
    }
    if adapter.trained_modules:
        content["additional_target"] = ",".join(adapter.trained_modules)
    if (bits := _PACKED_BITS.get(adapter.base)) is not None:
        content |= {"quantization_bit": bits, "quantization_method": "bnb"}
    if adapter.base in {"nf4", "nf4-double"}:
        content["double_quantization"] = adapter.base == "nf4-double"
    if adapter.upcast != "none":
        content["upcast_layernorm"] = True
    return content


def _memory(plan: Plan) -> dict[str, Any]:
    content: dict[str, Any] = {"disable_gradient_checkpointing": not _has_checkpoints(plan)}
    if _has_checkpoints(plan):
        content["use_reentrant_gc"] = False
    if plan.strategy.fused_kernels == "liger":
        content["enable_liger_kernel"] = True
    return content


def _has_checkpoints(plan: Plan) -> bool:
    return num_checkpointed(plan.strategy, num_layers=plan.job.model.num_layers) > 0


def _trainer(plan: Plan, given: Given) -> dict[str, Any]:
    """Return the Trainer's arguments, whose checkpoints LLaMA-Factory makes itself."""
    content = hf_trainer.config(plan, given, to=TO, bases=BITSANDBYTES, tasks=_TASKS)
    if "fsdp_config" in content:
        content["fsdp_config"] |= {"activation_checkpointing": False}
    return {key: value for key, value in content.items() if key not in _OTHERWISE}


def losses(plan: Plan) -> tuple[Lost, ...]:
    """List what the YAML does not say, or says in part."""
    said = {*_SAID}
    if plan.strategy.reference == default_reference(plan.job):
        said |= {"reference"}
    if world_size(plan.strategy) > 1:
        said |= {"allocator"}
    return (*hf_trainer.losses(plan, said), *_in_part(plan))


def _in_part(plan: Plan) -> Iterator[Lost]:
    job, strategy = plan.job, plan.strategy
    if strategy.attention not in _ATTENTIONS:
        yield lost(plan, "attention", "its sdpa picks among torch's kernels by itself")
    if job.task == "causal-lm" and job.packing == "documents":
        yield lost(plan, "task", "rows are prompts and answers, and tokens of both are learnt")
    if job.adapter is not None:
        yield from _of_adapter(plan, job.adapter)
    if strategy.reference == "resident":
        yield lost(plan, "reference", "the second model is held in the type of its checkpoint")
    if world_size(strategy) > 1:
        yield from _launched(plan)


def _launched(plan: Plan) -> Iterator[Lost]:
    """Yield what its launcher of several processes decides."""
    degree = "dp_shard" if plan.strategy.dp_shard > 1 else "dp_replicate"
    yield lost(plan, degree, "it starts a process on every GPU it sees, or NPROC_PER_NODE")
    if gathers(plan.strategy) and plan.strategy.engine == "torch":
        why = "each device loads the model whole before it is sharded, unless accelerate starts it"
        yield lost(plan, "weights", why, "memory")
    if plan.strategy.allocator != _ALLOCATOR:
        value = plan.strategy.allocator or "none"
        why = f"its launcher sets {_ALLOCATOR}, unless OPTIM_TORCH=0"
        yield Lost(field="allocator", value=value, why=why, changes="memory")


def _of_adapter(plan: Plan, adapter: Adapter) -> Iterator[Lost]:
    job = plan.job
    if adapter.base not in BITSANDBYTES and half_type(job) != "bfloat16":
        why = "the base is held in the type of its checkpoint, which is bfloat16 of most models"
        yield lost(plan, "adapter", why, "mathematics")
    if job.precision == "bf16" and adapter.dtype != "fp32":
        why = "PEFT holds adapters in fp32 beside a base of 16 bits"
        yield lost(plan, "adapter", why, "mathematics")
    if job.precision in {"fp32", "tf32"}:
        yield lost(plan, "precision", "the base computes in the type that it is held in")
    if adapter.upcast == "all":
        yield lost(plan, "adapter", "norms alone of the base are held in fp32", "memory")
    if _has_checkpoints(plan) != adapter.input_requires_grad:
        why = "the first block's input takes a gradient where blocks are recomputed, and only there"
        yield lost(plan, "adapter", why, "memory")
