"""Pieces cut one by one are those that FSDP2 cuts all at once."""

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

from brimful.pretend.shards import Pieces

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 7, 12, 13, 40])
def test_the_pieces_are_those_of_fsdp(num_chunks, dim):
    tensor = torch.arange(13 * 12.0).reshape(13, 12)
    whole = _chunk_with_empty(tensor, num_chunks, dim)
    pieces = Pieces(tensor, num_chunks, dim)
    assert len(pieces) == len(whole)
    for mine, theirs in zip(list(pieces), whole, strict=True):
        assert mine.shape == theirs.shape
        assert torch.equal(mine, theirs)
        assert mine.is_contiguous() == theirs.is_contiguous()
