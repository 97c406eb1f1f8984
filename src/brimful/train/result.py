"""How a run ended, as a value and in a few lines."""

from pathlib import Path

import msgspec

from brimful.train.step_report import describe_share
from brimful.units import format_bytes, format_count, format_seconds
from brimful.values.job import Job
from brimful.values.task_words import judged_by, loss_unit, noun


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        num_steps: Optimizer steps done, those before a resume included.
        resumed_from: The step that this process went on from; 0 where it began.
        interrupted: Whether it was asked to stop before the last step; it can be resumed.
        asked_to_stop: Whether there was a signal at all, in the last step or after it too.
        num_targets: Unmasked tokens seen in them.
        num_skipped: Steps among them that were skipped because scaled gradients overflowed.
        final_loss: Training loss of the last step, in nats per token; of the last one that has a
            finite one, and None where none has.
        heldout_loss: The newest held-out loss; None where the run was interrupted before its first.
        perplexity: Its exponential; None for what predicts no tokens.
        accuracy: Share of held-out targets predicted right; None where the task has no such thing.
        best_heldout_loss: The lowest held-out loss.
        best_step: The step after which it was that.
        unigram_entropy: Of the held-out tokens, in nats per token: the bar to beat.
        median_step_s: Over the steps after the metered ones; None where there were none.
        padded_tokens_per_s: Tokens of a step, padding included, divided by ``median_step_s``.
        median_mfu: Model FLOPs utilization over the same steps; None where unknown.
        peak_bytes: Largest memory in use while training: resident on a CPU, allocated on a GPU.
        model: Folder of the trained model; None where the run was interrupted, or keeps none.
        num_takeovers: How often memory ran out and another strategy went on.
        num_restarts: How often the processes were started again because one was lost.
        measured_peak_bytes: Of tensors, as the meter read it in the metered steps, of many
            processes the highest; None where nothing was measured.
        is_process: Whether ``peak_bytes`` is of the whole process (CPU) or of tensors (GPU).
    """

    num_steps: int
    resumed_from: int
    interrupted: bool
    asked_to_stop: bool
    num_targets: int
    num_skipped: int
    final_loss: float | None
    heldout_loss: float | None
    perplexity: float | None
    accuracy: float | None
    best_heldout_loss: float | None
    best_step: int | None
    unigram_entropy: float
    median_step_s: float | None
    padded_tokens_per_s: float | None
    median_mfu: float | None
    peak_bytes: int
    model: Path | None
    num_takeovers: int = 0
    num_restarts: int = 0
    measured_peak_bytes: int | None = None
    is_process: bool = False


def describe_result(result: TrainResult, job: Job) -> str:
    """Sum a run up in one or two lines: how much it saw and how fast, and how good it became."""
    parts = [
        f"{result.num_steps} steps",
        f"{format_count(result.num_targets)} {noun(job.task)} learnt from",
        *([f"{result.num_skipped} steps skipped"] if result.num_skipped else []),
        *([f"out of memory {_times(result.num_takeovers)}"] if result.num_takeovers else []),
        *([f"started again {_times(result.num_restarts)}"] if result.num_restarts else []),
        *_speed(result, job),
        *_memory(result),
    ]
    return "\n".join([", ".join(parts), *_quality(result, job)])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _memory(result: TrainResult) -> list[str]:
    """Say the peak of what is trained, and on a CPU the process's beside it."""
    if not result.is_process:
        return [f"peak {format_bytes(result.peak_bytes)}"]
    measured = result.measured_peak_bytes
    peak = [] if measured is None else [f"peak {format_bytes(measured)}"]
    return [*peak, f"process memory {format_bytes(result.peak_bytes)}"]


def _speed(result: TrainResult, job: Job) -> list[str]:
    if result.median_step_s is None or result.padded_tokens_per_s is None:
        return []
    return [
        f"median step {format_seconds(result.median_step_s)}",
        _rate(result.padded_tokens_per_s, job),
        *([] if result.median_mfu is None else [f"MFU {describe_share(result.median_mfu)}"]),
    ]


def _rate(tokens_per_s: float, job: Job) -> str:
    if noun(job.task) == "samples":
        return f"{format_count(tokens_per_s / job.seq_len)} samples/s"
    padded = "" if job.packing == "wrapped" else " with padding"
    return f"{format_count(tokens_per_s)} tokens/s{padded}"


def _quality(result: TrainResult, job: Job) -> list[str]:
    """Say the newest and the best loss on what was held out, and the bar."""
    if result.heldout_loss is None:
        return []
    parts = [f"held-out loss {result.heldout_loss:.4f}{loss_unit(job.task)}"]
    if result.unigram_entropy:
        parts[0] += f" ({judged_by(job.task)} {result.unigram_entropy:.3f})"
    if result.accuracy is not None:
        parts.append(f"accuracy {100 * result.accuracy:.2f}%")
    if result.best_step is not None and result.best_step != result.num_steps:
        parts.append(f"best {result.best_heldout_loss:.4f} at step {result.best_step}")
    return [", ".join(parts)]
