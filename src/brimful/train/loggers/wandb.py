"""Weights & Biases: online where the user has logged in, in the run's folder alone elsewhere.

A run that goes on keeps its id. Online the service takes no step twice: those that a killed run
had already sent stay as they are. Offline every process writes a folder of its own, so the rows up
to the checkpoint are written into the new one and the old ones, unless they were synced, are
removed: what is left is the whole curve once.
"""

import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from brimful.files.writing import write_text
from brimful.train.loggers.base import LoggedRun, scalars_of
from brimful.train.step_report import StepReport
from brimful.values.run_files import WANDB, EvalRow, ExpertRow, Row

PROJECT = "brimful"
"""Where no ``WANDB_PROJECT`` says otherwise."""
_ID_FILE = "brimful-run-id.txt"


class WandbLogger:
    """Logs every row to one W&B run; ``WANDB_MODE`` and the like are obeyed."""

    def __init__(self, run: LoggedRun) -> None:
        """Begin the W&B run, or go on with it."""
        import wandb

        folder = run.out / WANDB
        run_id = _run_id(folder)
        # What earlier processes of this run wrote and nobody has uploaded.
        before = [
            path
            for path in folder.glob(f"offline-run-*-{run_id}")
            if not (path / f"run-{run_id}.wandb.synced").exists()
        ]
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run.out),
            id=run_id,
            name=run.out.name,
            resume="allow",
            mode=_mode(),
            config=msgspec.to_builtins(run.plan),
            # The terminal is ours, and a run's folder holds no copies of the user's sources.
            settings=wandb.Settings(
                console="off", silent=True, save_code=False, disable_git=True, disable_code=True
            ),
        )
        if self._run.settings.mode == "offline":
            self._write_anew(run.rows, before)

    def on_stage(self, text: str) -> None:
        """Nothing to log."""

    def on_step(self, report: StepReport) -> None:
        """Log the step's numbers."""
        self._log(report.row)

    def on_eval(self, row: EvalRow) -> None:
        """Log the result on held-out data."""
        self._log(row)

    def on_experts(self, row: ExpertRow) -> None:
        """Log how experts were loaded."""
        self._log(row)

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Nothing to log: W&B writes on its own."""

    def on_message(self, text: str) -> None:
        """Nothing to log."""

    def close(self) -> None:
        """End the W&B run, as failed where an error is on its way."""
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))

    def _log(self, row: Row) -> None:
        self._run.log(scalars_of(row), step=row.step)
        if isinstance(row, EvalRow) and row.is_best:
            self._run.summary["eval/best_loss"] = row.heldout_loss

    def _write_anew(self, rows: tuple[Row, ...], before: list[Path]) -> None:
        for row in rows:
            self._log(row)
        for folder in before:
            shutil.rmtree(folder, ignore_errors=True)


def _mode() -> Any:
    """Upload only for a user who has logged in; None lets ``WANDB_MODE`` decide."""
    import wandb

    if "WANDB_MODE" in os.environ:
        return None
    return "online" if wandb.api.api_key else "offline"


def _run_id(folder: Path) -> str:
    """Return the id of the run in this folder, made where there is none."""
    path = folder / _ID_FILE
    if path.is_file():
        return path.read_text("utf-8").strip()
    run_id = secrets.token_hex(4)
    write_text(path, run_id + "\n")
    return run_id
