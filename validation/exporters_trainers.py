"""What a plan means in the words of programs on top of transformers' Trainer."""

from typing import Any

from exporters_plans import AC

from brimful.export.adapters import model_name
from brimful.values.plan import Plan
from brimful.values.strategy import gathers, num_micro_batches

_BITS = {"nf4": 4, "nf4-double": 4, "llm-int8": 8}


def meant_trl(plan: Plan) -> dict[str, Any]:
    """Return what ``trl sft`` is to read."""
    return _of_a_trainer(plan)


def meant_axolotl(plan: Plan) -> dict[str, Any]:
    """Return what ``axolotl train`` is to read, which has a switch of pure bf16 too."""
    return {**_of_a_trainer(plan), "bf16": plan.job.precision.startswith("bf16")}


def meant_llama_factory(plan: Plan) -> dict[str, Any]:
    """Return what ``llamafactory-cli train`` is to read."""
    stage = "sft" if plan.job.packing == "documents" else "pt"
    return {**_of_a_trainer(plan), "stage": stage}


def _of_a_trainer(plan: Plan) -> dict[str, Any]:
    job, strategy, adapter = plan.job, plan.strategy, plan.job.adapter
    is_deep = strategy.engine == "deepspeed" or strategy.zero == 1
    return {
        "model": model_name(job),
        "length": job.seq_len,
        "max_steps": job.num_steps,
        "micro_batch": strategy.micro_batch,
        "steps": num_micro_batches(job, strategy),
        "lr": job.learning_rate,
        "betas": [job.beta1, job.beta2],
        "clip": job.clip,
        "bf16": job.precision.startswith("bf16-"),  # of pure bf16 the Trainer knows nothing
        "fp16": job.precision.startswith("fp16"),
        "seed": job.seed,
        "fsdp": gathers(strategy) and not is_deep,
        "rank": 0 if adapter is None else adapter.rank,
        "bits": 16 if adapter is None else _BITS.get(adapter.base, 16),
        "checkpointing": getattr(strategy, AC) != "none",
    }
