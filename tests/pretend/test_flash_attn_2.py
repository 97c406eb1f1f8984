"""What stands for flash-attn: shapes and gradients as its own, bytes as its source has them."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from brimful import pretend
from brimful.errors import UnsupportedError

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("flash_attn") is not None, reason="of a machine without it"
    ),
]

BATCH, TOKENS, HEADS, DIM = 2, 250, 8, 64
LOW = torch.bfloat16


@pytest.fixture
def run():
    with pretend.gpu("a100-40gb", assume=["flash-attn"]) as run:
        torch.zeros(1, device="cuda")
        run.module = importlib.import_module("flash_attn")
        yield run
    assert "flash_attn" not in sys.modules


def made(*shape):
    return torch.randn(shape, device="cuda", dtype=LOW, requires_grad=True)


def test_it_is_found_as_the_package_is(run):
    assert run.module.__version__ == importlib.metadata.version("flash-attn")
    assert "flash-attn" in importlib.metadata.packages_distributions()["flash_attn"]
    assert importlib.util.find_spec("flash_attn.cute") is None
    names = inspect.signature(run.module.flash_attn_varlen_func).parameters
    assert {"max_seqlen_q", "softcap", "deterministic", "block_table"} <= set(names)
    assert "block_table" not in inspect.signature(run.module.flash_attn_func).parameters
    with pytest.raises(UnsupportedError, match="for inference"):
        run.module.flash_attn_with_kvcache(made(1, 1, HEADS, DIM), None, None)


@pytest.mark.parametrize("dim", [DIM, 60])
@pytest.mark.parametrize("keys", [HEADS, 2])
def test_gradients_are_those_of_the_inputs(run, keys, dim):
    q, k, v = made(BATCH, TOKENS, HEADS, dim), *(made(BATCH, TOKENS, keys, dim) for _ in "kv")
    out, lse, _ = run.module.flash_attn_func(q, k, v, 0.0, causal=True, return_attn_probs=True)
    assert out.shape == q.shape
    assert lse.shape == (BATCH, HEADS, TOKENS)
    out.backward(torch.ones_like(out))
    assert [x.grad.shape for x in (q, k, v)] == [x.shape for x in (q, k, v)]
    assert run.other_kernels.launched == {"flash_attn_2_cuda.fwd": 1, "flash_attn_2_cuda.bwd": 1}


def test_packed_tensors_have_one_gradient(run):
    for parts, shape in (("qkv", (TOKENS, 3, HEADS, DIM)), ("kv", (TOKENS, 2, 2, DIM))):
        together, q = made(*shape), made(TOKENS, HEADS, DIM)
        begins = torch.tensor([0, 100, TOKENS], dtype=torch.int32, device="cuda")
        if parts == "qkv":
            attend = run.module.flash_attn_varlen_qkvpacked_func
            out = attend(together, begins, 150, causal=True)
        else:
            attend = run.module.flash_attn_varlen_kvpacked_func
            out = attend(q, together, begins, begins, 150, 150)
        assert out.shape == q.shape
        out.backward(torch.ones_like(out))
        assert together.grad.shape == together.shape
    assert run.tape.num_allocations()


def peak_of(attend, *shapes):
    """Return the highest of a forward and backward."""
    with pretend.gpu("a100-40gb", assume=["flash-attn"]) as run:
        q, k, v = (made(*shape) for shape in shapes)
        out = attend(q, k, v)
        out.backward(torch.ones_like(out))
    return run.peak_allocated_bytes


@pytest.mark.parametrize("keys", [HEADS, 2])
def test_it_takes_what_pytorchs_own_copy_of_it_takes(keys):
    def flash(q, k, v):
        return importlib.import_module("flash_attn").flash_attn_func(q, k, v, causal=True)

    def own(q, k, v):
        turned = (x.transpose(1, 2) for x in (q, k, v))
        grouped = keys != HEADS
        out = scaled_dot_product_attention(*turned, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2)

    shapes = [(BATCH, TOKENS, heads, DIM) for heads in (HEADS, keys, keys)]
    assert peak_of(flash, *shapes) == pytest.approx(peak_of(own, *shapes), abs=64)


def test_a_deterministic_backward_keeps_one_dq_for_every_split(run):
    peaks = []
    for deterministic in (False, True):
        q, k, v = (made(1, 128, 2, DIM) for _ in "qkv")
        out = run.module.flash_attn_func(q, k, v, deterministic=deterministic)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out.backward(torch.ones_like(out))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    one_dq = 4 * 128 * 2 * DIM
    assert peaks[1] - peaks[0] == (108 // 2 - 1) * one_dq, "an A100 has 108 multiprocessors"


def test_padding_is_left_out_and_put_back(run):
    padding = importlib.import_module("flash_attn.bert_padding")
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]], device="cuda")
    x = made(2, 4, HEADS)
    rows, indices, begins, longest, used = padding.unpad_input(x, mask)
    assert rows.shape == (4, HEADS)
    assert indices.tolist() == [0, 1, 2, 4]
    assert begins.tolist() == [0, 3, 4]
    assert longest == 3
    assert used.tolist() == [3, 1]
    back = padding.pad_input(rows, indices, 2, 4)
    assert back.shape == x.shape
    back.sum().backward()
    assert x.grad.shape == x.shape
    assert run.tape.num_allocations()
