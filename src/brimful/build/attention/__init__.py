"""How a model attends: which kernel, and what it is given so that documents stay apart.

``transformers`` decides whether a mask is needed by looking at values of ``position_ids``, which a
fake tensor has not: the simulated run would make a mask that the real one does not. Here the
answer is known beforehand (a row is one causal document, or says where each ends), so it is given,
in both. Which kernel runs where stands in ``brimful.techniques.kernel_support``.
"""

from functools import partial
from typing import Any

import torch

from brimful.build.attention import flex, fused, varlen
from brimful.build.attention.masks import causal_mask, document_mask, window_mask
from brimful.build.attention.own import attends_by_itself
from brimful.build.attention.positions import document_positions
from brimful.build.attention.windows import TOLD_WINDOWS, masks, window_of
from brimful.build.batch import Batch
from brimful.build.program import Program
from brimful.build.stream import query_dtype, stream_dtype
from brimful.values.strategy import Attention

__all__ = ["IMPLEMENTATION", "KERNELS", "causal_mask", "model_inputs"]

IMPLEMENTATION: dict[Attention, str] = {
    "eager": "eager",
    **fused.NAMES,
    "flex": flex.NAME,
    "varlen": varlen.NAME,
}
"""The name under which ``transformers`` knows each; one without a mask function gets no mask."""
KERNELS: tuple[Any, ...] = (*fused.KERNELS, *varlen.KERNELS, *flex.KERNELS)
"""Every attention kernel that may run, as dispatched: what selective checkpointing keeps."""


def model_inputs(program: Program, batch: Batch) -> dict[str, Any]:
    """Make what a decoder is given beside its tokens: positions, masks, bounds of documents.

    Padding comes last, so that a causal token never sees it: only packing needs more.

    ``program``: says how it attends and whether rows hold several documents.
    """
    if attends_by_itself(program.model):
        return {}
    if program.job.packing == "documents" and batch.segments is not None:
        positions = document_positions(batch.segments)
        return {"position_ids": positions, **_apart(program, batch.segments)}
    if program.strategy.attention == "flex":
        return {flex.ARGUMENT: flex.causal_blocks(batch.inputs)}
    seq_len = batch.inputs.shape[1]
    window = window_of(program.model.config, seq_len)
    is_told = program.strategy.attention in TOLD_WINDOWS and program.device.type != "cpu"
    if window is None or is_told:
        return {"attention_mask": _one_text(program, seq_len, None)}
    make = partial(_one_text, program, seq_len)
    return {"attention_mask": masks(program.model, make, window)}


def _one_text(program: Program, seq_len: int, window: int | None) -> torch.Tensor | None:
    """Make the mask of rows of one text each."""
    device = program.device
    if window is not None:
        dtype = _score_dtype(program)
        return window_mask(seq_len=seq_len, window=window, dtype=dtype, device=device)
    return causal_mask(
        program.strategy.attention,
        seq_len=seq_len,
        dtype=stream_dtype(program.model, program.job, program.strategy),
        device=device,
    )


def _apart(program: Program, segments: torch.Tensor) -> dict[str, Any]:
    """Make what keeps documents from seeing one another, once for all blocks of a kind."""
    attention = program.strategy.attention
    if attention == "varlen":
        return {varlen.ARGUMENT: varlen.document_bounds(segments)}
    if attention == "flex":
        return {flex.ARGUMENT: flex.document_blocks(segments)}
    window = window_of(program.model.config, segments.shape[1])
    dtype = _score_dtype(program)
    if window is None:
        return {"attention_mask": document_mask(segments, dtype=dtype)}

    def make(window: int | None) -> torch.Tensor:
        return document_mask(segments, dtype=dtype, window=window)

    return {"attention_mask": masks(program.model, make, window)}


def _score_dtype(program: Program) -> torch.dtype:
    return query_dtype(program.model, program.job, program.strategy, program.device)
