"""How a run ended, as a value and in a few lines."""

from pathlib import Path

import msgspec

from brimful.train.step_report import describe_share
from brimful.units import format_bytes, format_count, format_seconds


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        num_steps: Optimizer steps done, those before a resume included.
        resumed_from: The step that this process went on from; 0 where it began.
        interrupted: Whether it was asked to stop before the last step; it can be resumed.
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
        tokens_per_s: Tokens of a step divided by ``median_step_s``.
        median_mfu: Model FLOPs utilization over the same steps; None where unknown.
        peak_bytes: Largest memory in use while training: resident on a CPU, allocated on a GPU.
        model: Folder of the trained model; None where the run was interrupted.
    """

    num_steps: int
    resumed_from: int
    interrupted: bool
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
    tokens_per_s: float | None
    median_mfu: float | None
    peak_bytes: int
    model: Path | None


def describe_result(result: TrainResult) -> str:
    """Sum a run up: how much it saw, how fast it was, and how good it became."""
    parts = [
        f"{result.num_steps} steps",
        f"{format_count(result.num_targets)} tokens seen",
        *([f"{result.num_skipped} steps skipped"] if result.num_skipped else []),
        *_speed(result),
        f"peak {format_bytes(result.peak_bytes)}",
        *_best(result),
    ]
    return ", ".join(parts)


def _speed(result: TrainResult) -> list[str]:
    if result.median_step_s is None or result.tokens_per_s is None:
        return []
    return [
        f"median step {format_seconds(result.median_step_s)}",
        f"{format_count(result.tokens_per_s)} tokens/s",
        f"MFU {describe_share(result.median_mfu)}",
    ]


def _best(result: TrainResult) -> list[str]:
    if result.best_heldout_loss is None:
        return []
    return [f"best held-out loss {result.best_heldout_loss:.4f} at step {result.best_step}"]
