"""Which blocks each stage of a pipeline has, and whether a job can be cut so.

One predicate and one division that planner, simulator and trainer read. Knows a model by its
dimensions and no torch; ``build.parallel.stages`` cuts it.
"""

from typing import Literal, NamedTuple

from brimful.errors import InputError, UnsupportedError
from brimful.models.architectures import named_with
from brimful.models.spec import ModelSpec
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import QAT, QUANTIZED, Job

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev"]
"""The order of work: all forwards before all backwards; one of each in turn; the same over several
stages on each device; with the gradients of weights left for idle moments; the same over two stages
on each device, laid out as a V, of two kinds."""
ONE_STAGE: frozenset[Schedule] = frozenset({"gpipe", "1f1b"})
"""Schedules of one stage on each device."""
SPLIT_BACKWARD: frozenset[Schedule] = frozenset({"zero-bubble", "zbv", "dualpipev"})
"""Schedules that compute the gradients of weights apart from those of inputs."""
LOOPED: frozenset[Schedule] = frozenset({"interleaved", "zero-bubble"})
"""Schedules whose stages go round the devices more than once."""
V_SHAPED: frozenset[Schedule] = frozenset({"zbv", "dualpipev"})
"""Schedules whose second stages go back the way the first ones came."""
STAGED_DECODERS = named_with("is_staged")
"""Architectures whose forward pass is an embedding, a stack of blocks, a norm and a head."""
STAGED_TASKS = ("causal-lm", "chat")
_V_STAGES = 2


class Split(NamedTuple):
    """How a pipeline is laid out.

    Attributes:
        pp: Devices in a row.
        schedule: The order of work.
        stages_per_device: Pieces of the model on each.
        stage_blocks: Blocks of each stage, in order; empty: ``balanced_blocks``.
    """

    pp: int
    schedule: Schedule
    stages_per_device: int
    stage_blocks: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """Pieces of the model on all devices."""
        return self.pp * self.stages_per_device


def device_of_stage(split: Split, stage: int) -> int:
    """Return which device of the row has a stage.

    Source: ``generate_stage_to_rank_mapping`` in ``torch/distributed/pipelining/_utils.py``.
    """
    if split.schedule in V_SHAPED:
        return min(stage, split.num_stages - 1 - stage)
    return stage % split.pp


def stages_of_device(split: Split, device: int) -> tuple[int, ...]:
    """List the stages of one device of the row, in the order of the model."""
    every = range(split.num_stages)
    return tuple(stage for stage in every if device_of_stage(split, stage) == device)


def blocks_of_stages(model: ModelSpec, split: Split) -> tuple[range, ...]:
    """Return which blocks each stage has, numbered as in the model."""
    counts = split.stage_blocks or balanced_blocks(model, split.num_stages)
    starts = [sum(counts[:stage]) for stage in range(len(counts))]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))


