"""TensorBoard: event files in the run's folder, by torch's own writer."""

from pathlib import Path

from brimful.train.loggers.base import LoggedRun, scalars_of
from brimful.train.step_report import StepReport
from brimful.values.plan import to_yaml
from brimful.values.run_files import TENSORBOARD, EvalRow, ExpertRow, Row


class TensorBoardLogger:
    """Writes every row to ``tensorboard/`` in the run's folder."""

    def __init__(self, run: LoggedRun) -> None:
        """Open the folder; a run that goes on hides what lies beyond the step it goes on from."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.out / TENSORBOARD), purge_step=run.last_step + 1)
        if not run.last_step:
            self._writer.add_text("plan", _as_code(to_yaml(run.plan)))

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

    def on_checkpoint(self, step: int, path: Path) -> None:  # noqa: ARG002 - the protocol's
        """Write out what is held back: no checkpoint is ahead of its curve."""
        self._writer.flush()

    def on_message(self, text: str) -> None:
        """Nothing to log."""

    def close(self) -> None:
        """Write out the rest."""
        self._writer.close()

    def _log(self, row: Row) -> None:
        for name, value in scalars_of(row).items():
            self._writer.add_scalar(name, value, row.step)


def _as_code(text: str) -> str:
    """Indent a text as Markdown wants its code."""
    return "\n".join(f"    {line}" for line in text.splitlines())
