"""Masks that are added to scores: 0 where a query may look, the type's minimum where not.

Shapes: B batch, S tokens of a row.
"""

import torch

from brimful.values.strategy import Attention

ROW_MULTIPLE = 8
"""Elements that the memory-efficient kernel wants a mask's rows to begin at: without it every block
would make a padded copy (``preprocess_mask`` in PyTorch's ``attention.cpp``)."""


def causal_mask(
    attention: Attention, *, seq_len: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Make the mask that an attention written out adds to its scores.

    ``seq_len``: tokens per sequence. Returns [1, 1, S, S]; None for fused attention, which implies
    the mask.
    """
    if attention != "eager":
        return None
    blocked = torch.full((seq_len, seq_len), torch.finfo(dtype).min, dtype=dtype, device=device)
    return blocked.triu_(1)[None, None]


def window_mask(
    *, seq_len: int, window: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Make the mask under which a token sees itself and the ``window - 1`` before it.

    Returns [1, 1, S, S].
    """
    shape = (1, 1, seq_len, _padded(seq_len))
    mask = torch.zeros(shape, dtype=dtype, device=device)[..., :seq_len]
    return mask.masked_fill_(_outside(seq_len, window, device), torch.finfo(dtype).min)


def _padded(seq_len: int) -> int:
    return -(-seq_len // ROW_MULTIPLE) * ROW_MULTIPLE


def _outside(seq_len: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Say which keys a query of one text may not see: those after it, or before its window."""
    every = torch.ones((seq_len, seq_len), dtype=torch.bool, device=device)
    if window is None:
        return every.triu_(1)
    return every.tril(-window).logical_or_(every.triu_(1))


def document_mask(
    segments: torch.Tensor, *, dtype: torch.dtype, window: int | None = None
) -> torch.Tensor:
    """Make the mask under which a token sees its own document up to itself, and nothing else.

    One mask of numbers serves every block. A boolean one would be a fraction of its size, but
    ``scaled_dot_product_attention`` makes numbers of it anew in every block and keeps them all.

    ``segments``: [B, S] of int32: the document of each token in its row. ``window``: tokens of its
    document that a token sees, itself included; None: all before it. Returns [B, 1, S, S].
    """
    num_rows, seq_len = segments.shape
    shape = (num_rows, 1, seq_len, _padded(seq_len))
    mask = torch.zeros(shape, dtype=dtype, device=segments.device)[..., :seq_len]
    blocked = segments[:, None, :, None] != segments[:, None, None, :]
    blocked |= _outside(seq_len, window, segments.device)
    return mask.masked_fill_(blocked, torch.finfo(dtype).min)


def neighbour_mask(segments: torch.Tensor, *, dtype: torch.dtype, window: int) -> torch.Tensor:
    """Make the mask under which a token sees its text to a distance, on both sides of itself.

    ``segments``: [B, S] of int32: 0 for padding. ``window``: the farthest token that is seen, as
    ``transformers`` counts: that one included. Returns [B, 1, S, S].
    """
    num_rows, seq_len = segments.shape
    shape = (num_rows, 1, seq_len, _padded(seq_len))
    mask = torch.zeros(shape, dtype=dtype, device=segments.device)[..., :seq_len]
    every = torch.ones((seq_len, seq_len), dtype=torch.bool, device=segments.device)
    far = every.tril(-window - 1).logical_or_(every.triu_(window + 1))
    blocked = (segments == 0)[:, None, None].logical_or(far)
    return mask.masked_fill_(blocked, torch.finfo(dtype).min)
