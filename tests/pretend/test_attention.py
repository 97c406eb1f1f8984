"""Which attention kernel is chosen, and that it is the one PyTorch takes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from brimful.pretend import attention, device, kernels

pytestmark = pytest.mark.torch

NODES = {
    "cpu-flash": "ScaledDotProductFlashAttentionForCpuBackward0",
    "flash": "ScaledDotProductFlashAttentionBackward0",
    "efficient": "ScaledDotProductEfficientAttentionBackward0",
}
CASES = [
    # dtype, head_dim, mask, dropout, grouped, what CUDA takes
    (torch.bfloat16, 64, False, 0.0, False, "flash"),
    (torch.float16, 128, False, 0.0, True, "flash"),
    (torch.bfloat16, 256, False, 0.0, False, "flash"),
    (torch.bfloat16, 264, False, 0.0, False, "efficient"),
    (torch.bfloat16, 64, True, 0.0, False, "efficient"),
    (torch.float32, 64, False, 0.0, False, "efficient"),
    (torch.float32, 64, True, 0.0, False, "efficient"),
]


@pytest.fixture(autouse=True)
def _gpu():
    device.register()


def inputs(where, dtype, head_dim, *, masked, grouped):
    kv_heads = 2 if grouped else 4
    shapes = [(2, 4, 32, head_dim), *[(2, kv_heads, 32, head_dim)] * 2]
    query, key, value = (
        torch.ones(shape, dtype=dtype, device=where, requires_grad=True) for shape in shapes
    )
    mask = torch.zeros(1, 1, 32, 32, dtype=dtype, device=where) if masked else None
    return query, key, value, mask


def attend(where, case):
    dtype, head_dim, masked, dropout, grouped, _ = case
    query, key, value, mask = inputs(where, dtype, head_dim, masked=masked, grouped=grouped)
    out = scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=not masked, enable_gqa=grouped
    )
    return out, query


def node_names(out):
    """List the autograd nodes behind a tensor."""
    names, stack = [], [out.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None:
            names.append(node.name())
            stack.extend(above for above, _ in node.next_functions)
    return names


def check(where, case, node):
    with FakeTensorMode():
        out, query = attend(where, case)
        assert node in node_names(out)
        assert out.shape == query.shape
        assert out.dtype == query.dtype
        with torch.autograd.set_multithreading_enabled(False):  # as the tape does
            out.sum().backward()
        assert query.grad.shape == query.shape


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cuda_kernels_are_chosen_by_type_head_and_mask(case):
    with kernels.imitate("cuda"):
        check("gpu:0", case, NODES[case[-1]])


@pytest.mark.parametrize("case", [*CASES, (torch.float32, 64, False, 0.5, False, "")], ids=str)
def test_the_cpu_choice_is_that_of_a_real_cpu(case):
    out, query = attend("cpu", case)
    real = NODES["cpu-flash"] in node_names(out)
    with kernels.imitate("cpu"), FakeTensorMode():
        mask = torch.empty(1) if case[2] else None
        assert (attention.choose(query, mask, case[3]) == "cpu-flash") is real
        pretended, _ = attend("gpu:0", case)
        assert (NODES["cpu-flash"] in node_names(pretended)) is real


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cuda_choice_is_that_of_a_real_gpu(case):
    out, _ = attend("cuda", case)
    assert NODES[case[-1]] in node_names(out)


def test_flash_pads_heads_to_a_multiple_of_eight():
    with kernels.imitate("cuda"), FakeTensorMode():
        odd = torch.ones(1, 2, 16, 20, dtype=torch.bfloat16, device="gpu:0", requires_grad=True)
        out = scaled_dot_product_attention(odd, odd, odd, is_causal=True)
        assert out.shape == odd.shape
        names = node_names(out)
    assert NODES["flash"] in names
    assert any("Pad" in name for name in names)


def test_cuda_is_imitated_unless_said_otherwise():
    assert kernels.current() == "cuda"
    with kernels.imitate("cpu"):
        assert kernels.current() == "cpu"
    assert kernels.current() == "cuda"
