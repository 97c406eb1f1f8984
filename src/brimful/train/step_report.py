"""One step as it is shown: its numbers, and the words for them."""

import msgspec

from brimful.train.expert_load import drop_share, worst_load
from brimful.units import format_bytes, format_count, format_seconds
from brimful.values.job import Task
from brimful.values.run_files import EvalRow, ExpertRow, TrainRow
from brimful.values.task_words import noun

UNKNOWN = "-"


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer step, as it is shown.

    Attributes:
        row: Just done, as it is logged.
        num_steps: Of the whole run.
        task: Of the job.
        num_skipped: Steps of the whole run that were skipped so far.
        is_process: Whether the row's memory is that of the whole process (CPU) or of tensors (GPU).
        measured_peak_bytes: Of tensors, as the meter read it; None while it has not.
        limit_bytes: What the plan was made for.
        remaining_s: Expected wall time to the last step.
    """

    row: TrainRow
    num_steps: int
    task: Task
    num_skipped: int
    is_process: bool
    measured_peak_bytes: int | None
    limit_bytes: int
    remaining_s: float


def describe_step(report: StepReport) -> str:
    """Say a step in one line of about 100 columns."""
    row = report.row
    parts = [
        f"step {row.step}/{report.num_steps}",
        f"loss {describe_number(row.loss, '.4f')}",
        f"lr {row.learning_rate:.1e}",
        f"norm {describe_number(row.grad_norm, '.2f')}",
        describe_rate(report),
        *([] if row.mfu is None else [f"MFU {describe_share(row.mfu)}"]),
        *_describe_memory(report),
        f"{format_seconds(report.remaining_s)} left",
    ]
    return "  ".join([*parts, *describe_scale(report)])


def _describe_memory(report: StepReport) -> list[str]:
    """Say the peak of what is trained, and on a CPU the process's memory, which no limit is for."""
    row, measured = report.row, report.measured_peak_bytes
    largest = f"{format_bytes(row.peak_bytes or 0)}{describe_ranks(row)}"
    if not report.is_process:
        return [f"peak {largest}"]
    return [
        *([] if measured is None else [f"peak {format_bytes(measured)}"]),
        f"process {largest}",
    ]


def describe_ranks(row: TrainRow) -> str:
    """Say which process has the highest peak and which is the slowest; nothing of one alone."""
    if row.hottest_rank is None:
        return ""
    return f" (rank {row.hottest_rank}; slowest {row.slowest_rank})"


def describe_rate(report: StepReport) -> str:
    """Say how many tokens, or samples, were learnt from per second."""
    counted = noun(report.task)
    unit = "tok" if counted == "tokens" else counted
    return f"{format_count(report.row.tokens_per_s)} {unit}/s"


def describe_scale(report: StepReport) -> list[str]:
    """Say the loss scale and how many steps were skipped; nothing where no loss is scaled."""
    if report.row.loss_scale is None:
        return []
    return [f"scale {report.row.loss_scale:g}", f"{report.num_skipped} skipped"]


def describe_number(value: float | None, spec: str) -> str:
    """Print a number, or a dash where there is none."""
    return UNKNOWN if value is None else format(value, spec)


def describe_share(share: float | None) -> str:
    """Print a share in percent, or a dash where it is unknown."""
    return UNKNOWN if share is None else f"{100 * share:.1f}%"


def describe_experts(row: ExpertRow) -> str:
    """Say which expert was loaded most, and what found no place."""
    worst = worst_load(row)
    if worst is None:
        return "experts: nothing was counted"
    text = (
        f"experts: busiest {worst.imbalance:.2f} x the mean (expert {worst.busiest} of block "
        f"{worst.block}, {worst.share:.0%} of the tokens)"
    )
    return f"{text}, {drop_share(row):.1%} of the tokens dropped" if row.dropped else text


def describe_eval(row: EvalRow) -> str:
    """Say how the model does on held-out data."""
    parts = [f"held-out loss {row.heldout_loss:.4f}"]
    if row.perplexity is not None:
        parts.append(f"perplexity {row.perplexity:.4g}")
    if row.accuracy is not None:
        parts.append(f"accuracy {100 * row.accuracy:.2f}%")
    return "  ".join([*parts, *(["best so far"] if row.is_best else [])])
