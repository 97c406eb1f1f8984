"""A plan as the program that it is exported for runs it, on the pretend GPU.

What is exported is what is run: the same content, of the same function, with mock rows and a few
steps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from brimful.cost.deepspeed_engine import fullest_rank
from brimful.cost.formula import missing_formula
from brimful.cost.outside import num_groups
from brimful.errors import RunError, UnsupportedError
from brimful.export import (
    TARGETS,
    accelerate,
    axolotl,
    deepspeed,
    hf_trainer,
    llama_factory,
    torchtitan,
    trl,
)
from brimful.export.adapters import attention_name, half_type, model_name, targets
from brimful.export.given import Given
from brimful.export.lost import Lost
from brimful.export.told import BESIDE
from brimful.programs import accelerate as accelerate_program
from brimful.programs import axolotl as axolotl_program
from brimful.programs import deepspeed as deepspeed_program
from brimful.programs import hf_trainer as trainer_program
from brimful.programs import llama_factory as factory_program
from brimful.programs import torchtitan as titan_program
from brimful.programs import trl as trl_program
from brimful.programs.base import FOLDER, Program
from brimful.programs.mock_rows import MOST_MICRO_BATCHES
from brimful.techniques.dropout import drops, rates
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS
from brimful.values.job import Adapter, Job
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy, is_selective, num_checkpointed, num_micro_batches

if TYPE_CHECKING:
    from brimful.pretend.recording import Recording
    from brimful.programs.running import Asked
    from brimful.search.budget import Budget
    from brimful.simulate.proof import Simulates, Trial

_GIVEN = Given(plan="plan.yaml", data="rows", out="out")
_LAUNCHED = frozenset({"dp_shard", "dp_replicate", "allocator"})
"""What a launcher decides, which is none here."""
_BY_SCRIPT = frozenset({"micro_batch", "accumulate", "activation_checkpointing"})
"""What the loop around an Accelerator says, which is a script of ours."""
_TASKS = frozenset({"causal-lm", "chat"})
"""For which the Trainer's script makes rows."""
_HEADS: dict[str, str] = {
    **dict.fromkeys(_TASKS, "AutoModelForCausalLM"),
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
}
"""Classes of transformers that load a model with the head of a task."""


def program_of(to: str, plan: Plan) -> Program:
    """Return what runs a plan as a target does.

    ``to``: the target of ``export``. Raises InputError: what it needs is not installed.
    """
    if to not in _RUN:
        known = ", ".join(_RUN)
        raise UnsupportedError(f"{to} itself is not run by this version (those that are: {known})")
    told = _told_otherwise(to, plan.strategy)
    untold = (each for each in TARGETS[to](plan, _GIVEN).lost if _is_untold(each))
    lost = next((each for each in untold if each.field not in told), None)
    if lost is not None:
        raise UnsupportedError(f"{to} cannot be told {lost.field}={lost.value}: {lost.why}")
    return _RUN[to](plan)


def _told_otherwise(to: str, strategy: Strategy) -> frozenset[str]:
    """Return fields that an export does not say, and that are run as the plan has them."""
    if to == accelerate.TO:
        return _BY_SCRIPT
    if to != torchtitan.TO:
        return frozenset(BESIDE.get(to, {}))
    by_its_rule = {
        "stages_per_device": strategy.stages_per_device == torchtitan.own_stages(strategy),
        "stage_blocks": not strategy.stage_blocks,
    }
    return frozenset(name for name, is_asked in by_its_rule.items() if is_asked)


def _is_untold(lost: Lost) -> bool:
    """Whether another strategy would be run than the plan's, which has as many processes here."""
    is_of_strategy = lost.field in Strategy.__struct_fields__ and lost.field not in _LAUNCHED
    return lost.changes == "memory" and is_of_strategy


def simulates_as(to: str, engine_settings: str = "") -> "Simulates":
    """Return what simulates a plan as a target runs it, for the proof of a search.

    ``to``: the target of ``export``. ``engine_settings``: of DeepSpeed's JSON, if it is handed one
    (``Strategy``).
    """

    def simulate(plan: Plan, _: "Budget") -> "Trial":
        from brimful.programs.running import Asked, run_each
        from brimful.simulate.capacity import reserve_for
        from brimful.simulate.proof import tried_with

        strategy = replace(plan.strategy, engine_settings=engine_settings)
        program, cluster = program_of(to, replace(plan, strategy=strategy)), plan.cluster
        allocator = plan.strategy.allocator
        asked = [Asked(program, rank, cluster.device.name, allocator) for rank in program.ranks]
        try:
            recordings = run_each(_recorded, asked)
        except RunError as error:  # of the program: our loop's numbers stand
            raise UnsupportedError(str(error)) from error
        groups = num_groups(plan.strategy)
        reserved = [
            reserve_for(each, cluster, allocator=allocator, num_groups=groups)
            for each in recordings
        ]
        return tried_with(plan, reserved, recordings)

    return simulate


