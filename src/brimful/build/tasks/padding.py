"""Masks that keep padding out of sight, for tasks whose rows are single padded documents.

Whether there is a mask is decided by whether a batch says where its padding is, never by the values
of the mask: ``transformers`` would look, and a fake tensor has none (decision 2). All masks are
numbers, 0 where a query may look and the type's minimum where not, so that a row of nothing but
padding yields numbers and no NaN.

Shapes: B batch, S tokens, T target tokens.
"""

import torch

from brimful.build.batch import Batch
from brimful.values.job import Job
from brimful.values.strategy import Strategy

ROW_MULTIPLE = 8
"""Elements that the memory-efficient kernel wants a mask's rows to begin at, or it copies them."""


def padding_mask(batch: Batch, dtype: torch.dtype) -> torch.Tensor | None:
    """Make the mask under which no token sees padding.

    ``batch``: one micro-batch; without segments it has no padding. Returns [B, 1, 1, S], or None.
    """
    if batch.segments is None:
        return None
    num_rows, seq_len = batch.segments.shape
    padded = -(-seq_len // ROW_MULTIPLE) * ROW_MULTIPLE
    mask = torch.zeros((num_rows, 1, 1, padded), dtype=dtype, device=batch.segments.device)
    blocked = (batch.segments == 0)[:, None, None]
    return mask[..., :seq_len].masked_fill_(blocked, torch.finfo(dtype).min)


def padded_sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of rows as long as they get, with labels of the same length."""
    shape = (strategy.micro_batch, job.seq_len)
    ids = torch.zeros(shape, dtype=torch.int64, device="cpu")
    return Batch(ids, ids, torch.ones(shape, dtype=torch.int32, device="cpu"))
