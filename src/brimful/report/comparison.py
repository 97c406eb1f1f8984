"""Precision recipes side by side, as a table for the terminal."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brimful.compare.record import REFERENCE, Comparison, Over, RecipeRow, RecipeRun
from brimful.report.tables import add_row, bullets, plain_table
from brimful.units import format_bytes, format_seconds
from brimful.values.job import Precision
from brimful.values.task_words import loss_unit

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

UNKNOWN = "-"
_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t of 97.5 % by degrees of freedom from 1 on. Source: NIST/SEMATECH e-Handbook of
Statistical Methods, 1.3.6.7.2."""


def comparison_tables(made: Comparison) -> "Group":
    """Lay out one row per recipe, and below it why a recipe is worse, failed, or was not run."""
    from rich.console import Group
    from rich.text import Text

    made_of: list[RenderableType] = [
        _table(made),
        Text(""),
        bullets("Against fp32", [*chance_words(made)]),
    ]
    if reasons := _reasons(made):
        made_of += [Text(""), bullets("Why", reasons)]
    return Group(*made_of)


def chance_words(made: Comparison) -> Iterator[str]:
    """Say which recipes differ from fp32 by more than chance, of what was run with the same seeds.

    By a paired t-test at 95 %: t = mean / (std / sqrt(n)) of the differences seed by seed.
    """
    others = [(row, row.to_reference) for row in made.rows if row.recipe != REFERENCE]
    differing, alike, alone = list[str](), list[str](), list[str]()
    for row, gap in others:
        if gap is None:
            continue
        if gap.std is None:
            alone.append(row.recipe)
        elif abs(gap.mean) * math.sqrt(gap.num) > _t_quantile(gap.num - 1) * gap.std:
            worse = "more" if gap.mean > 0 else "less"
            differing.append(f"{row.recipe} (a loss {abs(gap.mean):.2%} {worse})")
        else:
            alike.append(row.recipe)
    if differing:
        yield f"more than chance, seed by seed (paired t-test, 95 %): {', '.join(differing)}"
    if alike:
        yield f"no more than chance may be: {', '.join(alike)}"
    if alone:
        yield f"one seed does not tell chance: {', '.join(alone)}; give --seeds 3"


def _t_quantile(num_free: int) -> float:
    """Return Student's t of 97.5 %; beyond the table the last, which is stricter than the truth."""
    return _T_975[min(num_free, len(_T_975)) - 1]


def describe_run(recipe: Precision, run: RecipeRun) -> str:
    """Say in a line how a run ended."""
    name = f"{recipe}, seed {run.seed}"
    if run.heldout_loss is None:
        return f"{name}: failed in step {run.failed_step}"
    return f"{name}: held-out loss {run.heldout_loss:.4f}"


def _table(made: Comparison) -> "Table":
    num, unit = len(made.seeds), loss_unit(made.job.task)
    seeds = "1 seed" if num == 1 else f"{num} seeds, mean ± std"
    title = f"After {made.job.num_steps} steps, {seeds}; losses{unit and f' in{unit}'}; peak memory"
    table, has_accuracy = plain_table(title), any(row.accuracy for row in made.rows)
    table.add_column("recipe", no_wrap=True)
    for name in ("held-out loss", "to fp32", *(["accuracy"] if has_accuracy else [])):
        table.add_column(name, justify="right")
    for name in ("step", "measured", "simulated", "skipped"):
        table.add_column(name, justify="right")
    for row in made.rows:
        accuracy = [_percent(row.accuracy)] if has_accuracy else []
        cells = (row.recipe, quality_words(row), to_reference_words(row), *accuracy, *_costs(row))
        add_row(table, cells)
    return table


def quality_words(row: RecipeRow) -> str:
    """Say the held-out loss with its spread, or that there is none."""
    if row.why_not is not None:
        return "not run"
    loss = row.heldout_loss
    if loss is None:
        return f"failed, step {min(failed_steps(row))}"
    spread = "" if loss.std is None else f" ± {loss.std:.4f}"
    return f"{loss.mean:.4f}{spread}{f', {row.num_failed} failed' if row.num_failed else ''}"


def failed_steps(row: RecipeRow) -> list[int]:
    """List the steps at which runs failed, in the order of the seeds."""
    return [run.failed_step for run in row.runs if run.failed_step is not None]


def to_reference_words(row: RecipeRow) -> str:
    """Say the held-out loss relative to fp32's with the same seed, and how that differs."""
    gap = row.to_reference
    if gap is None:
        return UNKNOWN
    if gap.std is None or row.recipe == REFERENCE:
        return f"{gap.mean:+.2%}"
    return f"{100 * gap.mean:+.2f} ± {100 * gap.std:.2f}%"


def _percent(figure: Over | None) -> str:
    return UNKNOWN if figure is None else f"{figure.mean:.1%}"


def _costs(row: RecipeRow) -> tuple[str, str, str, str]:
    return (
        UNKNOWN if row.measured_step_s is None else format_seconds(row.measured_step_s),
        _size(row.measured_peak_allocated_bytes),
        _size(row.simulated_peak_allocated_bytes),
        UNKNOWN if not row.runs else str(row.num_skipped),
    )


def _size(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def _reasons(made: Comparison) -> list[str]:
    return [f"{row.recipe}: {text}" for row in made.rows for text in [_reason(row)] if text]


def _reason(row: RecipeRow) -> str:
    """Say why a row is as it is; empty where nothing is wrong with it."""
    if row.why_not is not None:
        return f"not run: {row.why_not}"
    if not row.is_in_doubt:
        return ""
    failed = [run for run in row.runs if run.reason is not None]
    told = [f"{len(failed)} of {len(row.runs)} runs failed: {failed[0].reason}"] if failed else []
    if row.is_worse:
        told.append(f"its held-out loss is {to_reference_words(row)} beside fp32's")
    doctor = "nothing in the steps that it watched"
    if row.finding is not None:
        doctor = f"{row.finding.fault}: {row.finding.text}"
    return f"{'; '.join(told)}. The doctor: {doctor}"
