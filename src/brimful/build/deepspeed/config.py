"""DeepSpeed's JSON, written from a job and a strategy. Knows no torch and no DeepSpeed.

Everything that changes a number or holds memory is spelt out, DeepSpeed's own defaults too: it
clips gradients at 1.0 where nobody says otherwise, and reduces in buckets of 500 million elements.
Optimizer and learning rate are not in it: they are Brimful's own (``engine``).

Source: ``deepspeed/runtime/config.py``, ``constants.py``, ``zero/config.py`` and
``precision_config.py`` of DeepSpeed 0.19.8.
"""

import math
from typing import Any

from brimful.techniques.deepspeed_settings import (
    DEEPSPEEDS,
    GATHERS_ALL,
    OF_STAGE_3,
    EngineSettings,
    parse_engine_settings,
)
from brimful.values.job import Job, Precision
from brimful.values.strategy import Strategy, num_micro_batches

Section = dict[str, Any]

HELD: dict[Precision, str] = {
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16-mixed": "fp32",
    "bf16-master": "bf16",
    "fp16-master": "fp16",
}
"""In which type a recipe holds parameters and gradients, and reduces: as the torch engine does."""
_PERSISTED_PER_WIDTH = 10
"""Parameters of at most this many times the width stay whole under ZeRO-3: norms and biases, whose
gathering is all latency. What Transformers writes for ``auto`` (``integrations/deepspeed.py``)."""
ALLGATHER_ELEMENTS = 500_000_000
"""DeepSpeed's default. Parameters are gathered in place, so that it holds no memory."""
_NEVER = 10**9
"""Steps between DeepSpeed's own reports; the run has its own."""


def deepspeed_config(job: Job, strategy: Strategy) -> Section:
    """Write the configuration that ``deepspeed.initialize`` is given.

    Args:
        job: What is trained; ``runnable.check_strategy`` has allowed it.
        strategy: How, with ``engine=deepspeed``.

    Returns:
        Plain values, ready for ``json.dumps``; counts are of elements, as DeepSpeed has them.
    """
    held = HELD[job.precision]
    return {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": strategy.micro_batch,
        "gradient_accumulation_steps": num_micro_batches(job, strategy),
        "gradient_clipping": job.clip,
        "zero_optimization": _zero(job, strategy),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # torch's own AdamW on the host: the same rule
        "bf16": _bf16(is_enabled=held == "bf16"),
        "fp16": _fp16(job, is_enabled=held == "fp16"),
        "torch_autocast": {"enabled": False},  # the forward enters autocast itself (``engine``)
        "data_types": {"grad_accum_dtype": held},
        "communication_data_type": held,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "gradient_allreduce_op": "mean",  # undone by the loss (``step``); ZeRO-3 knows no sum
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": False,
        "dump_state": False,
        "log_level": "warning",
    }


def engine_settings(job: Job, strategy: Strategy) -> EngineSettings:
    """Return how DeepSpeed's engine shards: as a strategy says, and else as is written here.

    Buckets are of the width squared, one matrix of attention, as Transformers writes for ``auto``.
    """
    bucket = job.model.hidden_size**2
    usual = DEEPSPEEDS._replace(
        overlap_comm=strategy.zero == GATHERS_ALL,
        reduce_bucket_size=bucket,
        stage3_prefetch_bucket_size=bucket,
        stage3_param_persistence_threshold=_PERSISTED_PER_WIDTH * job.model.hidden_size,
        stage3_max_reuse_distance=bucket,
    )
    return usual._replace(**parse_engine_settings(strategy.engine_settings))


def _zero(job: Job, strategy: Strategy) -> Section:
    settings = engine_settings(job, strategy)
    section: Section = {
        "stage": strategy.zero,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": settings.reduce_bucket_size,
        "allgather_partitions": True,
        "allgather_bucket_size": ALLGATHER_ELEMENTS,
        "overlap_comm": bool(settings.overlap_comm),
        "round_robin_gradients": False,
        "ignore_unused_parameters": True,
    }
    if strategy.offload != "none":
        section["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if strategy.offload == "parameters":
        section["offload_param"] = {"device": "cpu", "pin_memory": True}
    if strategy.zero == GATHERS_ALL:
        section |= {key: getattr(settings, key) for key in OF_STAGE_3}
    return section


def _bf16(*, is_enabled: bool) -> Section:
    if not is_enabled:
        return {"enabled": False}
    return {
        "enabled": True,
        "check_grad_overflow": True,
        "immediate_grad_update": False,
        "bf16_master_weights_and_grads": False,
        "bf16_optimizer_states": False,
    }


def _fp16(job: Job, *, is_enabled: bool) -> Section:
    scale = job.loss_scale
    if not is_enabled or scale is None:
        return {"enabled": False}
    return {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0,  # dynamic
        "initial_scale_power": round(math.log2(scale.initial_scale)),
        "loss_scale_window": scale.growth_interval,
        "hysteresis": 1,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
        "fp16_master_weights_and_grads": False,
    }