def balanced_blocks(model: ModelSpec, num_stages: int) -> tuple[int, ...]:
    """Divide blocks so that the slowest stage is as fast as can be, the head being work too.

    Stages with a block more than others come last: earlier ones keep more micro-batches.
    """
    num, others = model.num_layers, num_stages - 1
    if not others:
        return (num,)
    head = head_in_blocks(model)
    tails = range(1, num - others + 1)
    last = min(tails, key=lambda n: (max(-((n - num) // others), n + head), -n))
    each, more = divmod(num - last, others)
    return (*(each + (stage >= others - more) for stage in range(others)), last)


def head_in_blocks(model: ModelSpec) -> float:
    """Return the work of the output layer in that of a block: both are products per token.

    A block is taken for its dense products, ``2 D (h_q + h_kv) d + 3 D F`` for widths D and F, h
    heads of width d: attention's own work and experts are left out.
    """
    width = model.hidden_size
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    return model.vocab_size / max(1, heads + 3 * model.intermediate_size) if width else 0.0


def check_pipeline(job: Job, split: Split, *, num_micro_batches: int) -> None:
    """Refuse a job that cannot be run as a pipeline, or not as this one.

    Raises InputError: counts do not go together. Raises UnsupportedError: this version does not cut
    such a model, or not so.
    """
    if split.pp == 1:
        given = {
            f"pp_schedule={split.schedule}": split.schedule != "1f1b",
            f"stages_per_device={split.stages_per_device}": split.stages_per_device != 1,
            f"stage_blocks={list(split.stage_blocks)}": bool(split.stage_blocks),
        }
        named = next((what for what, is_given in given.items() if is_given), None)
        if named is not None:
            raise InputError(
                f"{named} is of a pipeline and pp=1 has none; use pp 2 or more, or leave it out"
            )
        return
    _check_kind(job, split)
    _check_stages(split)
    _check_blocks(job, split)
    _check_micro_batches(split, num_micro_batches)


NO_PIPELINE = {"pp": 1, "pp_schedule": None, "stages_per_device": None, "stage_blocks": None}
"""What is answered where a pipeline is refused."""


def _check_kind(job: Job, split: Split) -> None:
    kind, name = job.model.model_type, job.model.name
    if kind not in STAGED_DECODERS or job.task not in STAGED_TASKS:
        raise UnsupportedError(
            f"pp={split.pp} is not run for {name} (model_type={kind}, task={job.task}): this "
            f"version cuts {', '.join(sorted(STAGED_DECODERS))} as {' and '.join(STAGED_TASKS)}; "
            f"use pp=1",
            nearest=NO_PIPELINE,
        )
    beside = {
        f"method={job.method}": job.method == QAT,
        f"optimizer={job.optimizer}": not OPTIMIZERS[job.optimizer].pipeline,
        "keep_fp32": bool(job.keep_fp32),
    }
    if refused := [what for what, is_asked in beside.items() if is_asked]:
        raise UnsupportedError(
            f"pp={split.pp} with {' and '.join(refused)} is not run by this version; use pp=1, or "
            f"leave that out",
            nearest=NO_PIPELINE,
        )
    if job.adapter is not None and job.adapter.base in QUANTIZED:
        raise UnsupportedError(
            f"pp={split.pp} with base={job.adapter.base} is not run by this version; use pp=1, or "
            f"base=bf16",
            nearest=NO_PIPELINE,
        )


def _check_stages(split: Split) -> None:
    schedule, per_device = split.schedule, split.stages_per_device
    fits = {
        "interleaved": per_device > 1,
        "zero-bubble": per_device > 1,
        "zbv": per_device == _V_STAGES,
        "dualpipev": per_device == _V_STAGES,
    }.get(schedule, per_device == 1)
    if not fits:
        wanted = {"interleaved": "2 or more", "zero-bubble": "2 or more"}
        need = wanted.get(schedule, "2" if schedule in V_SHAPED else "1")
        raise InputError(
            f"pp_schedule={schedule} takes stages_per_device={need} and {per_device} was given; "
            f"change one of them"
        )


def _check_blocks(job: Job, split: Split) -> None:
    num, stages, given = job.model.num_layers, split.num_stages, split.stage_blocks
    if stages > num:
        raise InputError(
            f"{stages} stages (pp={split.pp} x stages_per_device={split.stages_per_device}) are "
            f"more than the {num} blocks of {job.model.name}; use {num} or fewer"
        )
    if given and (len(given) != stages or sum(given) != num or min(given) < 1):
        raise InputError(
            f"stage_blocks={list(given)} are {sum(given)} blocks in {len(given)} stages, and "
            f"{job.model.name} has {num} blocks for {stages} stages, each of at least one; make "
            f"them equal"
        )


def _check_micro_batches(split: Split, num_micro_batches: int) -> None:
    """Refuse counts that a schedule cannot order (torch's own rules)."""
    schedule, pp = split.schedule, split.pp
    least = {"zbv": 2 * pp, "dualpipev": 2 * pp, "1f1b": pp}.get(schedule, 1)
    if num_micro_batches < least:
        raise InputError(
            f"pp_schedule={schedule} over pp={pp} needs {least} micro-batches per step and there "
            f"are {num_micro_batches}; raise global_batch, lower micro_batch or use gpipe"
        )
    rounds = max(1, num_micro_batches // pp)
    if schedule in LOOPED and num_micro_batches % rounds:
        raise InputError(
            f"pp_schedule={schedule} over pp={pp} cannot order {num_micro_batches} micro-batches; "
            f"use a multiple of {pp}, or fewer than {2 * pp}"
        )
