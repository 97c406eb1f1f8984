"""The output layer and the loss where every device has some of the vocabulary.

Each device computes the logits of its own rows of the vocabulary for all tokens. Of a token's
logits the devices tell each other three numbers, the largest, the sum of exponentials and the
target's, and no logits.

Shapes: N tokens of the group, n tokens of this device, D width of a token, v rows of this device.
Source: ``_VocabParallelCrossEntropy`` in Megatron-LM (``megatron/core/tensor_parallel/
cross_entropy.py``); Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from brimful.build.batch import IGNORE_INDEX

_PART = "brimful_vocabulary_part"
"""Attribute of an output layer: which rows of the vocabulary this device has."""


class VocabularyPart(NamedTuple):
    """Which rows of the vocabulary a device has.

    Attributes:
        group: The devices that have all of them together.
        start: The first row.
        num_rows: How many.
    """

    group: ProcessGroup
    start: int
    num_rows: int


def mark_part(head: nn.Module, part: VocabularyPart) -> None:
    """Note on an output layer which rows of the vocabulary it has."""
    setattr(head, _PART, part)


def part_of(head: Any) -> VocabularyPart | None:
    """Return what was noted; None where the layer is whole."""
    part: VocabularyPart | None = getattr(head, _PART, None)
    return part


def own_rows(ids: torch.Tensor, part: VocabularyPart) -> tuple[torch.Tensor, torch.Tensor]:
    """Number tokens by this device's rows.

    ``ids``: of the whole vocabulary, or ``IGNORE_INDEX``. Returns row by row of this device's, 0
    for those of others, and whether they are of others.
    """
    local = ids - part.start
    others = (local < 0) | (local >= part.num_rows)
    return local.masked_fill_(others, 0), others


def summed_cross_entropy(
    logits_Nv: torch.Tensor,  # noqa: N803
    labels_N: torch.Tensor,  # noqa: N803
    part: VocabularyPart,
) -> torch.Tensor:
    """Return the sum of the unmasked tokens' losses, the same number on every device.

    ``logits_Nv``: [N, v] of fp32: this device's rows. ``labels_N``: [N] of the whole vocabulary, or
    ``IGNORE_INDEX``.
    """
    loss: torch.Tensor = _CrossEntropy.apply(logits_Nv, labels_N, part)
    return loss


class _CrossEntropy(Function):  # type: ignore[misc]  # torch is untyped to mypy
    """Sum of ``log(sum(exp(logits))) - logits[target]``; keeps the softmax, as torch's own does."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, part: VocabularyPart
    ) -> torch.Tensor:
        rows, others = own_rows(labels, part)
        kept = labels != IGNORE_INDEX
        largest = logits.amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=part.group)
        shifted = logits - largest[:, None]
        target = shifted.gather(1, rows[:, None])[:, 0].masked_fill_(others, 0.0)
        powers = shifted.exp_()
        sums = torch.stack((powers.sum(-1), target))
        dist.all_reduce(sums, group=part.group)
        ctx.save_for_backward(powers.div_(sums[0][:, None]), rows, others, kept)
        return (sums[0].log() - sums[1]).masked_fill_(~kept, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        softmax, rows, others, kept = ctx.saved_tensors
        weights = gradient * kept
        found = softmax * weights[:, None]
        found.scatter_add_(1, rows[:, None], (-weights).masked_fill_(others, 0.0)[:, None])
        return found, None, None
