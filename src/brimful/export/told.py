"""Which strategies a program can be told: asked of its exporter, which says what it loses.

A value that an exporter refuses, or lists as another memory, is not told. So a search for a program
leaves out what it could not be given, and nothing of that is written down twice.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from msgspec.structs import replace

from brimful.errors import UnsupportedError
from brimful.export import TARGETS, accelerate, axolotl, deepspeed, hf_trainer, llama_factory, trl
from brimful.export.given import Given
from brimful.hardware.cluster import Cluster
from brimful.values.job import PACKINGS, Job, Task
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import RECOMPUTES, Compile, Strategy

_GIVEN = Given(plan="plan.yaml", data="DATA", out="runs/first")
_PROBES: Mapping[str, tuple[Any, ...]] = {
    "activation_checkpointing": ("none", "full", *RECOMPUTES[1:], "full:1"),
    "loss_chunks": (1, 2, 4, 8, 16, 32),
    "fused_kernels": ("none", "liger"),
    "offload": ("none", "optimizer"),
    "optimizer_in_backward": (False, True),
    "compile": get_args(Compile),
}
"""Values of each field that show what it can be told, the plainest first."""
_OF_MANY: Mapping[str, tuple[Any, ...]] = {
    "zero": (0, 1, 2, 3),
    "dp_replicate": (1, 2),
    "tp": (1, 2),
    "ep": (1, 2),
    "pp": (1, 2),
}
"""The same, of several devices."""
_BY_DEEPSPEED = frozenset({accelerate.TO, axolotl.TO, hf_trainer.TO, llama_factory.TO, trl.TO})
"""Targets that hand the first stage of ZeRO to DeepSpeed, which is a program of its own."""
_PART_OF_BLOCKS = "full:1"
BESIDE: Mapping[str, Mapping[str, frozenset[Any] | None]] = {
    deepspeed.TO: {"activation_checkpointing": frozenset({"none", "full"}), "accumulate": None},
}
"""What a target is not told and is done all the same: by the model that the program brings, which
recomputes all of its blocks or none, or in DeepSpeed's own way whatever a plan says (None)."""


class Asking(NamedTuple):
    """For which program a search is, and of what.

    Attributes:
        to: The target of ``export``.
        job: What is trained.
        cluster: On what.
        plainest: A strategy that every program can be told.
    """

    to: str
    job: Job
    cluster: Cluster
    plainest: Strategy


def check_told(asking: Asking) -> None:
    """Refuse a job that a program cannot be given whatever the strategy.

    Raises UnsupportedError: says what, and what to use instead.
    """
    TARGETS[asking.to](_plan(asking, asking.plainest), _GIVEN)


def plainer(job: Job) -> Job:
    """Return a job of the same model with the loss that every program can be told."""
    plain: Task = "causal-lm"
    return replace(job, task=plain, preference=None, packing=PACKINGS[plain][0])


def why_untold(asking: Asking, field: str, value: Any) -> str:
    """Say why a program cannot be told a value; empty: it can.

    ``value``: of that field, beside the plainest of the others.
    """
    beside = {"zero": 3} if field in {"dp_replicate", "ep", "tp"} else {}
    strategy = replace(asking.plainest, **{**beside, field: value})
    if strategy.zero == 1 and asking.to in _BY_DEEPSPEED:
        return "zero=1: DeepSpeed would shard it there, with buffers of its own"
    try:
        exported = TARGETS[asking.to](_plan(asking, strategy), _GIVEN)
    except UnsupportedError as error:
        return str(error).partition(" cannot be said to ")[0]
    if value in (BESIDE.get(asking.to, {}).get(field) or ()):
        return ""
    lost = (each for each in exported.lost if each.field == field and each.changes == "memory")
    return next((f"{each.field}={each.value}: {each.why}" for each in lost), "")


def fields(asking: Asking) -> Mapping[str, tuple[Any, ...]]:
    """Return what is asked of an exporter: fields of a strategy, each with values that show it."""
    return {**_PROBES, **(_OF_MANY if asking.cluster.num_devices > 1 else {})}


def narrowed(asking: Asking) -> dict[str, Any]:
    """Return what a search is told to stay within: values of fields that are not free."""
    return dict(_narrowed(asking))


def _narrowed(asking: Asking) -> Iterator[tuple[str, Any]]:
    for field, values in fields(asking).items():
        told = [value for value in values if not why_untold(asking, field, value)]
        if len(told) == len(values):
            continue
        told = [value for value in told if value != _PART_OF_BLOCKS] or [values[0]]
        if field == "dp_replicate":  # where nothing is sharded every device has a copy
            told = [1, asking.cluster.num_devices]
        yield field, told[0] if len(told) == 1 else told


def _plan(asking: Asking, strategy: Strategy) -> Plan:
    return Plan(
        schema=PLAN_SCHEMA,
        job=asking.job,
        cluster=asking.cluster,
        strategy=strategy,
        estimate=None,
    )
