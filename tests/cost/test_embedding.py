"""The closed form of the embedding's workspace is what the table of kernels says."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.cost.embedding import embedding_workspace
from brimful.pretend import workspaces

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("num_tokens", [1, 3072, 3073, 5314, 100_001])
@pytest.mark.parametrize("vocab_size", [5000, 128_256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_that_of_the_kernel(num_tokens, vocab_size, dtype):
    func = torch.ops.aten.embedding_dense_backward.default
    with FakeTensorMode():
        grad = torch.empty(num_tokens, 64, dtype=dtype)
        indices = torch.empty(num_tokens, dtype=torch.int64)
        args = (grad, indices, vocab_size, -1, False)
        taken = workspaces.workspaces(func, args, {}, func(*args), capability=(9, 0))
    predicted = embedding_workspace(num_tokens=num_tokens, vocab_size=vocab_size, hidden_size=64)
    assert sum(one.num_bytes for one in taken) == predicted
