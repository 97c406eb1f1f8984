"""Runs some steps of a plan's own program under the precision doctor's eyes."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.build.assemble import build_program
from brimful.build.batch import count_targets
from brimful.build.parallel.place import own_part
from brimful.build.program import Program
from brimful.build.step import StepResult, train_step
from brimful.doctor.advice import advise
from brimful.doctor.examination import PRECISION_SCHEMA, Examination, ExamineSettings
from brimful.doctor.findings import find_faults
from brimful.doctor.program import PlainStep, compare, find_first_bad, watcher_of
from brimful.doctor.records import FirstBad, earliest
from brimful.doctor.scale_search import search_scale
from brimful.doctor.seen import Seen, Trial
from brimful.doctor.watcher import Watcher
from brimful.errors import RunError, UnsupportedError
from brimful.techniques.dropout import check_undropped
from brimful.techniques.runnable import check_examined
from brimful.train.data.batches import START
from brimful.train.data.prepare import prepare
from brimful.train.guard import keeping_weights
from brimful.train.run_folder import require_device
from brimful.train.schedule import learning_rate_at
from brimful.train.world import first_alone, of_all, own_device, own_rank
from brimful.values.job import Job
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy

if TYPE_CHECKING:
    from brimful.train.data.source import DataSource

NUM_TRIALS = 4
"""Steps that are tried at each loss scale."""
Watch = Callable[[str, float], None]
"""Is told what is being done, and the share of the whole that is behind."""


def _unwatched(_stage: str, _share: float) -> None:
    """Tell nobody."""


def examine_plan(
    plan: Plan,
    source: "DataSource",
    settings: ExamineSettings,
    *,
    cache: Path,
    watch: Watch = _unwatched,
) -> Examination:
    """Build a plan's program, run its first steps on its data, and look at them.

    Of many devices all processes call this; each returns the same.

    Raises InputError: the data is unusable. Raises UnsupportedError: the plan's engine updates out
    of sight. Raises RunError: the plan is for a device that is not here.
    """
    require_device(plan.cluster.device.kernels)
    job, strategy = plan.job, plan.strategy
    _check(job, strategy)
    data = first_alone(
        lambda: prepare(
            source, job, micro_batch=strategy.micro_batch, cache=cache, num_eval_tokens=job.seq_len
        )
    )
    steps, position = [], START
    for _ in range(settings.num_steps):
        batches, position = data.batches.step_at(position)
        steps.append(
            PlainStep(micro_batches=own_part(batches, strategy), num_targets=count_targets(batches))
        )
    program = build_program(job, strategy, own_device(plan.cluster.device.kernels))
    return examine(program, steps, settings, watch)


def _check(job: Job, strategy: Strategy) -> None:
    check_undropped(job)
    check_examined(strategy)
    if strategy.engine != "torch":
        raise UnsupportedError(
            f"engine={strategy.engine} scales and updates out of sight, so that precision cannot "
            f"be examined; use engine=torch"
        )


def examine(
    program: Program,
    steps: Sequence[PlainStep],
    settings: ExamineSettings,
    watch: Watch = _unwatched,
) -> Examination:
    """Look at a program before its first step, then at its steps.

    Before: one step in the recipe and in a wide format, and loss scales that are tried; nothing is
    updated. Then the steps are run as training runs them. The first one that comes to Inf or NaN,
    whatever the loss scale, ends them.

    ``program``: just built; it trains. ``steps``: at least one, this process's own part of each.
    """
    watch("the first step, in its recipe and in a wide format", 0.0)
    compared = compare(program, steps[0])
    if program.scaler is not None:
        watch("loss scales are tried", 1 / (len(steps) + 2))
    trials = _trials(program, steps[:NUM_TRIALS], settings)
    watcher = watcher_of(program, every=settings.every, rank=own_rank())
    losses, norms, first_bad = _run(program, steps, watcher, watch)
    seen = Seen(
        ranks=tuple(of_all(watcher.watched())),
        first_bad=first_bad,
        compared=compared,
        trials=trials,
        grad_norms=tuple(norm for norm in norms if math.isfinite(norm)),
        is_scaled=program.scaler is not None,
        are_alike=program.strategy.tp == 1,
    )
    job = program.job
    return Examination(
        schema=PRECISION_SCHEMA,
        job=job,
        strategy=program.strategy,
        settings=settings,
        losses=_numbers(losses),
        grad_norms=_numbers(norms),
        seen=seen,
        findings=find_faults(seen),
        advice=advise(
            seen,
            loss_scale=job.loss_scale,
            num_steps=job.num_steps,
            clip=job.clip,
            bad_share=settings.bad_share,
        ),
    )


def _numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(value if math.isfinite(value) else None for value in values)


def _trials(
    program: Program, steps: Sequence[PlainStep], settings: ExamineSettings
) -> tuple[Trial, ...]:
    if program.scaler is None:
        return ()
    return search_scale(program, steps, bad_share=settings.bad_share)


def _run(
    program: Program, steps: Sequence[PlainStep], watcher: Watcher, watch: Watch
) -> tuple[list[float], list[float], FirstBad | None]:
    """Run steps up to one whose Inf or NaN no loss scale avoids: losses, norms, where it is."""
    losses: list[float] = []
    norms: list[float] = []
    for number, step in enumerate(steps, start=1):
        watch(f"step {number} of {len(steps)}", (number + 1) / (len(steps) + 2))
        try:
            result = _step(program, step, number, watcher)
        except RunError:  # no scale is small enough
            return losses, norms, _cause(program, step, number)
        losses.append(float(result.loss))
        norms.append(float(result.grad_norm))
        if not (math.isfinite(losses[-1]) and (math.isfinite(norms[-1]) or result.skipped)):
            return losses, norms, _cause(program, step, number)
    if not any(map(math.isfinite, norms)):
        return losses, norms, _cause(program, steps[-1], len(steps))
    return losses, norms, None


def _step(program: Program, step: PlainStep, number: int, watcher: Watcher) -> StepResult:
    scale = 1.0 if program.scaler is None else program.scaler.scale
    rate = learning_rate_at(program.job, number)
    with watcher.step(number, loss_scale=scale), keeping_weights(program):
        result = train_step(
            program, step.micro_batches, num_targets=step.num_targets, learning_rate=rate
        )
    if result.loss_scale is not None:
        watcher.note_scale(number, result.loss_scale, skipped=result.skipped)
    return result


def _cause(program: Program, step: PlainStep, number: int) -> FirstBad | None:
    """Find, on all processes together, what is Inf or NaN even where the loss is not scaled."""
    scale = None if program.scaler is None else 1.0
    found = of_all(find_first_bad(program, step, loss_scale=scale, number=number, rank=own_rank()))
    return earliest([bad for bad in found if bad is not None])
