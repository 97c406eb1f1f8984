"""The JSON that ``deepspeed.initialize(config=...)`` and ``deepspeed --deepspeed_config`` take.

ZeRO, batches and types are those of ``build.deepspeed.config``, which our own engine is given; what
that engine does itself stands here too: the optimizer, the learning rate, autocast. JSON has no
comments, so that the peak and what is lost stand beside it.

Source: ``deepspeed/runtime/config.py``, ``lr_schedules.py``, ``torch_autocast.py`` and
``activation_checkpointing/config.py`` of DeepSpeed 0.19.8.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec

from brimful.build.deepspeed.config import deepspeed_config
from brimful.export.given import Exported, Given
from brimful.export.lost import Lost, lost, refuse, split_degrees, unsaid
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job, LossScale, Precision
from brimful.values.plan import Plan
from brimful.values.strategy import Accumulate, Strategy, default_accumulate, num_checkpointed

TO = "deepspeed"
AUTOCAST: dict[Precision, str] = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}
SCHEDULERS = {"cosine": "WarmupCosineLR", "linear": "WarmupDecayLR", "constant": "WarmupLR"}
COSINE_ENDS_AT = 0.1
"""Share of the peak; tested equal to the trainer's."""
SCALER = LossScale(
    initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
"""What ``torch.amp.GradScaler`` has where nobody says; DeepSpeed's autocast makes it so."""
_NEAREST: dict[Precision, Precision] = {
    "bf16": "bf16-master", "bf16-mixed": "fp32", "fp16-mixed": "fp32",
}  # fmt: skip
"""As what the section on types is written: autocast beside fp32, masters where there are none."""
_SAID = (
    "global_batch", "micro_batch", "clip", "zero", "precision", "optimizer", "beta1", "beta2",
    "epsilon", "learning_rate", "weight_decay", "schedule", "warmup_steps", "num_steps",
    "loss_scale", "dp_replicate", "dp_shard", "offload", "engine",
    "engine_settings",
)  # fmt: skip


def text(plan: Plan, given: Given) -> Exported:
    """Return the JSON, and what it does not say."""
    del given
    content = config(plan)
    return Exported(lambda: json.dumps(content, indent=2) + "\n", losses(plan), content)


def config(plan: Plan) -> dict[str, Any]:
    """Return the JSON's content.

    Raises UnsupportedError: DeepSpeed would train something else.
    """
    job, strategy = plan.job, plan.strategy
    also = [*split_degrees(strategy, "tp", "pp"), *_refused_scale(job)]
    refuse(plan, TO, [*also, *_refused_offload(strategy, job)])
    typed = msgspec.structs.replace(job, precision=_NEAREST.get(job.precision, job.precision))
    content = deepspeed_config(typed, _as_deepspeed(job, strategy))
    if job.precision in AUTOCAST:
        content["torch_autocast"] = {"enabled": True, "dtype": AUTOCAST[job.precision]}
    if OPTIMIZERS[job.optimizer].deepspeed:
        content["optimizer"] = _optimizer(job)
        content |= _scheduler(job)
    blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    if blocks:
        content["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "number_checkpoints": blocks,
        }
    return content


def _as_deepspeed(job: Job, strategy: Strategy) -> Strategy:
    """Spell offload as DeepSpeed has it: of all parameters, or of none."""
    kinds = {part.split(":")[0] for part in strategy.offload.split(",")}
    offload = next((kind for kind in ("parameters", "optimizer") if kind in kinds), "none")
    if offload == "parameters" and not _parts_parameters(strategy):
        offload = "optimizer"
    del job
    return msgspec.structs.replace(strategy, offload=offload)


def _parts_parameters(strategy: Strategy) -> bool:
    return strategy.zero == 3  # noqa: PLR2004 - ZeRO-3


def _refused_offload(strategy: Strategy, job: Job) -> Iterator[tuple[str, str]]:
    away = _as_deepspeed(job, strategy).offload
    if away != "none" and strategy.zero == 0:
        yield f"offload={strategy.offload} with zero=0", "plan with --zero 1 on several devices"


def _refused_scale(job: Job) -> Iterator[tuple[str, str]]:
    scale = job.loss_scale
    if scale is None or job.precision in AUTOCAST:
        return
    factors = (scale.growth_factor, scale.backoff_factor)
    if factors != (SCALER.growth_factor, SCALER.backoff_factor):
        yield f"growth_factor={factors[0]:g} and backoff_factor={factors[1]:g}", "use 2 and 0.5"
    if scale.initial_scale < 1 or not math.log2(scale.initial_scale).is_integer():
        yield f"initial_scale={scale.initial_scale:g}", "use a power of two, 1 or more"


def _optimizer(job: Job) -> dict[str, Any]:
    rates: dict[str, Any] = {"lr": job.learning_rate, "weight_decay": job.weight_decay}
    rule = OPTIMIZERS[job.optimizer]
    assert rule.deepspeed is not None, "left to the program"
    moments: dict[str, Any] = {"momentum": job.beta1}
    if not rule.is_momentum:
        moments = {"betas": [job.beta1, job.beta2], "eps": job.epsilon, "torch_adam": True}
    return {"type": rule.deepspeed.name, "params": {**rates, **moments}}


def _scheduler(job: Job) -> dict[str, Any]:
    if job.schedule == "constant" and not job.warmup_steps:
        return {}
    params: dict[str, Any] = {
        "warmup_num_steps": max(1, job.warmup_steps),
        "warmup_type": "linear",
    }
    if job.schedule != "constant":
        params["total_num_steps"] = job.num_steps
    if job.schedule == "cosine":
        params |= {"warmup_min_ratio": 0.0, "cos_min_ratio": COSINE_ENDS_AT}
    else:
        params |= {"warmup_min_lr": 0.0, "warmup_max_lr": job.learning_rate}
    return {"scheduler": {"type": SCHEDULERS[job.schedule], "params": params}}


def losses(plan: Plan) -> tuple[Lost, ...]:
    """List what the JSON does not say, or says in part."""
    said = set(_SAID)
    if not OPTIMIZERS[plan.job.optimizer].deepspeed:
        said -= {"optimizer", "beta1", "beta2", "epsilon", "learning_rate", "weight_decay"}
        said -= {"schedule", "warmup_steps"}
    if plan.job.schedule == "constant":
        said -= {"num_steps"}
    if plan.strategy.accumulate == reduces(plan.strategy):
        said |= {"accumulate"}
    whys = {
        "accumulate": f"DeepSpeed does {reduces(plan.strategy)}",
        "optimizer": "the program makes it and hands it to deepspeed.initialize",
        "activation_checkpointing": "number_checkpoints says of how many blocks; the program's "
        "model does it",
    }
    return (*unsaid(plan, said, whys), *_in_part(plan))


def reduces(strategy: Strategy) -> Accumulate:
    """Return what DeepSpeed does with gradients between micro-batches."""
    return "hold" if strategy.zero == 0 else default_accumulate("deepspeed", strategy.zero)


def _in_part(plan: Plan) -> Iterator[Lost]:
    job, strategy = plan.job, plan.strategy
    is_said = OPTIMIZERS[job.optimizer].deepspeed is not None
    if is_said and job.weight_decay:
        yield lost(plan, "weight_decay", "on norms and biases too, unless the program's parameter "
                   "groups say 0 there")  # fmt: skip
    if "scheduler" in _scheduler(job) and is_said:
        yield lost(plan, "schedule", "its warm-up begins at 0 and takes 2 steps or more, so that "
                   "every step has an earlier one's rate")  # fmt: skip
    if job.precision == "bf16":
        yield lost(plan, "precision", "DeepSpeed's bf16 has fp32 masters: bf16-master")
    if job.precision == "tf32":
        yield lost(plan, "precision", "the program sets torch.backends.cuda.matmul.allow_tf32")
    if job.precision == "fp16-mixed" and job.loss_scale != SCALER:
        yield lost(plan, "loss_scale", "with autocast it is torch's default: 65536, x 2 after 2000 "
                   "steps, x 0.5")  # fmt: skip
    if strategy.zero and strategy.dp_replicate > 1:
        yield lost(plan, "dp_replicate", "it shards over all devices, without groups")
    if strategy.zero in {2, 3} and job.precision in AUTOCAST:
        yield lost(plan, "precision", "gradients of linear layers are reduced in "
                   f"{AUTOCAST[job.precision]}, not fp32")  # fmt: skip
    if strategy.offload not in {"none", _as_deepspeed(job, strategy).offload}:
        yield lost(plan, "offload", "it keeps all parameters on the host or none, with stage 3 "
                   "only, and no activations of chosen blocks")  # fmt: skip
