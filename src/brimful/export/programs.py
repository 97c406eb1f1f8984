"""A plan as the program that it is exported for runs it, on the pretend GPU.

What is exported is what is run: the same content, of the same function, with mock rows and a few
steps.
"""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from brimful.child_process import run_in_child
from brimful.cost.deepspeed_engine import fullest_rank
from brimful.cost.outside import num_groups
from brimful.errors import RunError, UnsupportedError
from brimful.export import TARGETS, deepspeed, hf_trainer, llama_factory, trl
from brimful.export.adapters import attention_name, half_type, model_name, targets
from brimful.export.given import Given
from brimful.export.lost import Lost
from brimful.export.told import BESIDE
from brimful.job import Adapter, Job
from brimful.plan import Plan
from brimful.programs import deepspeed as deepspeed_program
from brimful.programs import hf_trainer as trainer_program
from brimful.programs import llama_factory as factory_program
from brimful.programs import trl as trl_program
from brimful.programs.base import Program
from brimful.strategy import Strategy, is_selective, num_checkpointed

if TYPE_CHECKING:
    from brimful.search.budget import Budget
    from brimful.simulate.proof import Simulates, Trial

_GIVEN = Given(plan="plan.yaml", data="rows", out="out")
_LAUNCHED = frozenset({"dp_shard", "dp_replicate", "allocator"})
"""What a launcher decides, which is none here."""
_TASKS = frozenset({"causal-lm", "chat"})
"""For which the Trainer's script makes rows."""


def program_of(to: str, plan: Plan) -> Program:
    """Return what runs a plan as a target does.

    Args:
        to: The target of ``export``.
        plan: What is run.

    Raises:
        UnsupportedError: The target is not run here, or not for this plan.
        InputError: What it needs is not installed.
    """
    if to not in _RUN:
        known = ", ".join(_RUN)
        raise UnsupportedError(f"{to} itself is not run by this version (those that are: {known})")
    beside = _LAUNCHED | BESIDE.get(to, {}).keys()
    lost = next((each for each in TARGETS[to](plan, _GIVEN).lost if _is_untold(each, beside)), None)
    if lost is not None:
        raise UnsupportedError(f"{to} cannot be told {lost.field}={lost.value}: {lost.why}")
    return _RUN[to](plan)


def _is_untold(lost: Lost, beside: Collection[str]) -> bool:
    """Whether another strategy would be run than the plan's, which has as many processes here."""
    is_of_strategy = lost.field in Strategy.__struct_fields__ and lost.field not in beside
    return lost.changes == "memory" and is_of_strategy


def simulates_as(to: str) -> "Simulates":
    """Return what simulates a plan as a target runs it, for the proof of a search.

    Args:
        to: The target of ``export``.
    """

    def simulate(plan: Plan, _: "Budget") -> "Trial":
        asked = _Asked(program_of(to, plan), plan)
        try:
            return run_in_child(_tried, asked)
        except RunError as error:  # of the program: our loop's numbers stand
            raise UnsupportedError(str(error)) from error

    return simulate


class _Asked(NamedTuple):
    program: Program
    plan: Plan


def _tried(asked: _Asked) -> "Trial":
    """Run the first process and replay its allocator; called in a child."""
    from brimful.programs.running import Asked, ran
    from brimful.simulate.capacity import reserve_for
    from brimful.simulate.proof import tried_with

    program, plan = asked
    strategy, groups = plan.strategy, num_groups(plan.strategy)
    named = Asked(program, program.ranks[0], plan.cluster.device.name, strategy.allocator)
    recording = ran(named).recording()
    reserved = reserve_for(recording, plan.cluster, allocator=strategy.allocator, num_groups=groups)
    return tried_with(plan, [reserved], [recording])


def _trainer(plan: Plan) -> Program:
    job = plan.job
    if job.task not in _TASKS:
        raise UnsupportedError(f"the Trainer is not run for task={job.task} by this version")
    return trainer_program.program_of(
        hf_trainer.config(plan, _GIVEN),
        model=model_name(job),
        dtype=half_type(job),
        attention=attention_name(plan.strategy),
        lora=None if job.adapter is None else _lora(job, job.adapter),
        seq_len=job.seq_len,
        world_size=plan.cluster.num_devices,
    )


def _lora(job: Job, adapter: Adapter) -> dict[str, Any]:
    return {
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": targets(adapter),
        "use_dora": job.method == "dora",
        "modules_to_save": list(adapter.trained_modules) or None,
    }


def _trl(plan: Plan) -> Program:
    return trl_program.program_of("sft", trl.config(plan, _GIVEN), plan.cluster.num_devices)


def _llama_factory(plan: Plan) -> Program:
    return factory_program.program_of(llama_factory.config(plan, _GIVEN), plan.cluster.num_devices)


def _deepspeed(plan: Plan) -> Program:
    job, strategy = plan.job, plan.strategy
    blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    if blocks not in {0, job.model.num_layers} or is_selective(strategy):
        raise UnsupportedError(
            f"activation_checkpointing={strategy.activation_checkpointing}: models of transformers "
            f"recompute all of their blocks or none"
        )
    if job.task not in _TASKS:
        raise UnsupportedError(f"DeepSpeed is not run for task={job.task} by this version")
    return deepspeed_program.program_of(
        deepspeed.config(plan),
        model=model_name(job),
        attention=attention_name(strategy),
        lora=None if job.adapter is None else _lora(job, job.adapter),
        seq_len=job.seq_len,
        checkpoints=blocks > 0,
        world_size=plan.cluster.num_devices,
        rank=fullest_rank(job, strategy) if job.adapter is None else 0,
    )


_RUN: dict[str, Callable[[Plan], Program]] = {
    deepspeed.TO: _deepspeed,
    hf_trainer.TO: _trainer,
    trl.TO: _trl,
    llama_factory.TO: _llama_factory,
}
"""Targets whose own programs are run."""
