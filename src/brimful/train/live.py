"""The live view of a run on a terminal: a few lines that are redrawn in place."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.text.terminal import console
from brimful.train.step_report import (
    UNKNOWN,
    StepReport,
    describe_eval,
    describe_experts,
    describe_number,
    describe_ranks,
    describe_rate,
    describe_scale,
    describe_share,
)
from brimful.units import format_bytes, format_seconds
from brimful.values.run_files import EvalRow, ExpertRow

if TYPE_CHECKING:
    from rich.console import RenderableType

NEAR_LIMIT = 0.95
"""From this share of the limit on the peak is drawn as a warning."""
_REFRESHES_PER_S = 4


class RichObserver:
    """Redraws the numbers in place; checkpoints and sentences scroll above them."""

    def __init__(self, screen: Any = None) -> None:
        """Draw on ``screen``, of ``terminal.console`` (None is standard output)."""
        from rich.live import Live

        self._spinner: Any = None
        self._report: StepReport | None = None
        self._last: EvalRow | None = None
        self._best: EvalRow | None = None
        self._experts: ExpertRow | None = None
        self._console = screen or console()
        self._live = Live(
            console=self._console,
            refresh_per_second=_REFRESHES_PER_S,
            get_renderable=self._view,
            vertical_overflow="visible",
        )

    def on_stage(self, text: str) -> None:
        """Show that something is being done, and what."""
        from rich.spinner import Spinner
        from rich.text import Text

        self._spinner = Spinner("dots", text=Text(f"{text} ..."))
        self._live.start()
        self._live.refresh()

    def on_step(self, report: StepReport) -> None:
        """Take the numbers that are drawn next."""
        self._report = report
        self._live.start()

    def on_eval(self, row: EvalRow) -> None:
        """Show the newest and the best result on held-out data."""
        self._last = row
        self._best = row if row.is_best else self._best

    def on_experts(self, row: ExpertRow) -> None:
        """Show how experts were loaded last."""
        self._experts = row

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Print where the checkpoint is, above the numbers."""
        self.on_message(f"step {step}: saved {path}")

    def on_message(self, text: str) -> None:
        """Print a sentence above the numbers."""
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        """Draw for the last time."""
        self._spinner = None
        self._live.stop()

    def _view(self) -> "RenderableType":
        if self._report is not None:
            return view(self._report, self._last, self._best, self._experts)
        return self._spinner or ""


def view(
    report: StepReport,
    last: EvalRow | None,
    best: EvalRow | None,
    experts: ExpertRow | None = None,
) -> "RenderableType":
    """Lay the numbers of a step out, in at most 80 columns."""
    from rich.console import Group

    row = report.row
    parts = [
        f"loss {describe_number(row.loss, '.4f')}",
        f"lr {row.learning_rate:.2e}",
        f"norm {describe_number(row.grad_norm, '.2f')}",
    ]
    lines = ["  ".join([*parts, *describe_scale(report)]), _speed_line(report)]
    if last is not None:
        lines.append(_eval_line(last, best))
    if experts is not None:
        lines.append(describe_experts(experts))
    return Group(_bars(report), *map(_line, lines))


def _bars(report: StepReport) -> "RenderableType":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    row = report.row
    used, largest = row.used_bytes or 0, row.peak_bytes or 0
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1, min_width=10)
    grid.add_column(no_wrap=True)
    done = f"{row.step}/{report.num_steps}  {format_seconds(report.remaining_s)} left"
    grid.add_row("step", ProgressBar(total=report.num_steps, completed=row.step), done)
    if report.is_process:
        words = f"{format_bytes(used)}, at most {format_bytes(largest)}{describe_ranks(row)}"
        grid.add_row("process", ProgressBar(total=max(largest, 1), completed=used), words)
        top, ranks = report.measured_peak_bytes, ""
    else:
        whole = max(report.limit_bytes, largest, 1)
        words = f"{format_bytes(used)} tensors"
        grid.add_row("memory", ProgressBar(total=whole, completed=used), words)
        top, ranks = largest, describe_ranks(row)
    grid.add_row("peak", *_peak_cells(top, report.limit_bytes, ranks))
    return grid


def _peak_cells(
    peak_bytes: int | None, limit_bytes: int, ranks: str
) -> "tuple[RenderableType, str]":
    """Draw the peak of tensors against their limit; an empty bar until it is measured."""
    from rich.progress_bar import ProgressBar

    top = peak_bytes or 0
    tone = "bar.complete" if top < NEAR_LIMIT * limit_bytes else "bold red"
    whole = max(limit_bytes, top, 1)
    bar = ProgressBar(total=whole, completed=top, complete_style=tone, finished_style=tone)
    words = UNKNOWN if peak_bytes is None else format_bytes(peak_bytes)
    return bar, f"{words} of {format_bytes(limit_bytes)}{ranks}"


def _speed_line(report: StepReport) -> str:
    row = report.row
    parts = [
        describe_rate(report),
        f"{format_seconds(row.step_s)}/step",
        f"MFU {describe_share(row.mfu)}",
    ]
    # Without anything recomputed the two say the same.
    if row.hfu is not None and row.mfu is not None and row.hfu > row.mfu:
        parts.append(f"HFU {describe_share(row.hfu)}")
    return "  ".join(parts)


def _eval_line(last: EvalRow, best: EvalRow | None) -> str:
    text = f"step {last.step}: {describe_eval(last)}"
    if best is None or best.step == last.step:
        return text
    return f"{text}  best {best.heldout_loss:.4f} at step {best.step}"


def _line(text: str) -> "RenderableType":
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")
