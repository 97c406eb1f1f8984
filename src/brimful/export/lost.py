"""What a target does not say of a plan, and what that changes.

A target names the fields that it says; every other field that asks for something is lost and is
listed, so that a field that is new is never dropped in silence.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from textwrap import wrap
from typing import Any, Literal

import msgspec

from brimful.errors import UnsupportedError
from brimful.techniques.dropout import drops, rates
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS, whole_of
from brimful.values.job import FP8, PREFERENCE, QAT, QUANTIZED, Job
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy, data_parallel, num_micro_batches, what_is_away

BITSANDBYTES = frozenset({"nf4", "nf4-double", "llm-int8"})
"""Bases that transformers loads by bitsandbytes, and so do programs on top of it."""
Changes = Literal["mathematics", "memory", "speed"]
_WIDTH = 96


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a plan that a target does not take, or takes in part.

    Attributes:
        field: Of the job or the strategy.
        value: What the plan says, as people type it.
        why: What the target does instead, or what is left to the user.
        changes: What is another thing where nobody does it: what is learnt, how much memory it
            takes (and so perhaps its speed), or its speed only.
    """

    field: str
    value: str
    why: str
    changes: Changes


_NOTHING: dict[str, tuple[object, ...]] = {
    "adapter": (None,),
    "method": ("full",),
    "loss_scale": (None,),
    "keep_fp32": ((),),
    "router_aux_loss": (0.0,),
    "router_z_loss": (0.0,),
    "quantization": (None,),
    "preference": (None,),
    "warmup_steps": (0,),
    "weight_decay": (0.0,),
    "clip": (0.0,),
    "activation_checkpointing": ("none", "full:0", "selective:0"),
    "loss_chunks": (1,),
    "zero": (0,),
    "dp_replicate": (1,),
    "dp_shard": (1,),
    "tp": (1,),
    "ep": (1,),
    "pp": (1,),
    "reference": ("none",),
    "engine": ("torch",),
    "engine_settings": ("",),
    "offload": ("none",),
    "optimizer_in_backward": (False,),
    "compile": ("none",),
    "fsdp": (2,),
    "fused_kernels": ("none", "torch"),
    "allocator": ("",),
}
"""Values that ask for nothing."""
_PIPELINE = ("pp_schedule", "stages_per_device", "stage_blocks")
_SPEED = frozenset({"attention", "engine", "pp_schedule"})
"""Fields of a strategy that change speed where memory is as it was, or nearly."""
_WHY = {
    "model": "the program loads it",
    "weights": "the program loads them",
    "task": "the program computes the loss",
    "packing": "the program packs the rows",
    "seq_len": "the program cuts the rows",
    "global_batch": "the program's data loader and accumulation",
    "micro_batch": "the program's data loader",
    "num_steps": "the program counts them",
    "seed": "the program sets it",
    "dropout": "its model drops as its configuration says, and takes more: --dropout model "
    "plans that",
    "adapter": "the program makes it, by PEFT with these values",
    "method": "the program makes the adapters, by PEFT",
    "attention": "attn_implementation of the program's model",
    "loss_chunks": "logits and loss are computed whole",
    "optimizer_in_backward": "updates come after the backward pass",
    "compile": "the program calls torch.compile, of each block before FSDP wraps it",
    "fsdp": "parameters are sharded in another way than FSDP1's",
    "fused_kernels": "the program applies them, by liger_kernel.transformers",
    "keep_fp32": "all modules are held alike",
    "activation_checkpointing": "the program switches it on",
    "ep": "experts are not parted",
    "allocator": "PYTORCH_CUDA_ALLOC_CONF in the environment of every process",
}
_OTHERWISE = "the target has no such switch"


def unsaid(plan: Plan, said: Iterable[str], whys: Mapping[str, str]) -> tuple[Lost, ...]:
    """List what asks for something and is not said, the job's fields first.

    ``said``: fields of the job and the strategy that the target says in full. ``whys``: what
    happens instead where the target has a sentence of its own.
    """
    known = frozenset(said)
    return tuple(
        Lost(
            field=field,
            value=spell(value),
            why=whys.get(field) or _WHY.get(field, _OTHERWISE),
            changes=changes_of(field),
        )
        for field, value in _asked(plan)
        if field not in known
    )


def changes_of(field: str) -> Changes:
    """Return what a field changes: all of a job is mathematics."""
    if field in Job.__struct_fields__:
        return "mathematics"
    return "speed" if field in _SPEED else "memory"


