"""What a run says before its first step: what it is trained on, and which parameters train."""

from collections.abc import Iterator
from typing import Any

import torch

from brimful.build.program import Program
from brimful.train.data.prepare import Summary
from brimful.train.world import of_all
from brimful.units import format_count, format_seconds
from brimful.values.job import PREFERENCE, Job
from brimful.values.run_files import TrainRow
from brimful.values.strategy import stage_rank
from brimful.values.task_words import judged_by, noun


def describe_data(summary: Summary, job: Job) -> str:
    """Say in one line where the data comes from, how much it is, and what was left out."""
    num_skipped = sum(skipped.num_records for skipped in summary.skipped)
    parts = [
        *_counted(summary, job),
        *([f"{num_skipped} records skipped"] if num_skipped else []),
        *([f"{summary.num_truncated} cut at {job.seq_len}"] if summary.num_truncated else []),
        *_bar(summary, job),
    ]
    return f"data: {summary.source}: {', '.join(parts)}"


def _counted(summary: Summary, job: Job) -> list[str]:
    parts = []
    if summary.num_train_samples is not None:
        parts.append(f"{format_count(summary.num_train_samples)} samples")
    if noun(job.task) == "tokens" and summary.num_train_tokens is not None:
        parts.append(f"{format_count(summary.num_train_tokens)} tokens")
        targets = summary.num_train_targets
        if targets is not None and targets != summary.num_train_tokens:
            parts.append(f"{format_count(targets)} of them learnt")
    return parts or ["read as it is needed"]


def _bar(summary: Summary, job: Job) -> list[str]:
    if not summary.unigram_entropy:
        return []
    if job.task == PREFERENCE:
        return [f"{judged_by(job.task)} {summary.unigram_entropy:.3f}"]
    return [f"{judged_by(job.task)} of what is held out {summary.unigram_entropy:.3f}"]


def describe_trained(program: Program) -> str:
    """Say how many parameters train, and what share of all they are."""
    # Count every parameter, adapters among them: all of one that is packed, or parted.
    counts = [(_num_trained(program), sum(_num_values(p) for p in _own_parameters(program)))]
    if program.pipeline is not None:
        counts = _by_stage(program, counts[0])
    trained, total = (sum(numbers) for numbers in zip(*counts, strict=True))
    if trained == total:
        return f"training all {format_count(trained)} parameters"
    share = f"{100 * trained / total:.3g} %"
    return f"training {format_count(trained)} of {format_count(total)} parameters ({share})"


def _by_stage(program: Program, own: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the counts of every device of the first row; all processes call this."""
    every, strategy = of_all(own), program.strategy
    return [every[stage_rank(strategy, place)] for place in range(strategy.pp)]


def _num_trained(program: Program) -> int:
    return sum(_num_values(p) for p in _own_parameters(program) if p.requires_grad)


def _own_parameters(program: Program) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters, but for a copy that another device of a pipeline counts."""
    pipeline = program.pipeline
    copies: frozenset[torch.Tensor] = frozenset() if pipeline is None else pipeline.row.repeated
    return (p for p in program.model.parameters() if p not in copies)


def _num_values(parameter: Any) -> int:
    state = getattr(parameter, "quant_state", None)
    if state is not None:
        return int(state.shape.numel())
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def describe_compiled(row: TrainRow, num: int, seconds: float) -> str:
    """Say what compiling the update took."""
    return (
        f"step {row.step} took {format_seconds(row.step_s)}, of which compiling the update for "
        f"{num} {'shape' if num == 1 else 'shapes'} of parameters took {format_seconds(seconds)}"
    )
