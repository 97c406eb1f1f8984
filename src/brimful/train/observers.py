"""Who watches a run: the protocol, several at once, and the plain one for log files."""

import sys
import time
from pathlib import Path
from typing import IO, Protocol

from brimful.text.escaping import shell_words
from brimful.text.terminal import say
from brimful.train.step_report import StepReport, describe_eval, describe_experts, describe_step
from brimful.values.run_files import EvalRow, ExpertRow

PLAIN_EVERY_S = 5.0
"""Log files get a line about this often, and always the first and the last step."""


class Observer(Protocol):
    """Called by the loop as the run goes; must not raise."""

    def on_stage(self, text: str) -> None:
        """Take note of what is being done before the first step."""

    def on_step(self, report: StepReport) -> None:
        """Take note of an optimizer step."""

    def on_eval(self, row: EvalRow) -> None:
        """Take note of how the model does on held-out data."""

    def on_experts(self, row: ExpertRow) -> None:
        """Take note of how experts were loaded."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Take note of a checkpoint."""

    def on_message(self, text: str) -> None:
        """Say a sentence that the user must see."""

    def close(self) -> None:
        """Leave everything as it was; called once, also while an error is on its way."""


class Observers:
    """Several observers as one; the first is the one that speaks to the user.

    A logger that fails is left out from then on, and the user is told: a full disk or a lost
    network of a logger ends no run.
    """

    def __init__(self, main: Observer) -> None:
        """Begin with the one that speaks to the user."""
        self._main = main
        self._loggers: list[Observer] = []

    def add(self, logger: Observer) -> None:
        """Let one more watch."""
        self._loggers.append(logger)

    def on_stage(self, text: str) -> None:
        """Tell all."""
        self._tell("on_stage", text)

    def on_step(self, report: StepReport) -> None:
        """Tell all."""
        self._tell("on_step", report)

    def on_eval(self, row: EvalRow) -> None:
        """Tell all."""
        self._tell("on_eval", row)

    def on_experts(self, row: ExpertRow) -> None:
        """Tell all."""
        self._tell("on_experts", row)

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Tell all."""
        self._tell("on_checkpoint", step, path)

    def on_message(self, text: str) -> None:
        """Tell all."""
        self._tell("on_message", text)

    def close(self) -> None:
        """Close all, the loggers first: what they have to say is still shown."""
        for logger in tuple(self._loggers):
            self._try(logger, "close")
        self._main.close()

    def _tell(self, method: str, *told: object) -> None:
        getattr(self._main, method)(*told)
        for logger in tuple(self._loggers):
            self._try(logger, method, *told)

    def _try(self, logger: Observer, method: str, *told: object) -> None:
        try:
            getattr(logger, method)(*told)
        except Exception as error:  # noqa: BLE001 - others' code, which may raise anything
            self._loggers.remove(logger)
            self._main.on_message(
                f"{type(logger).__name__} failed ({error}); the run goes on without it"
            )


class PlainObserver:
    """One plain line every few seconds, for logs and pipes."""

    def __init__(self, file: IO[str] | None = None, *, every_s: float = PLAIN_EVERY_S) -> None:
        """Write to ``file`` (None is standard output) about every ``every_s`` seconds."""
        self._file = file
        self._every_s = every_s
        self._last_s: float | None = None
        self._last_experts_s: float | None = None

    def on_stage(self, text: str) -> None:
        """Print what is being done."""
        self.on_message(f"{text} ...")

    def on_step(self, report: StepReport) -> None:
        """Print the step where a line is due."""
        now_s = time.monotonic()
        is_due = self._last_s is None or now_s - self._last_s >= self._every_s
        if is_due or report.row.step == report.num_steps:
            self._last_s = now_s
            self.on_message(describe_step(report))

    def on_eval(self, row: EvalRow) -> None:
        """Print the held-out loss."""
        self.on_message(f"step {row.step}: {describe_eval(row)}")

    def on_experts(self, row: ExpertRow) -> None:
        """Print how experts were loaded, where a line is due."""
        now_s = time.monotonic()
        if self._last_experts_s is None or now_s - self._last_experts_s >= self._every_s:
            self._last_experts_s = now_s
            self.on_message(f"step {row.step}: {describe_experts(row)}")

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Print where the checkpoint is."""
        self.on_message(f"step {step}: saved {path}")

    def on_message(self, text: str) -> None:
        """Print a line."""
        say(text, file=self._file, flush=True)

    def close(self) -> None:
        """Nothing is open."""


def make_observer() -> Observer:
    """Choose by where standard output goes."""
    if not sys.stdout.isatty():
        return PlainObserver()
    from brimful.train.live import RichObserver

    return RichObserver()


def describe_stop(step: int, out: Path) -> str:
    """Say that a run was stopped and how to go on."""
    command = ["brimful", "train", str(out / "plan.yaml"), "--out", str(out), "--resume"]
    return f"stopped after step {step}, which is saved; go on with: {shell_words(command)}"
