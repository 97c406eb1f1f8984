"""Megatron's fused softmax on the pretend GPU: what apex's kernels allocate."""

import pytest

from brimful.pretend.apex_softmax import MASKED, PLAIN, TRIANGULAR, rows_per_block

pytestmark = pytest.mark.torch

SHAPE, NUM_BYTES = (2, 4, 256, 256), 2 * 4 * 256 * 256 * 2


@pytest.mark.parametrize(("name", "more"), [(PLAIN, 0), (TRIANGULAR, 0), (MASKED, 1)])
def test_backward_writes_over_the_gradient_but_where_a_mask_was_given(name, more):
    import importlib

    import torch

    from brimful import pretend

    shape = SHAPE if name != TRIANGULAR else (8, 256, 256)
    with pretend.gpu("h100-80gb", assume=("apex",)) as run:
        kernels = importlib.import_module(name)
        scores = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        mask = (torch.zeros(1, device="cuda", dtype=torch.bool),) if name == MASKED else ()
        results = kernels.forward(scores, *mask, 1.0)
        grad = torch.empty_like(results)
        out = kernels.backward(grad, results, 1.0)
        assert (out is grad) == (not more)
        del scores, results, grad, out
    assert run.peak_allocated_bytes == pytest.approx((3 + more) * NUM_BYTES, abs=1024)


@pytest.mark.parametrize(("keys", "rows"), [(16, 16), (64, 8), (128, 8), (129, 4), (2048, 4)])
def test_a_block_of_threads_takes_as_many_rows_as_apex_says(keys, rows):
    assert rows_per_block(keys, keys, 1, 1) == rows
