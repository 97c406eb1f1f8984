"""The loss of connectionist temporal classification: its results, whose size lengths of texts say.

The table of forward probabilities has a row for each position of the longest text, with blanks
between: ``2 x length + 1``. Where nobody knows the lengths its size is not known.

Source: ``ctc_loss_gpu_template`` and ``ctc_loss_backward_gpu_template`` in
``aten/src/ATen/native/cuda/LossCTC.cu``.
"""

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten
FORWARD = frozenset({_aten._ctc_loss.default, _aten._ctc_loss.Tensor})  # noqa: SLF001
_TWIN = "_brimful_twin"
"""``known_values.TWIN``, which is made of this module."""
_TARGETS, _LENGTHS = 1, 3
"""Places of arguments."""


def by_lengths(func: Any, args: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return what the loss returns, where the lengths of its texts are known; else None."""
    if func not in FORWARD:
        return None
    lengths = _values(args[_LENGTHS])
    return None if lengths is None else _made(args[0], max(lengths, default=0))


def of_longest(func: Any, args: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the same of texts of which nobody knows the lengths, all of them as long as can be.

    Texts that stand one behind the other are taken to be equally long.
    """
    if func not in FORWARD:
        return None
    log_probs, targets = args[0], args[_TARGETS]
    by_row = targets.shape[1] if targets.dim() > 1 else -(-targets.numel() // log_probs.shape[1])
    return _made(log_probs, by_row)


def gradient(_grad: torch.Tensor, log_probs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return what ``_ctc_loss_backward`` does."""
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _made(log_probs: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    time, batch = log_probs.shape[:2]
    losses = log_probs.new_empty((batch,))
    return losses, log_probs.new_empty((batch, time, 2 * longest + 1))


def _values(lengths: torch.Tensor | Sequence[int]) -> list[int] | None:
    if not isinstance(lengths, torch.Tensor):
        return list(lengths)
    twin = getattr(lengths, _TWIN, None)
    return None if twin is None else [int(value) for value in lengths.tolist()]
