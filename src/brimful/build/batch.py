"""One micro-batch, as every task and every kind of data hands it over."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

IGNORE_INDEX = -100
"""Labels with this value are masked: no loss, not counted."""


QUESTION, ANSWER = 1, 2
"""Segments of a pair's rows: what is read, and what is scored."""


class Batch(NamedTuple):
    """One micro-batch, on the host until a step moves it.

    Attributes:
        inputs: What goes into the model: [batch, tokens] of int64 for text, any tensor whose
            first dimension is the batch for a module of the user's.
        labels: What should come out: [batch, tokens] of int64 for a decoder, the token after each
            input; [batch, target tokens] for seq2seq; [batch] for a classifier, and for pairs,
            whose answers 0 and 1 are the classes; ``IGNORE_INDEX`` where nothing is learnt.
        segments: [batch, tokens] of int32: which document of its row a token belongs to, from 1;
            0 is padding, which comes last. Tokens see their own document only. None: every row is
            one whole document. Of pairs, [batch, 2, tokens] as their inputs: ``QUESTION`` or
            ``ANSWER``, or 0.
        reference: [batch, 2] of fp32: the log-probabilities of a pair's answers under the
            reference model, where they were computed beforehand.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    segments: torch.Tensor | None = None
    reference: torch.Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """Copy it to a device."""
        moved = (None if tensor is None else tensor.to(device) for tensor in self)
        return Batch(*moved)


def blank(batch: Batch) -> Batch:
    """Return a batch of the same shape of which nothing counts."""
    return batch._replace(labels=torch.full_like(batch.labels, IGNORE_INDEX))


def count_targets(micro_batches: Iterable[Batch]) -> int:
    """Count the unmasked labels of a step (on the host, before anything moves)."""
    return sum(int((batch.labels != IGNORE_INDEX).sum()) for batch in micro_batches)
