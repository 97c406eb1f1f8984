"""Switches that do not go with one another, or were not compared beside one another. No torch."""

from collections.abc import Iterator

from brimful.errors import UnsupportedError
from brimful.techniques.fused_kernels import beside
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.parallel.stages import SPLIT_BACKWARD
from brimful.values.job import PREFERENCE, QUANTIZED, Job, Task
from brimful.values.strategy import (
    COMPILED,
    Strategy,
    default_reference,
    gathers,
    gathers_alone,
    is_selective,
    what_is_away,
)

COMPILED_TASKS: tuple[Task, ...] = ("causal-lm", "chat", "masked-lm", "sequence-classification")
COMPILED_METHODS = ("full", "lora", "qlora")
"""Tasks and methods whose models' blocks may be compiled."""
UNCOMPILED_BASES = QUANTIZED - {"nf4", "nf4-double"}


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
    """Refuse what is compiled beside what was not compared with a run, or cannot be."""
    if strategy.compile == "none":
        return
    base = "same" if job.adapter is None else job.adapter.base
    beside = {
        f"task={job.task}": job.task not in COMPILED_TASKS,
        f"method={job.method}": job.method not in COMPILED_METHODS,
        f"base={base}": base in UNCOMPILED_BASES,
        f"attention={strategy.attention}": strategy.attention == "varlen",
        f"packing={job.packing}": job.packing == "documents" and strategy.attention != "flex",
        f"router_aux_loss={job.router_aux_loss}": bool(job.router_aux_loss),
        f"router_z_loss={job.router_z_loss}": bool(job.router_z_loss),
        **_beside_plain(strategy),
        "optimizer_in_backward": False,  # of each parameter, as soon as a graph has its gradient
        f"offload={strategy.offload}": not _is_away_beside(job, strategy),
    }
    for what, is_asked in beside.items():
        if is_asked:
            raise UnsupportedError(
                f"compile={strategy.compile} with {what} is not run by this version; use "
                f"compile=none",
                nearest={"compile": "none"},
            )
    _check_whole(strategy)
    if strategy.tp > 1 and "loss" in COMPILED[strategy.compile]:
        raise UnsupportedError(
            f"compile={strategy.compile} with tp={strategy.tp} is not run by this version, which "
            f"did not compare peaks of a compiled loss of cut logits; use compile=blocks or none",
            nearest={"compile": "none"},  # of a file: what stands in for it is said to be eager
        )
    is_split = strategy.pp > 1 and strategy.pp_schedule in SPLIT_BACKWARD
    if is_split and "blocks" in COMPILED[strategy.compile]:
        raise UnsupportedError(
            f"compile={strategy.compile} with pp_schedule={strategy.pp_schedule} is not run: torch "
            f"goes backward through a block twice, and a compiled one gives its buffers away the "
            f"first time; use pp_schedule=1f1b or interleaved",
            nearest={"pp_schedule": "interleaved"},
        )


def _is_away_beside(job: Job, strategy: Strategy) -> bool:
    """Whether what is on the host is nothing that compiled code reads, or what blocks keep."""
    away = what_is_away(job, strategy)
    keeps = away.activations and "body" in COMPILED[strategy.compile]
    return not (away.parameters or keeps)


def _check_whole(strategy: Strategy) -> None:
    """Refuse to compile a whole model where its blocks are not called as one."""
    why = {
        f"zero={strategy.zero}": "are gathered one by one" if gathers(strategy) else "",
        f"tp={strategy.tp}": "are given plain pieces of what is cut" if strategy.tp > 1 else "",
        f"ep={strategy.ep}": "are cut where rows are sent to experts" if strategy.ep > 1 else "",
        f"pp={strategy.pp}": "are of several devices" if strategy.pp > 1 else "",
    }
    for what, of_blocks in why.items():
        if strategy.compile == "model" and of_blocks:
            raise UnsupportedError(
                f"compile=model with {what} is not run by this version, as blocks {of_blocks}; use "
                f"compile=blocks+loss",
                nearest={"compile": "blocks+loss"},
            )


def check_fused(job: Job, strategy: Strategy) -> None:
    """Refuse Liger's kernels beside what would make them wrong, or was not compared."""
    if strategy.fused_kernels != "liger":
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
        **_parted(strategy),
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
    }


def _parted(strategy: Strategy) -> dict[str, bool]:
    """Say along which axes a model is parted among devices."""
    return {
        f"{name}={getattr(strategy, name)}": getattr(strategy, name) > 1
        for name in ("tp", "ep", "pp")
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