def _recorded(asked: "Asked") -> "Recording":
    """Run one process; called in a child."""
    from brimful.programs.running import ran

    return ran(asked).recording()


def _trainer(plan: Plan) -> Program:
    job = plan.job
    if job.task not in _TASKS:
        raise UnsupportedError(f"the Trainer is not run for task={job.task} by this version")
    return trainer_program.program_of(
        hf_trainer.config(plan, _GIVEN),
        model=model_name(plan),
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


def _accelerate(plan: Plan) -> Program:
    job, strategy, config = plan.job, plan.strategy, accelerate.config(plan)
    if job.task not in _TASKS:
        raise UnsupportedError(f"Accelerate is not run for task={job.task} by this version")
    way = accelerate.way_of(plan)
    if strategy.tp > 1:
        raise UnsupportedError("Accelerate is run without tensor parallelism; use --tp 1")
    recomputes = _recomputes(plan)
    given = {
        "model": model_name(plan),
        "dtype": half_type(job),
        "attention": attention_name(strategy),
        "lora": None if job.adapter is None else _lora(job, job.adapter),
        "micro_batch": strategy.micro_batch,
        "accumulated": min(num_micro_batches(job, strategy), MOST_MICRO_BATCHES),
        "sync_each_batch": strategy.accumulate == "reduce-each",
        "checkpointing": recomputes and way != "FSDP",  # which has a switch of its own
        "clip": job.clip,
        "optimizer": _optimizer(plan),
    }
    return accelerate_program.program_of(
        config,
        given,
        seq_len=job.seq_len,
        world_size=plan.cluster.num_devices,
        rank=_rank(plan) if way == "DEEPSPEED" else 0,
    )


def _recomputes(plan: Plan) -> bool:
    """Whether a model of transformers recomputes its blocks, which does all of them or none."""
    strategy, num_layers = plan.strategy, plan.job.model.num_layers
    blocks = num_checkpointed(strategy, num_layers=num_layers)
    if blocks not in {0, num_layers} or is_selective(strategy):
        raise UnsupportedError(
            f"activation_checkpointing={strategy.activation_checkpointing}: models of transformers "
            f"are run with every block recomputed in full or none; use --activation-checkpointing "
            f"full or none"
        )
    return blocks > 0


def _optimizer(plan: Plan) -> dict[str, Any]:
    job = plan.job
    if (spelled := OPTIMIZERS[job.optimizer].transformers) is None:
        raise UnsupportedError(f"optimizer={job.optimizer} is none of transformers'; use {DEFAULT}")
    return {
        "output_dir": FOLDER,
        "optim": spelled.name,
        "learning_rate": job.learning_rate,
        "adam_beta1": job.beta1,
        "adam_beta2": job.beta2,
        "adam_epsilon": job.epsilon,
    }


def _trl(plan: Plan) -> Program:
    return trl_program.program_of("sft", trl.config(plan, _GIVEN), plan.cluster.num_devices)


def _llama_factory(plan: Plan) -> Program:
    return factory_program.program_of(llama_factory.config(plan, _GIVEN), plan.cluster.num_devices)


def _rank(plan: Plan) -> int:
    """Return which process of DeepSpeed's holds most, where formulas say so; else the first."""
    job, device = plan.job, plan.cluster.device
    strategy = replace(plan.strategy, engine=deepspeed.TO)
    if job.adapter is not None or strategy.zero == 0 or missing_formula(job, strategy, device):
        return 0
    return fullest_rank(job, strategy, device)


def _deepspeed(plan: Plan) -> Program:
    job, strategy = plan.job, plan.strategy
    if job.task not in _HEADS:
        raise UnsupportedError(f"DeepSpeed is not run for task={job.task} by this version")
    return deepspeed_program.program_of(
        deepspeed.config(plan),
        model=model_name(plan),
        head=_HEADS[job.task],
        undropped=() if drops(job) else tuple(rates(job)),
        attention=attention_name(strategy),
        lora=None if job.adapter is None else _lora(job, job.adapter),
        seq_len=job.seq_len,
        checkpoints=_recomputes(plan),
        world_size=plan.cluster.num_devices,
        rank=_rank(plan),
    )


def _axolotl(plan: Plan) -> Program:
    content = axolotl.config(plan, _GIVEN)
    return axolotl_program.program_of(content, plan.cluster.num_devices)


def _torchtitan(plan: Plan) -> Program:
    name = torchtitan.FILE
    return titan_program.program_of(
        ("--module", name, "--config", torchtitan.FUNCTION),
        world_size=plan.cluster.num_devices,
        num_stages=plan.strategy.pp,
        module=(f"{name}.py", torchtitan.text(plan, _GIVEN).text),
    )


_RUN: dict[str, Callable[[Plan], Program]] = {
    deepspeed.TO: _deepspeed,
    hf_trainer.TO: _trainer,
    trl.TO: _trl,
    llama_factory.TO: _llama_factory,
    torchtitan.TO: _torchtitan,
    accelerate.TO: _accelerate,
    axolotl.TO: _axolotl,
}
"""Targets whose own programs are run."""
