"""Asking the reference model before training: one pass over the pairs, and none after it.

Before its first step the model is its own reference. What it says of every answer is kept in the
run's folder, so that a run that goes on does not ask again. Held-out pairs are asked each time,
being few.

Shapes: N pairs of the data.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from brimful.build.batch import Batch
from brimful.build.phases import phase
from brimful.build.precision import forward_context, micro_batch_context
from brimful.build.program import Program
from brimful.build.tasks.dpo import ANSWERS, first_scores
from brimful.errors import UnsupportedError
from brimful.files.writing import write_bytes
from brimful.train.data.pairs import longer_row, pair_batch
from brimful.train.data.rows import RowShape, padded_width
from brimful.train.data.sample_batches import FileWindows, SampleBatches
from brimful.train.data.source import DataSource
from brimful.train.world import (
    is_first,
    is_spread,
    num_processes,
    own_rank,
    together,
    told_by_first,
)
from brimful.values.strategy import Strategy

if TYPE_CHECKING:
    from brimful.train.data.prepare import Batches

FILE = "reference.safetensors"
ASKING = "asking"
"""The phase that a forward pass announces before the first step."""
_SCORES, _DATA = "scores", "data_hash"


def check_askable(strategy: Strategy, source: DataSource) -> None:
    """Refuse a reference computed beforehand over data that is never there as a whole."""
    if strategy.reference == "precomputed" and source.streaming:
        raise UnsupportedError(
            "reference=precomputed asks the reference model about all pairs before training, and "
            "--streaming keeps none; use another reference, or leave --streaming out"
        )


def with_reference(
    program: Program,
    batches: "Batches",
    heldout: Sequence[Batch],
    *,
    data_hash: str,
    folder: Path,
) -> "tuple[Batches, list[Batch]]":
    """Give batches what the reference says of their answers, where that is computed beforehand.

    ``program``: with its first weights: not yet trained, not yet loaded from a checkpoint.
    ``folder``: of the run; holds ``FILE`` afterwards. Returns both; as they are for any other kind
    of reference. Raises RunError: the disk is full.
    """
    if program.strategy.reference != "precomputed":
        return batches, list(heldout)
    assert isinstance(batches, SampleBatches)  # pairs are samples; module data has no task dpo
    windows = batches.windows
    assert isinstance(windows, FileWindows)  # ``check_askable`` refuses streams
    num_pairs = len(windows.samples)
    known = _read(folder / FILE, data_hash, num_pairs) if is_first() else None
    scores_N2 = told_by_first(known)  # noqa: N806
    if scores_N2 is None:
        scores_N2 = _ask_all(program, windows, batches.shape)  # noqa: N806
        with together():
            if is_first():
                content = save({_SCORES: scores_N2}, metadata={_DATA: data_hash})
                write_bytes(folder / FILE, content)
    samples = msgspec.structs.replace(windows.samples, reference=scores_N2.numpy())
    told = FileWindows(samples, seq_len=windows.seq_len, packed=windows.packed, seed=windows.seed)
    return (
        SampleBatches(
            told,
            batches.shape,
            global_batch=batches.global_batch,
            micro_batch=batches.micro_batch,
        ),
        [batch._replace(reference=_ask(program, batch)) for batch in heldout],
    )


def _read(path: Path, data_hash: str, num_pairs: int) -> torch.Tensor | None:
    """Read what was kept; None where it is missing, broken, or of other data."""
    try:
        with safe_open(path, "pt") as file:
            scores_N2 = file.get_tensor(_SCORES)  # noqa: N806
            is_same = (file.metadata() or {}).get(_DATA) == data_hash
    except (OSError, SafetensorError):
        return None
    return scores_N2 if is_same and scores_N2.shape == (num_pairs, 2) else None


def _ask_all(program: Program, windows: FileWindows, shape: RowShape) -> torch.Tensor:
    """Ask about every pair, as many at a time as train together: [N, 2] of fp32.

    Each process asks about every so many of them. All ask as often, as shards are gathered for
    each: who has fewer asks about some that are another's, and leaves them out.
    """
    samples, size = windows.samples, program.strategy.micro_batch
    starts, num = range(0, len(samples), size), num_processes()
    found_N2 = torch.zeros((len(samples), ANSWERS), dtype=torch.float32)  # noqa: N806
    for turn in range(-(-len(starts) // num)):
        own = turn * num + own_rank()
        start = starts[min(own, len(starts) - 1)]
        stop = min(start + size, len(samples))
        pairs = [samples.sample(number) for number in range(start, stop)]
        width = padded_width(max(map(longer_row, pairs)), shape.seq_len)
        asked_B2 = _ask(program, pair_batch(pairs, width=width, pad_id=shape.pad_id))  # noqa: N806
        if own < len(starts):
            found_N2[start:stop] = asked_B2
    if not is_spread():
        return found_N2
    every_N2 = found_N2.to(program.device)  # noqa: N806 - each number is of one process
    dist.all_reduce(every_N2)
    return every_N2.cpu()


def _ask(program: Program, batch: Batch) -> torch.Tensor:
    """Ask about a micro-batch: [B, 2] of fp32, on the host."""
    precision = program.job.precision
    program.model.eval()  # nothing is recomputed where nothing is kept
    with (
        torch.no_grad(),  # also for what would reduce gradients afterwards
        phase(ASKING, program),
        micro_batch_context(precision),
        forward_context(precision, program.device),
    ):
        moved = batch.to(program.device)
        scores_B2 = program.root(program, moved, 0, first_scores)  # noqa: N806
    program.model.train()
    return scores_B2.cpu()