def lost(plan: Plan, field: str, why: str, changes: Changes | None = None) -> Lost:
    """Say that a field is taken in part."""
    holder = plan.job if field in Job.__struct_fields__ else plan.strategy
    value = spell(getattr(holder, field))
    return Lost(field=field, value=value, why=why, changes=changes or changes_of(field))


def spell(value: object) -> str:
    """Write a value on one line."""
    if isinstance(value, msgspec.Struct):
        name = getattr(value, "name", None)
        if isinstance(name, str):
            return name
        pairs = msgspec.structs.asdict(value).items()
        return " ".join(f"{key}={spell(each)}" for key, each in pairs)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _asked(plan: Plan) -> Iterator[tuple[str, Any]]:
    idle = _idle(plan)
    for holder in (plan.job, plan.strategy):
        for field in holder.__struct_fields__:
            value = getattr(holder, field)
            if value not in _NOTHING.get(field, ()) and field not in idle:
                yield field, value


def _idle(plan: Plan) -> frozenset[str]:
    """Return fields that do nothing beside the others; ``allow`` only permits."""
    job, strategy = plan.job, plan.strategy
    idle = ["allow"]
    if drops(job) or job.task == PREFERENCE or not rates(job):  # as who trains it does
        idle.append("dropout")
    if strategy.pp == 1:
        idle += _PIPELINE
    if num_micro_batches(job, strategy) == 1 or data_parallel(strategy) == 1:
        idle.append("accumulate")
    idle += {"beta1", "beta2", "epsilon"} - OPTIMIZERS[job.optimizer].rates
    return frozenset(idle)


def refuse(
    plan: Plan,
    to: str,
    also: Iterable[tuple[str, str]] = (),
    *,
    bases: Container[str] = (),
    tasks: Container[str] = (),
) -> None:
    """Refuse what would become another training where the target leaves it out.

    ``also``: what this target cannot be given besides, each with what to use instead. ``tasks``:
    tasks that it computes the loss of, though most targets do not.
    """
    every = (*_refused(plan.job, bases, tasks), *_refused_base(plan), *also)
    refused = next(iter(every), None)
    if refused is not None:
        what, fix = refused
        raise UnsupportedError(
            f"{what} cannot be said to {to}, which would run something else; {fix}, or export "
            f"--to {_loads_it(plan.job, bases)}torchrun, which runs the plan as it is"
        )


def _refused_base(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield that blocks bring their frozen base from the host, as no other loop than ours does."""
    if what_is_away(plan.job, plan.strategy).frozen:
        yield f"offload={plan.strategy.offload} of adapters' frozen base", "use offload=none"


def _loads_it(job: Job, bases: Container[str]) -> str:
    """Name the targets that load a quantised base, where another does not."""
    adapter = job.adapter
    is_loaded = adapter is not None and adapter.base in BITSANDBYTES and adapter.base not in bases
    return "trl, axolotl or llama-factory, which load it, or to " if is_loaded else ""


def _refused(job: Job, bases: Container[str], tasks: Container[str]) -> Iterator[tuple[str, str]]:
    adapter = job.adapter
    if adapter is not None and adapter.base in QUANTIZED and adapter.base not in bases:
        yield f"base={adapter.base}", "use base=bf16"
    if job.method == QAT:
        yield f"method={QAT}", "use method=full"
    if job.precision in {FP8, "fp16"}:
        yield f"precision={job.precision}", "use precision=bf16-mixed"
    if job.task in {PREFERENCE, "module"} and job.task not in tasks:
        yield f"task={job.task}", "use task=causal-lm"
    if (rule := OPTIMIZERS[job.optimizer]).compiled:
        yield f"optimizer={rule.name}", f"use optimizer={whole_of(rule) or DEFAULT}"


def split_degrees(strategy: Strategy, *names: str) -> Iterator[tuple[str, str]]:
    """Yield degrees above 1 that a target cannot be given; without them batches are others."""
    for name in names:
        if getattr(strategy, name) > 1:
            yield f"{name}={getattr(strategy, name)}", f"plan with --{name} 1"


def lost_lines(found: Iterable[Lost]) -> list[str]:
    """Write what is lost as lines of text, what changes the mathematics first."""
    order = ("mathematics", "memory", "speed")
    lines = []
    for each in sorted(found, key=lambda one: order.index(one.changes)):
        text = f"not said here ({each.changes}): {each.field}={each.value}: {each.why}"
        lines += wrap(text, _WIDTH, subsequent_indent="  ")
    return lines
