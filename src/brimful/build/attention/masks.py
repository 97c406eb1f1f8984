"""Masks that are added to scores: 0 where a query may look, the type's minimum where not.

Shapes: B batch, S tokens of a row.
"""

import torch

from brimful.strategy import Attention

ROW_MULTIPLE = 8
"""Elements that the memory-efficient kernel wants a mask's rows to begin at: without it every block
would make a padded copy (``preprocess_mask`` in PyTorch's ``attention.cpp``)."""


def causal_mask(
    attention: Attention, *, seq_len: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Make the mask that an attention written out adds to its scores.

    Args:
        attention: How the model attends.
        seq_len: Tokens per sequence.
        dtype: Type of the hidden states.
        device: Where they live.

    Returns:
        [1, 1, S, S]; None for fused attention, which implies the mask.
    """
    if attention != "eager":
        return None
    blocked = torch.full((seq_len, seq_len), torch.finfo(dtype).min, dtype=dtype, device=device)
    return blocked.triu_(1)[None, None]


def document_mask(segments: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    """Make the mask under which a token sees its own document up to itself, and nothing else.

    One mask of numbers serves every block. A boolean one would be a fraction of its size, but
    ``scaled_dot_product_attention`` makes numbers of it anew in every block and keeps them all.

    Args:
        segments: [B, S] of int32: the document of each token in its row.
        dtype: Type of the queries.

    Returns:
        [B, 1, S, S].
    """
    num_rows, seq_len = segments.shape
    padded = -(-seq_len // ROW_MULTIPLE) * ROW_MULTIPLE
    shape = (num_rows, 1, seq_len, padded)
    mask = torch.zeros(shape, dtype=dtype, device=segments.device)[..., :seq_len]
    blocked = segments[:, None, :, None] != segments[:, None, None, :]
    blocked |= torch.ones((seq_len, seq_len), dtype=torch.bool, device=segments.device).triu_(1)
    return mask.masked_fill_(blocked, torch.finfo(dtype).min)
