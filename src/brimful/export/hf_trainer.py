"""The YAML that ``HfArgumentParser(TrainingArguments).parse_yaml_file`` reads.

Source: ``transformers/training_args.py`` and ``optimization.py`` of Transformers 5.23.0.
"""

from collections.abc import Container, Iterable, Iterator
from typing import Any

from brimful.export import deepspeed
from brimful.export.adapters import length
from brimful.export.given import Exported, Given, in_yaml
from brimful.export.lost import Lost, lost, refuse, split_degrees, unsaid
from brimful.techniques.offload import away_of
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS, Spelled
from brimful.techniques.parallel.flat import sharding_of
from brimful.values.job import Job
from brimful.values.plan import Plan
from brimful.values.strategy import (
    Strategy,
    gathers,
    is_flat,
    is_selective,
    num_checkpointed,
    num_micro_batches,
)

TO = "hf-trainer"
_SAID = (
    "global_batch", "micro_batch", "num_steps", "learning_rate", "weight_decay", "beta1", "beta2",
    "epsilon", "clip", "seed", "precision", "optimizer", "schedule", "warmup_steps",
    "zero", "dp_shard", "dp_replicate", "activation_checkpointing", "engine", "accumulate",
    "engine_settings", "fused_kernels", "fsdp",
)  # fmt: skip
_COSINE = {
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": deepspeed.COSINE_ENDS_AT},
}


def text(plan: Plan, given: Given) -> Exported:
    """Return the YAML, and what it does not say."""
    return in_yaml(plan, given, TO, config(plan, given), losses(plan))


def config(
    plan: Plan,
    given: Given,
    *,
    to: str = TO,
    bases: Container[str] = (),
    tasks: Container[str] = (),
) -> dict[str, Any]:
    """Return the YAML's content.

    ``to``: the target: the Trainer, or a program on top of it. ``tasks``: tasks that this program
    computes the loss of, though the Trainer does not. Raises UnsupportedError: the Trainer would
    train something else.
    """
    job, strategy = plan.job, plan.strategy
    also = [*split_degrees(strategy, "tp", "pp"), *_refused(plan)]
    refuse(plan, to, also, bases=bases, tasks=tasks)
    content: dict[str, Any] = {
        "output_dir": given.out,
        "use_cpu": plan.cluster.device.kernels != "cuda",
        **length(plan, "num_train_epochs", given.rows),
        "per_device_train_batch_size": strategy.micro_batch,
        "gradient_accumulation_steps": num_micro_batches(job, strategy),
        **rates(job, _COSINE),
        "bf16": job.precision.startswith("bf16-"),
        "fp16": job.precision.startswith("fp16-"),
        "seed": job.seed,
        "data_seed": job.seed,
        "logging_steps": 1,
        "remove_unused_columns": False,
        "report_to": "none",
        "accelerator_config": _accelerator(strategy),
    }
    if job.precision == "tf32":
        content["tf32"] = True
    if strategy.fused_kernels == "liger":
        content["use_liger_kernel"] = True
    return content | _memory(plan)


def _accelerator(strategy: Strategy) -> dict[str, Any]:
    """Return when gradients are reduced; else the Trainer holds them."""
    steps = {"sync_each_batch": strategy.accumulate == "reduce-each"}
    return {"gradient_accumulation_kwargs": steps}


def rates(
    job: Job,
    cosine: dict[str, Any],
    *,
    optimizer: str = "optim",
    schedule: str = "lr_scheduler_type",
) -> dict[str, Any]:
    """Return how weights are moved, by the names of these keys.

    ``cosine``: what says a cosine that ends above 0.
    """
    over_time = cosine if job.schedule == "cosine" else {schedule: job.schedule}
    if job.schedule == "constant" and job.warmup_steps:
        over_time = {schedule: "constant_with_warmup"}
    return {
        optimizer: _spelled(job).name,
        "learning_rate": job.learning_rate,
        "adam_beta1": job.beta1,
        "adam_beta2": job.beta2,
        "adam_epsilon": job.epsilon,
        "weight_decay": job.weight_decay,
        "max_grad_norm": job.clip,
        **over_time,
        "warmup_steps": job.warmup_steps,
    }


def _spelled(job: Job) -> Spelled:
    spelled = OPTIMIZERS[job.optimizer].transformers
    assert spelled is not None, "refused"
    return spelled


