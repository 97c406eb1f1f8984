"""Adapters and the model beside them, as programs on top of transformers and PEFT load them."""

from collections.abc import Container, Iterator
from typing import Any

from brimful.cost.recipes import RECIPES
from brimful.export.lost import Lost, lost
from brimful.export.rows import Rows, passes
from brimful.models.registry import registry
from brimful.values.job import ALL_LINEAR, Adapter, Job
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy

HUB = "https://huggingface.co/"
HALF_BYTES = 2
_ATTENTIONS = {"eager": "eager", "sdpa": "sdpa", "flex": "flex_attention"}


def model_name(plan: Plan) -> str:
    """Return what transformers loads: the plan's weights, else what was typed.

    Else where the model was published.
    """
    job = plan.job
    source = registry().get(job.model.name, {}).get("source", "")
    path = source.removeprefix(HUB).partition("/blob/")[0].partition("/raw/")[0]
    published = path if source.startswith(HUB) and path.count("/") == 1 else job.model.name
    return job.weights or plan.typed_model or published


def length(plan: Plan, epochs: str, rows: Rows | None) -> dict[str, int]:
    """Return how long a run is, as it was asked for; else once through the data.

    ``epochs``: what a program calls the passes over its data. ``rows``: what is in these; None:
    unknown.
    """
    if not plan.is_length_given:
        return {epochs: 1}
    found = passes(plan, rows)
    if found is None:
        return {"max_steps": plan.job.num_steps}
    return {epochs: found.epochs} if found.epochs else {"max_steps": found.steps}


def refused_job(job: Job, tasks: Container[str], named: str) -> Iterator[tuple[str, str]]:
    """Yield a task that a program has not, and an alpha that it cannot read, with what to use."""
    if job.task not in tasks:
        yield f"task={job.task}", f"use task={named}"
    if job.adapter is not None and job.adapter.alpha != int(job.adapter.alpha):
        yield f"alpha={job.adapter.alpha:g}", "use a whole number"


def half_type(job: Job) -> str:
    """Return the type in which the weights are held that are not quantised, as torch calls it."""
    adapter, kind = job.adapter, job.precision.partition("-")[0]
    named = {"bf16": "bfloat16", "fp16": "float16"}
    if adapter is not None and adapter.base != "same":
        return named.get(adapter.base, named.get(kind, "float32"))
    is_half = RECIPES[job.precision].parameter == HALF_BYTES
    return named.get(kind, "float32") if is_half else "float32"


def attention_name(strategy: Strategy) -> str:
    """Return how transformers calls what attends: of kernels of one choice their chooser."""
    return _ATTENTIONS.get(strategy.attention, "sdpa")


def attention_lost(plan: Plan) -> Iterator[Lost]:
    """Yield what that name does not say: which of its kernels ``sdpa`` takes."""
    if plan.strategy.attention not in _ATTENTIONS:
        yield lost(plan, "attention", "sdpa picks among its kernels by itself")


def targets(adapter: Adapter) -> Any:
    """Return which layers get an adapter, as PEFT takes it."""
    return ALL_LINEAR if ALL_LINEAR in adapter.targets else list(adapter.targets)
