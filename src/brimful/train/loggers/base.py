"""What every logger is given, and the names under which it shows a run's numbers."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from brimful.train.expert_load import drop_share, worst_load
from brimful.train.observers import Observer
from brimful.values.plan import Plan
from brimful.values.run_files import EVENTS, EvalRow, ExpertRow, Row, TakeoverRow, TrainRow


class LoggedRun(NamedTuple):
    """A run that begins or goes on.

    Attributes:
        out: Its folder.
        plan: What is run.
        last_step: The step that it goes on from; 0 where it begins.
        rows: Its rows up to that step.
    """

    out: Path
    plan: Plan
    last_step: int
    rows: tuple[Row, ...]


MakeLogger = Callable[[LoggedRun], Observer]


def scalars_of(row: Row) -> dict[str, float]:
    """Name a row's numbers as people expect them; what is unknown is left out."""
    if isinstance(row, TrainRow):
        named = _train_scalars(row)
    elif isinstance(row, EVENTS):
        named = {"memory/limit_bytes": row.limit_bytes} if isinstance(row, TakeoverRow) else {}
    else:
        named = _eval_scalars(row) if isinstance(row, EvalRow) else _expert_scalars(row)
    return {name: value for name, value in named.items() if value is not None}


def _train_scalars(row: TrainRow) -> dict[str, float | None]:
    return {
        "train/loss": row.loss,
        "train/learning_rate": row.learning_rate,
        "train/grad_norm": row.grad_norm,
        "train/tokens_per_s": row.tokens_per_s,
        "train/step_s": row.step_s,
        "train/mfu": row.mfu,
        "train/hfu": row.hfu,
        "train/loss_scale": row.loss_scale,
        "train/skipped": None if row.loss_scale is None else float(row.skipped),
        "memory/used_bytes": row.used_bytes,
        "memory/peak_bytes": row.peak_bytes,
    }


def _expert_scalars(row: ExpertRow) -> dict[str, float | None]:
    worst = worst_load(row)
    return {
        "experts/imbalance": None if worst is None else worst.imbalance,
        "experts/at_work": None if worst is None else worst.num_at_work,
        "experts/dropped": drop_share(row) if row.dropped else None,
    }


def _eval_scalars(row: EvalRow) -> dict[str, float | None]:
    return {
        "eval/loss": row.heldout_loss,
        "eval/perplexity": row.perplexity,
        "eval/accuracy": row.accuracy,
    }
