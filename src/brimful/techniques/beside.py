"""Switches that do not go with one another, or were not compared beside one another. No torch."""

from collections.abc import Iterator

from brimful.errors import UnsupportedError
from brimful.techniques.fused_kernels import beside
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.values.job import PREFERENCE, QUANTIZED, Job, Task
from brimful.values.strategy import (
    Strategy,
    default_reference,
    gathers,
    gathers_alone,
    is_selective,
)

COMPILED_TASKS: tuple[Task, ...] = ("causal-lm", "chat")
COMPILED_METHODS = ("full", "lora")
"""Tasks and methods whose models' blocks may be compiled."""


def check_router_losses(job: Job, strategy: Strategy) -> None:
    """Refuse losses of routers where a device does not see whole micro-batches, or another runs."""
    wanted = [name for name in ("router_aux_loss", "router_z_loss") if getattr(job, name)]
    for field, usual in (("tp", 1), ("pp", 1), ("engine", "torch")):
        value = getattr(strategy, field)
        if wanted and value != usual:
            raise UnsupportedError(
                f"{wanted[0]}={getattr(job, wanted[0])} with {field}={value} is not run by this "
                f"version; use {field}={usual}",
                nearest={field: usual},
            )


def check_alone(strategy: Strategy) -> None:
    """Refuse FSDP2 on one device beside what moves parameters or updates them in another way."""
    beside = {
        f"offload={strategy.offload}": strategy.offload != NO_OFFLOAD,
        "optimizer_in_backward": strategy.optimizer_in_backward,
    }
    for what, is_asked in beside.items():
        if is_asked and gathers_alone(strategy):
            raise UnsupportedError(
                f"zero={strategy.zero} on one device with {what} is not run by this version; use "
                f"zero=0",
                nearest={"zero": 0},
            )


def check_compiled(job: Job, strategy: Strategy) -> None:
    """Refuse compiled blocks beside what was not compared with a run."""
    if strategy.compile == "none":
        return
    base = "same" if job.adapter is None else job.adapter.base
    beside = {
        f"task={job.task}": job.task not in COMPILED_TASKS,
        f"method={job.method}": job.method not in COMPILED_METHODS,
        f"base={base}": base in QUANTIZED,
        f"attention={strategy.attention}": strategy.attention in {"flex", "varlen"},
        f"packing={job.packing}": job.packing == "documents",
        f"router_aux_loss={job.router_aux_loss}": bool(job.router_aux_loss),
        f"router_z_loss={job.router_z_loss}": bool(job.router_z_loss),
        **_beside_plain(strategy),
    }
    for what, is_asked in beside.items():
        if is_asked:
            raise UnsupportedError(
                f"compile={strategy.compile} with {what} is not run by this version; use "
                f"compile=none",
                nearest={"compile": "none"},
            )
    if strategy.compile == "model" and gathers(strategy):
        raise UnsupportedError(
            f"compile=model with zero={strategy.zero} is not run by this version, as blocks are "
            f"gathered one by one; use compile=blocks+loss",
            nearest={"compile": "blocks+loss"},
        )


def check_fused(job: Job, strategy: Strategy) -> None:
    """Refuse Liger's kernels beside what would make them wrong, or was not compared."""
    if strategy.fused_kernels == "none":
        return
    refused = next(iter((*beside(job), *_beside_fused(strategy))), None)
    if refused is not None:
        what, why = refused
        raise UnsupportedError(
            f"fused_kernels={strategy.fused_kernels} with {what} is not run by this version, "
            f"{why}; use fused_kernels=none",
            nearest={"fused_kernels": "none"},
        )


def _beside_fused(strategy: Strategy) -> Iterator[tuple[str, str]]:
    if is_selective(strategy):
        yield (
            f"activation_checkpointing={strategy.activation_checkpointing}",
            "because these checkpoints keep results of products that its rotary kernel writes over",
        )
    if strategy.loss_chunks > 1:
        yield (
            f"loss_chunks={strategy.loss_chunks}",
            "because its fused loss cuts tokens into chunks of its own",
        )
    asked = {
        f"attention={strategy.attention}": strategy.attention == "flex",
        f"compile={strategy.compile}": strategy.compile != "none",
        **_beside_plain(strategy),
    }
    elsewhere = [f"engine={strategy.engine}"]  # where parameters are updated no kernel sees
    if strategy.engine != "torch" or strategy.offload == "optimizer":
        elsewhere.append(f"offload={strategy.offload}")
    for what, is_asked in asked.items():
        if is_asked and what not in elsewhere:
            yield what, "which was not compared with the plain loop"


def _beside_plain(strategy: Strategy) -> dict[str, bool]:
    """Say which of the switches are on that a plain run of blocks has not."""
    return {
        f"engine={strategy.engine}": strategy.engine != "torch",
        f"zero={strategy.zero} on one device": gathers_alone(strategy),
        f"offload={strategy.offload}": strategy.offload != NO_OFFLOAD,
        "optimizer_in_backward": strategy.optimizer_in_backward,
        **{
            f"{name}={getattr(strategy, name)}": getattr(strategy, name) > 1
            for name in ("tp", "ep", "pp")
        },
    }


def check_pairs(job: Job, strategy: Strategy) -> None:
    """Refuse to cut a model of which there may be a second one, and to gather one from the host."""
    if job.task != PREFERENCE:
        return
    if strategy.tp > 1:
        raise UnsupportedError(
            f"task={PREFERENCE} with tp={strategy.tp} is not run by this version; use tp=1",
            nearest={"tp": 1},
        )
    if strategy.reference == "offloaded" and gathers(strategy):
        raise UnsupportedError(
            f"reference=offloaded with zero={strategy.zero} is not run by this version, which "
            f"shards a second model as it shards the first; use reference=resident, or zero=0",
            nearest={"reference": default_reference(job)},
        )
