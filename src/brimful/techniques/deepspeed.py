"""What DeepSpeed is not given: its engine's JSON has no words for it. No torch."""

import math
from collections.abc import Iterator

from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job, Method, Precision, Task
from brimful.values.strategy import Strategy, default_accumulate, num_micro_batches

DEEPSPEED_OFFLOADS = ("none", "optimizer", "parameters")
"""What DeepSpeed keeps on the host, of all blocks or of none."""
DEEPSPEED_PRECISIONS: tuple[Precision, ...] = (
    "fp32", "tf32", "bf16-mixed", "bf16-master", "fp16-master",
)  # fmt: skip
AS_DEEPSPEED: dict[Precision, Precision] = {
    "bf16-mixed": "bf16-master", "fp16-mixed": "fp16-master",
}  # fmt: skip
"""What 16 bits are in its JSON, of a program that has autocast without it."""
DEEPSPEED_TASKS: tuple[Task, ...] = (
    "causal-lm", "chat", "masked-lm", "seq2seq", "sequence-classification",
)  # fmt: skip
DEEPSPEED_SCALING = (2.0, 0.5)
"""By what its loss scale grows and shrinks."""

_BY_ITS_OWN_CODE: dict[Method, str] = {
    "lora": "brimful simulate --for deepspeed runs it by its own code; "
}
"""What our loop around its engine lacks, and the program that is exported has."""


def deepspeed_precision(precision: Precision) -> Precision:
    """Return the recipe that DeepSpeed's JSON says of a type: its 16 bits have master weights."""
    if precision in DEEPSPEED_PRECISIONS:
        return precision
    return "fp16-master" if precision.startswith("fp16") else "bf16-master"


def refused_by_deepspeed(job: Job, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield what of a job DeepSpeed is not given, and what to use instead."""
    zero = strategy.zero
    yield from _refused_types(job)
    if not OPTIMIZERS[job.optimizer].deepspeed_engine:
        flat = [rule.name for rule in OPTIMIZERS.values() if rule.deepspeed_engine]
        why = "whose blocks are not those of flattened parameters"
        yield f"optimizer={job.optimizer}, {why},", f"use {' or '.join(flat)}"
    if job.task not in DEEPSPEED_TASKS:
        yield f"task={job.task}", f"use {' or '.join(DEEPSPEED_TASKS)}"
    if job.method != "full":
        yield f"method={job.method}", f"{_BY_ITS_OWN_CODE.get(job.method, '')}use method=full"
    for name in ("dp_replicate", "tp", "pp", "ep"):
        if getattr(strategy, name) > 1:
            yield f"{name}={getattr(strategy, name)}", f"use {name}=1 and more dp_shard"
    if zero == 0:
        yield "zero=0", "use zero 1 to 3"
    if strategy.offload not in DEEPSPEED_OFFLOADS:
        yield f"offload={strategy.offload}", f"use {' or '.join(DEEPSPEED_OFFLOADS)}"
    if strategy.offload == "parameters" and zero != 3:  # noqa: PLR2004 - ZeRO-3
        yield f"offload=parameters with zero={zero}, which holds them whole,", "use zero=3"
    fits = default_accumulate(strategy.engine, zero)
    if strategy.accumulate != fits and num_micro_batches(job, strategy) > 1:
        yield f"accumulate={strategy.accumulate} with zero={zero}", f"use accumulate={fits}"
    yield from _refused_updates(job, strategy)


def _refused_types(job: Job) -> Iterator[tuple[str, str]]:
    if job.precision not in DEEPSPEED_PRECISIONS:
        yield f"precision={job.precision}", f"use {' or '.join(DEEPSPEED_PRECISIONS)}"
    if job.keep_fp32:
        yield f"keep_fp32={','.join(job.keep_fp32)}", "leave it out"


def _refused_updates(job: Job, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield what its JSON cannot say of an update: its loss scale is of powers of two."""
    if strategy.optimizer_in_backward:
        yield "optimizer_in_backward", "leave it out"
    scale = job.loss_scale
    if scale is None:
        return
    if (scale.growth_factor, scale.backoff_factor) != DEEPSPEED_SCALING:
        both = f"growth_factor={scale.growth_factor} and backoff_factor={scale.backoff_factor}"
        yield both, "use {} and {}".format(*DEEPSPEED_SCALING)
    if scale.initial_scale < 1 or not math.log2(scale.initial_scale).is_integer():
        yield f"initial_scale={scale.initial_scale}", "use a power of two, 1 or more"