def _memory(plan: Plan) -> dict[str, Any]:
    """Return how it is spread: DeepSpeed's JSON, FSDP, or nothing."""
    strategy, layers = plan.strategy, plan.job.model.num_layers
    has_checkpoints = num_checkpointed(strategy, num_layers=layers) > 0
    if strategy.engine == "deepspeed" or strategy.zero == 1:
        spread: dict[str, Any] = {"deepspeed": _agreeing(deepspeed.config(plan))}
    elif gathers(strategy):
        own: dict[str, Any] = {
            "version": 2,
            "reshard_after_forward": strategy.zero == 3,  # noqa: PLR2004 - ZeRO-3
        }
        if is_flat(strategy):
            own = {
                "version": 1,
                "reshard_after_forward": sharding_of(strategy).lower(),
                "use_orig_params": True,
                "backward_prefetch": "BACKWARD_PRE",
            }
        fsdp = own | {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "activation_checkpointing": has_checkpoints,
            "cpu_offload": away_of(strategy.offload, num_layers=layers).optimizer,
            "state_dict_type": "SHARDED_STATE_DICT",
        }
        return {"fsdp": True, "fsdp_config": fsdp}
    else:
        spread = {}
    checkpoints = {"gradient_checkpointing": has_checkpoints}
    if has_checkpoints:
        checkpoints["gradient_checkpointing_kwargs"] = {"use_reentrant": False}  # type: ignore[assignment]
    return spread | checkpoints


def _agreeing(config: dict[str, Any]) -> dict[str, Any]:
    """Leave optimizer and schedule to the Trainer, which makes them by the fields above."""
    return {key: value for key, value in config.items() if key not in {"optimizer", "scheduler"}}


def _refused(plan: Plan) -> Iterator[tuple[str, str]]:
    job, by_deepspeed = plan.job, plan.strategy.engine == "deepspeed" or plan.strategy.zero == 1
    if OPTIMIZERS[job.optimizer].transformers is None:
        yield f"optimizer={job.optimizer}", f"use optimizer={DEFAULT}"
    if job.precision.endswith("-master") and not by_deepspeed:
        yield f"precision={job.precision} without DeepSpeed", "use precision=bf16-mixed"
    if by_deepspeed and (job.precision == "bf16" or job.precision.endswith("-mixed")):
        # The Trainer's bf16 switches on a recipe of DeepSpeed, which must say the same.
        yield f"precision={job.precision} with DeepSpeed", f"use {job.precision[:4]}-master"
    away = away_of(plan.strategy.offload, num_layers=job.model.num_layers)
    if away.optimizer and not by_deepspeed and not gathers(plan.strategy):
        yield f"offload={plan.strategy.offload} without FSDP", "use offload=none"
    if plan.strategy.zero and plan.strategy.dp_replicate > 1 and not by_deepspeed:
        yield f"dp_replicate={plan.strategy.dp_replicate} with FSDP", "use --to accelerate"


def losses(plan: Plan, also_said: Iterable[str] = ()) -> tuple[Lost, ...]:
    """List what the YAML does not say, or says in part.

    ``also_said``: fields that a program on top of the Trainer is told.
    """
    said = {*_SAID, *also_said}
    if plan.job.loss_scale == deepspeed.SCALER:
        said |= {"loss_scale"}
    if plan.strategy.engine == "deepspeed" or plan.strategy.zero == 1:
        said |= {"loss_scale", "offload"}
    elif plan.strategy.offload == "parameters":
        said |= {"offload"}
    whys = {
        "offload": "FSDP keeps parameters, gradients and state on the host, of all blocks or none",
        "loss_scale": "the Trainer's is torch's default: 65536, x 2 after 2000 steps, x 0.5",
        "task": "the program's model computes the loss",
    }
    return (*unsaid(plan, said, whys), *_in_part(plan))


def _in_part(plan: Plan) -> Iterator[Lost]:
    job, strategy = plan.job, plan.strategy
    if job.schedule == "cosine" or job.warmup_steps:
        yield lost(plan, "schedule", "its steps count from 0, so that the first has a rate of 0 "
                   "where there is a warm-up and every step has an earlier one's rate")  # fmt: skip
    if (spelled := _spelled(job)).lost:
        yield lost(plan, spelled.lost, spelled.why)
    if job.precision == "bf16" and job.adapter is None:
        yield lost(plan, "precision", "the program loads the model with dtype=torch.bfloat16")
    if gathers(strategy) and job.precision.endswith("-mixed"):
        yield lost(plan, "precision", "gradients are reduced in 16 bits, not fp32")
    blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    if blocks and (blocks < job.model.num_layers or is_selective(strategy)):
        yield lost(plan, "activation_checkpointing", "its switch recomputes every block in full")
