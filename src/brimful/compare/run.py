"""Trains a plan in recipe after recipe, from the same first weights on the same data.

Owns the order of things. Nothing here builds or steps: that is the trainer's, whose code every run
goes through, and the doctor's and the simulator's, who are asked when all has been measured.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from brimful.compare.one_run import run_once
from brimful.compare.recipes import in_recipe, why_not
from brimful.compare.record import (
    COMPARISON_SCHEMA,
    REFERENCE,
    CompareSettings,
    Comparison,
    RecipeRow,
    RecipeRun,
    row_of,
)
from brimful.cost.estimate import estimate_or_none
from brimful.doctor.examination import ExamineSettings
from brimful.doctor.findings import Finding
from brimful.errors import BrimfulError, InputError, UnsupportedError
from brimful.process.versions import versions
from brimful.simulate.run import simulate
from brimful.train.data.prepare import prepare
from brimful.train.data.source import DataSource
from brimful.train.examine import examine_plan
from brimful.train.run_folder import require_device
from brimful.train.settings import NUM_EVAL_TOKENS
from brimful.values.job import MAX_SEED, Precision
from brimful.values.plan import Plan
from brimful.values.strategy import world_size

T = TypeVar("T")
MOST_EXAMINED = 100
"""Steps that the doctor runs to see a failure again."""
NUM_WATCHED = 4
"""Of them, those that it watches closely."""


class Watching(Protocol):
    """Who watches a comparison."""

    def on_stage(self, text: str, share: float) -> None:
        """Take note of what is being done, and of the share of the whole that is behind."""

    def on_run(self, recipe: Precision, run: RecipeRun, so_far: Comparison) -> None:
        """Take note of a run that has ended, well or not."""


def compare_recipes(
    plan: Plan,
    source: DataSource,
    settings: CompareSettings,
    *,
    cache: Path,
    watching: Watching,
) -> Comparison:
    """Train a plan's job in every recipe, and lay the results side by side.

    First weights and the order of the data follow from the seed alone: of one seed they are the
    same in every recipe, the weights rounded to the type that the recipe holds them in.

    ``plan``: what is run; only its recipe and seed are replaced. Raises InputError: the data is
    unusable, or a seed is out of range. Raises UnsupportedError: the plan is for several devices.
    Raises RunError: the plan is for a device that is not here. Raises KeyboardInterrupt: it was
    asked to stop; ``on_run`` has told of what was done.
    """
    _check(plan)
    seeds = _seeds(plan, settings)
    # Data that cannot be used is everybody's error, and no recipe's.
    _prepare(plan, source, cache)
    made = Comparison(
        schema=COMPARISON_SCHEMA,
        versions=versions(),
        job=plan.job,
        cluster=plan.cluster,
        strategy=plan.strategy,
        seeds=seeds,
        rows=(),
    )
    course = _Course(
        plan=plan, source=source, settings=settings, cache=cache, watching=watching, seeds=seeds
    )
    for recipe in course.order():
        made = _with_recipe(course, made, recipe)
    rows = tuple(_explained(course, row) for row in made.rows)
    return msgspec.structs.replace(made, rows=rows)


def _check(plan: Plan) -> None:
    require_device(plan.cluster.device.kernels)
    num = world_size(plan.strategy)
    if num != 1:
        raise UnsupportedError(
            f"recipes are compared on one device and the plan is for {num}; make a plan for one, "
            f"or train each recipe with brimful train --precision"
        )


def _seeds(plan: Plan, settings: CompareSettings) -> tuple[int, ...]:
    first = plan.job.seed
    if first + settings.num_seeds - 1 > MAX_SEED:
        raise InputError(
            f"seed={first} leaves no {settings.num_seeds} seeds up to {MAX_SEED}; give a smaller "
            f"--seed"
        )
    return tuple(range(first, first + settings.num_seeds))


def _prepare(plan: Plan, source: DataSource, cache: Path) -> None:
    prepare(
        source,
        plan.job,
        micro_batch=plan.strategy.micro_batch,
        cache=cache,
        num_eval_tokens=NUM_EVAL_TOKENS,
    )


class _Course(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same from one recipe of a comparison to the next."""

    plan: Plan
    source: DataSource
    settings: CompareSettings
    cache: Path
    watching: Watching
    seeds: tuple[int, ...]

    def order(self) -> list[Precision]:
        """Return the recipes, the reference first: the others are held against it."""
        return sorted(self.settings.recipes, key=lambda recipe: recipe != REFERENCE)

    def plan_of(self, recipe: Precision, seed: int) -> Plan:
        """Return what one run runs."""
        plan = in_recipe(self.plan, recipe, self.settings.loss_scale)
        return msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, seed=seed))

    def share(self, num_runs: int, step: int) -> float:
        """Return the share that is behind after some runs and some steps of the next."""
        all_runs = len(self.seeds) * len(self.settings.recipes)
        return (num_runs + step / self.plan.job.num_steps) / all_runs


