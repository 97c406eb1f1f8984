"""Who watches a run: the protocol, a live one for terminals and a plain one for log files."""

import shlex
import sys
import time
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from brimful.units import format_bytes, format_count, format_seconds

PLAIN_EVERY_S = 5.0
"""Log files get a line about this often, and always the first and the last step."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step, as it is shown.

    Attributes:
        step: Just done, from 1.
        num_steps: Of the whole run.
        loss: In nats per token.
        learning_rate: Of this step.
        grad_norm: Before clipping.
        tokens_per_s: Of this step.
        step_s: Wall time of this step.
        is_process: Whether memory is that of the whole process (CPU) or of tensors (GPU).
        used_bytes: Memory in use after it.
        peak_bytes: Largest memory in use so far.
        limit_bytes: What the plan was made for.
        remaining_s: Expected wall time to the last step.
    """

    step: int
    num_steps: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens_per_s: float
    step_s: float
    is_process: bool
    used_bytes: int
    peak_bytes: int
    limit_bytes: int
    remaining_s: float


class Observer(Protocol):
    """Called by the loop as the run goes; must not raise."""

    def on_step(self, report: StepReport) -> None:
        """Take note of an optimizer step."""

    def on_eval(self, step: int, heldout_loss: float) -> None:
        """Take note of a loss on held-out text, in nats per token."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Take note of a checkpoint."""

    def on_message(self, text: str) -> None:
        """Say a sentence that the user must see."""

    def close(self) -> None:
        """Leave the terminal as it was; called once, also after an error."""


class PlainObserver:
    """One plain line every few seconds, for logs and pipes."""

    def __init__(self, file: IO[str] | None = None, *, every_s: float = PLAIN_EVERY_S) -> None:
        """Write to ``file`` (None is standard output) about every ``every_s`` seconds."""
        self._file = file
        self._every_s = every_s
        self._last_s: float | None = None

    def on_step(self, report: StepReport) -> None:
        """Print the step where a line is due."""
        now_s = time.monotonic()
        is_due = self._last_s is None or now_s - self._last_s >= self._every_s
        if is_due or report.step == report.num_steps:
            self._last_s = now_s
            self.on_message(describe_step(report))

    def on_eval(self, step: int, heldout_loss: float) -> None:
        """Print the held-out loss."""
        self.on_message(describe_eval(step, heldout_loss))

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Print where the checkpoint is."""
        self.on_message(f"step {step}: saved {path}")

    def on_message(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._file or sys.stdout, flush=True)

    def close(self) -> None:
        """Nothing is open."""


class RichObserver:
    """A live line with a bar on a terminal; held-out losses and checkpoints scroll above it."""

    def __init__(self, console: Any = None) -> None:
        """Draw on ``console``, a ``rich`` console (None is standard output)."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = console or Console()
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
        )
        self._task: Any = None

    def on_step(self, report: StepReport) -> None:
        """Redraw the line."""
        numbers = describe_numbers(report)
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=report.num_steps, numbers=numbers)
        self._progress.update(self._task, completed=report.step, numbers=numbers)

    def on_eval(self, step: int, heldout_loss: float) -> None:
        """Print the held-out loss above the line."""
        self.on_message(describe_eval(step, heldout_loss))

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Print where the checkpoint is above the line."""
        self.on_message(f"step {step}: saved {path}")

    def on_message(self, text: str) -> None:
        """Print a sentence above the line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop drawing."""
        self._progress.stop()


def make_observer() -> Observer:
    """Choose by where standard output goes."""
    return RichObserver() if sys.stdout.isatty() else PlainObserver()


def describe_step(report: StepReport) -> str:
    """Say a step in one line."""
    return f"step {report.step}/{report.num_steps}  {describe_numbers(report)}"


def describe_numbers(report: StepReport) -> str:
    """Say a step's loss, rate, norm, speed, memory and the time left."""
    return (
        f"loss {report.loss:.4f}  lr {report.learning_rate:.2e}  norm {report.grad_norm:.2f}  "
        f"{format_count(report.tokens_per_s)} tok/s  {describe_memory(report)}  "
        f"{format_seconds(report.remaining_s)} left"
    )


def describe_memory(report: StepReport) -> str:
    """Say memory now and at the peak, and of what: the limit is for tensors, not for a process."""
    sizes = (report.used_bytes, report.peak_bytes, report.limit_bytes)
    now, peak, limit = map(format_bytes, sizes)
    if report.is_process:
        return f"process {now} (peak {peak})"
    return f"tensors {now} (peak {peak}, limit {limit})"


def describe_eval(step: int, heldout_loss: float) -> str:
    """Say a held-out loss in one line."""
    return f"step {step}: held-out loss {heldout_loss:.4f}"


def describe_stop(step: int, out: Path) -> str:
    """Say that a run was stopped and how to go on."""
    command = ["brimful", "train", str(out / "plan.yaml"), "--out", str(out), "--resume"]
    return f"stopped after step {step}, which is saved; go on with: {shlex.join(command)}"
