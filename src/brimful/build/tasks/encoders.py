"""Encoders, whatever is learnt with them: which of them run, and what their tokens may see."""

from typing import Any

import torch

from brimful.build.attention.masks import neighbour_mask
from brimful.build.attention.own import attends_by_itself, takes_kernels
from brimful.build.attention.windows import masks, window_of
from brimful.build.batch import Batch
from brimful.build.decoder_check import check_windows
from brimful.build.model import skeleton_of
from brimful.build.program import Program
from brimful.build.stream import query_dtype
from brimful.build.tasks.padding import padding_mask
from brimful.errors import UnsupportedError
from brimful.models.kernels import check_taken
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def encoder_skeleton(auto_class: Any, job: Job, strategy: Strategy) -> Any:
    """Build an encoder on ``meta``.

    ``auto_class``: says with which head. Raises UnsupportedError: its masks, or its windows, cannot
    be given by such attention. Rows without padding need no mask, whoever makes them.
    """
    check_taken(job, strategy.attention)
    model: Any = skeleton_of(auto_class, job, strategy)
    is_masked = job.packing != "wrapped" or not takes_kernels(model)
    if attends_by_itself(model) and is_masked and strategy.attention != "eager":
        raise UnsupportedError(
            f"{job.model.name} is of type {job.model.model_type}, whose attention cannot be given "
            f"from outside; use attention=eager",
            nearest={"attention": "eager"},
        )
    check_windows(model, job, strategy)
    return model


def encoder_masks(program: Program, batch: Batch) -> Any:
    """Make what keeps padding out of sight, and what lies outside the window of some blocks."""
    dtype = query_dtype(program.model, program.job, program.strategy, program.device)
    window = window_of(program.model.config, batch.inputs.shape[1])
    if window is None:
        return padding_mask(batch, dtype)
    segments = torch.ones_like(batch.inputs) if batch.segments is None else batch.segments

    def make(distance: int | None) -> torch.Tensor | None:
        if distance is None:
            return padding_mask(batch, dtype)
        return neighbour_mask(segments, dtype=dtype, window=distance)

    return masks(program.model, make, window)