def _with_recipe(course: _Course, made: Comparison, recipe: Precision) -> Comparison:
    """Run a recipe with every seed, and add its row."""
    reason = why_not(course.plan, recipe, course.settings.loss_scale)
    if reason is not None:
        return _with_row(made, RecipeRow(recipe=recipe, why_not=reason))
    runs: list[RecipeRun] = []
    now = made
    for seed in course.seeds:
        num_before = len(made.rows) * len(course.seeds) + len(runs)
        try:
            runs.append(_run(course, recipe, seed, num_before))
        except (InputError, UnsupportedError) as error:
            return _with_row(made, RecipeRow(recipe=recipe, why_not=str(error)))
        plain = runs if recipe == REFERENCE else _runs_of(made, REFERENCE)
        scale = course.plan_of(recipe, seed).job.loss_scale
        row = msgspec.structs.replace(row_of(recipe, runs, plain), loss_scale=scale)
        now = _with_row(made, row)
        course.watching.on_run(recipe, runs[-1], now)
    return now


def _run(course: _Course, recipe: Precision, seed: int, num_before: int) -> RecipeRun:
    name = f"{recipe}, seed {seed}"
    course.watching.on_stage(name, course.share(num_before, 0))

    def on_step(step: int) -> None:
        course.watching.on_stage(f"{name}, step {step}", course.share(num_before, step))

    return run_once(
        course.plan_of(recipe, seed),
        course.source,
        cache=course.cache,
        is_metered=seed == course.seeds[0],
        on_step=on_step,
    )


def _explained(course: _Course, row: RecipeRow) -> RecipeRow:
    """Add what the other rungs and the doctor say.

    They are asked when all is measured: no process has seen a tape before it is metered.
    """
    if not row.runs:
        return row
    course.watching.on_stage(f"{row.recipe}, simulated", 1.0)
    plan = course.plan_of(row.recipe, course.seeds[0])
    parts = plan.job, plan.cluster, plan.strategy
    predicted = _or_none(lambda: estimate_or_none(*parts))
    simulated = _or_none(lambda: simulate(*parts))
    return msgspec.structs.replace(
        row,
        predicted_peak_allocated_bytes=predicted and predicted.predicted_peak_allocated_bytes,
        simulated_peak_allocated_bytes=simulated and simulated.simulated_peak_allocated_bytes,
        finding=_first_finding(course, row) if row.is_in_doubt else None,
    )


def _first_finding(course: _Course, row: RecipeRow) -> Finding | None:
    """Let the doctor watch a run that failed, up to where it did, or else the first one."""
    course.watching.on_stage(f"{row.recipe}, asking the doctor", 1.0)
    run = next((run for run in row.runs if run.failed_step is not None), row.runs[0])
    num_steps = min(run.failed_step or ExamineSettings().num_steps, MOST_EXAMINED)
    settings = ExamineSettings(num_steps=num_steps, every=max(1, num_steps // NUM_WATCHED))
    plan = course.plan_of(row.recipe, run.seed)
    looked = _or_none(lambda: examine_plan(plan, course.source, settings, cache=course.cache))
    return looked.findings[0] if looked is not None and looked.findings else None


def _or_none(ask: Callable[[], T]) -> T | None:
    """Ask for what is only told beside the figures: without it they stand all the same."""
    try:
        return ask()
    except BrimfulError:
        return None


def _with_row(made: Comparison, row: RecipeRow) -> Comparison:
    return msgspec.structs.replace(made, rows=(*made.rows, row))


def _runs_of(made: Comparison, recipe: Precision) -> tuple[RecipeRun, ...]:
    return next((row.runs for row in made.rows if row.recipe == recipe), ())
