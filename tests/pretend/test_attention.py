"""Which attention kernel is chosen, why not another, and that it is the one PyTorch takes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.errors import UnsupportedError
from brimful.pretend import attention, device, kernels
from brimful.pretend.attention_choice import Attention, gemm_alignment

pytestmark = pytest.mark.torch

NODES = {
    "cpu-flash": "ScaledDotProductFlashAttentionForCpuBackward0",
    "flash": "ScaledDotProductFlashAttentionBackward0",
    "efficient": "ScaledDotProductEfficientAttentionBackward0",
    "cudnn": "ScaledDotProductCudnnAttentionBackward0",
    "math": "BmmBackward0",
}
A100, A40, H100, T4 = (8, 0), (8, 6), (9, 0), (7, 5)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = [
    # dtype, head_dim, mask, dropout, grouped, what an A100 takes
    (BF16, 64, False, 0.0, False, "flash"),
    (FP16, 128, False, 0.0, True, "flash"),
    (BF16, 256, False, 0.0, False, "flash"),
    (BF16, 264, False, 0.0, False, "efficient"),
    (BF16, 64, True, 0.0, False, "efficient"),
    (BF16, 64, True, 0.0, True, "math"),
    (FP32, 64, False, 0.0, False, "efficient"),
    (FP32, 66, False, 0.0, False, "math"),
    (FP32, 64, True, 0.0, False, "efficient"),
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


def choice(capability, dtype=BF16, head_dim=64, *, torch_version=None, masked=False, **others):
    """What would be chosen for 4 heads of 32 tokens."""
    with (
        FakeTensorMode(),
        kernels.imitate("cuda", capability=capability, torch_version=torch_version),
    ):
        query, key, value, mask = inputs("cpu", dtype, head_dim, masked=masked, grouped=False)
        return attention.choose(Attention(query, key, value, mask, **others))


def node_names(out):
    """List the autograd nodes behind a tensor."""
    names, stack = [], [out.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None:
            names.append(node.name())
            stack.extend(above for above, _ in node.next_functions)
    return names


class Made(TorchDispatchMode):
    """Lists operations with the shape and type of what they made."""

    def __init__(self):
        super().__init__()
        self.all = []

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.all.append((func.overloadpacket.__name__, tuple(out.shape), out.dtype))
        return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_a100_chooses_by_type_head_and_mask(case):
    with kernels.imitate("cuda", capability=A100), FakeTensorMode():
        out, query = attend("gpu:0", case)
        assert NODES[case[-1]] in node_names(out)
        assert out.shape == query.shape
        assert out.dtype == query.dtype
        with torch.autograd.set_multithreading_enabled(False):  # as the tape does
            out.sum().backward()
        assert query.grad.shape == query.shape


@pytest.mark.parametrize("case", [*CASES, (FP32, 64, False, 0.5, False, "")], ids=str)
def test_the_cpu_choice_is_that_of_a_real_cpu(case):
    out, query = attend("cpu", case)
    real = NODES["cpu-flash"] in node_names(out)
    with kernels.imitate("cpu"), FakeTensorMode():
        mask = torch.empty(query.shape[-2:-1] * 2) if case[2] else None
        call = Attention(query, query, query, mask, case[3])
        assert (attention.choose(call).kernel == "cpu-flash") is real
        pretended, _ = attend("gpu:0", case)
        assert (NODES["cpu-flash"] in node_names(pretended)) is real


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cuda_choice_is_that_of_a_real_gpu(case):
    out, query = attend("cuda", case)
    capability = torch.cuda.get_device_capability()
    dtype, head_dim, masked, dropout, grouped, _ = case
    with kernels.imitate("cuda", capability=capability):
        _, key, value, mask = inputs("cuda", dtype, head_dim, masked=masked, grouped=grouped)
        call = Attention(query, key, value, mask, dropout, not masked, None, grouped)
        assert NODES[attention.choose(call).kernel] in node_names(out)


# -- cards, versions and switches --


def test_a_hopper_prefers_cudnn_since_its_wheels_have_a_new_one():
    assert choice(H100, torch_version=(2, 13)).kernel == "cudnn"
    assert choice(H100, torch_version=(2, 13), masked=True).kernel == "cudnn"
    assert choice(H100, torch_version=(2, 10)).kernel == "flash"
    assert choice(H100, FP32, torch_version=(2, 13)).kernel == "efficient"
    assert choice(A100, torch_version=(2, 13)).kernel == "flash"


def test_cudnn_can_be_put_back_by_the_environment_and_by_a_switch(monkeypatch):
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        found = choice(H100, torch_version=(2, 13))
        assert found.kernel == "flash"
        assert found.rejected == (("cudnn", "switched off"),)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert choice(H100, torch_version=(2, 13)).rejected == ()


def test_cards_before_ampere_have_no_flash_and_no_fused_bf16():
    found = choice(T4, FP16)
    assert found.kernel == "efficient"
    assert found.rejected == (("flash", "it needs compute capability 8.0 to 12.1, not 7.5"),)
    assert choice(T4, BF16).kernel == "math"
    assert choice(T4, FP32, 66).kernel == "efficient"


def test_small_ampere_cannot_train_heads_of_193_to_224():
    assert choice(A40, head_dim=256).kernel == "flash"
    assert choice(A40, head_dim=224).kernel == "efficient"
    assert choice(A40, head_dim=256, dropout_p=0.1).kernel == "efficient"
    with torch.no_grad():
        assert choice(A40, head_dim=224).kernel == "flash"
    assert choice(A100, head_dim=224).kernel == "flash"


def test_a_causal_rectangle_is_not_for_flash():
    with kernels.imitate("cuda", capability=A100), FakeTensorMode():
        query, key = torch.empty(1, 2, 8, 64, dtype=BF16), torch.empty(1, 2, 16, 64, dtype=BF16)
        assert attention.choose(Attention(query, key, key, is_causal=True)).kernel == "efficient"
        assert attention.choose(Attention(query, key, key)).kernel == "flash"


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [
        (SDPBackend.MATH, "math"),
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.FLASH_ATTENTION, "flash"),
        (SDPBackend.CUDNN_ATTENTION, "cudnn"),
    ],
)
def test_the_kernel_that_the_user_asks_for_is_taken(backend, kernel):
    with sdpa_kernel(backend):
        assert choice(H100).kernel == kernel


def test_the_order_that_the_user_sets_is_followed():
    order = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel(order, set_priority=True):
        assert choice(H100).kernel == "efficient"


def test_no_kernel_left_is_an_error_that_says_why():
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="flash: it"):
        choice(A100, FP32)


def test_alignment_is_that_of_the_cards_matrix_units():
    assert gemm_alignment(BF16, A100) == 8
    assert gemm_alignment(FP32, A100) == 4
    assert gemm_alignment(FP16, T4) == 8
    assert gemm_alignment(FP32, T4) == 1


# -- bytes around the kernels --


def made(capability, tokens, mask_dtype, head_dim=64, **kernel):
    with kernels.imitate("cuda", capability=capability, **kernel), FakeTensorMode():
        query = torch.ones(1, 2, tokens, head_dim, dtype=BF16, device="gpu:0", requires_grad=True)
        mask = torch.ones(1, 1, tokens, tokens, dtype=mask_dtype, device="gpu:0")
        seen = Made()
        with seen:
            scaled_dot_product_attention(query, query, query, mask)
    return seen.all


def test_a_boolean_mask_becomes_numbers_as_on_a_real_cpu():
    real = Made()
    query = torch.ones(1, 2, 32, 64, dtype=BF16, requires_grad=True)
    with real:
        scaled_dot_product_attention(query, query, query, torch.ones(1, 1, 32, 32) > 0)
    names = [name for name, _, _ in real.all]
    assert names.count("where") == 1
    with kernels.imitate("cpu"), FakeTensorMode():
        seen, query = Made(), torch.ones(1, 2, 32, 64, dtype=BF16, device="gpu:0")
        mask = torch.ones(1, 1, 32, 32, dtype=torch.bool, device="gpu:0")
        with seen:
            scaled_dot_product_attention(query, query, query, mask)
    assert ("where", (1, 1, 32, 32), BF16) in seen.all


def test_the_efficient_kernel_pads_a_mask_whose_rows_are_not_multiples_of_8():
    padded = ("constant_pad_nd", (1, 1, 100, 104), BF16)
    assert padded in made(A100, 100, BF16)
    assert padded in made(A100, 100, torch.bool)
    assert ("where", (1, 1, 100, 100), BF16) in made(A100, 100, torch.bool)
    assert not [name for name, _, _ in made(A100, 104, BF16) if "pad" in name or name == "where"]


def test_the_written_out_formula_is_fp32_inside():
    shapes = made(T4, 32, torch.bool)
    assert ("where", (1, 1, 32, 32), BF16) in shapes
    assert ("_safe_softmax", (1, 2, 32, 32), FP32) in shapes
    assert [shape for name, shape, dtype in shapes if name == "_to_copy" and dtype == FP32]


def test_flash_pads_heads_to_a_multiple_of_eight():
    with kernels.imitate("cuda", capability=A100), FakeTensorMode():
        odd = torch.ones(1, 2, 16, 20, dtype=BF16, device="gpu:0", requires_grad=True)
        out = scaled_dot_product_attention(odd, odd, odd, is_causal=True)
        assert out.shape == odd.shape
        names = node_names(out)
    assert NODES["flash"] in names
    assert any("Pad" in name for name in names)


def test_flex_attention_is_refused_with_the_way_out_and_left_alone_elsewhere():
    with FakeTensorMode(), torch.no_grad():
        query = torch.empty(1, 2, 16, 16, device="gpu:0")
        with pytest.raises(UnsupportedError, match="attn_implementation='sdpa'"):
            flex_attention(query, query, query)
    real = torch.ones(1, 2, 16, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="backward on CPU"):  # PyTorch's own check
        flex_attention(real, real, real)


def test_the_bytes_of_a_block_mask_are_seen():
    seen = Made()
    with FakeTensorMode(), seen:
        mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 256, 512, device="gpu:0")
    assert mask.kv_indices.shape == (1, 1, 2, 4)
    assert mask.kv_indices.device.type == "gpu"
    assert [shape for _, shape, dtype in seen.all if dtype == torch.bool and 512 in shape]


def test_every_choice_is_told():
    heard = []
    attention.on_choice.append(heard.append)
    try:
        made(A100, 32, BF16)
    finally:
        attention.on_choice.remove(heard.append)
    assert [found.kernel for found in heard] == ["efficient"]


def test_an_h100_is_imitated_unless_said_otherwise():
    assert kernels.current() == "cuda"
    assert kernels.imitated().capability == H100
    with kernels.imitate("cpu"):
        assert kernels.current() == "cpu"
    with kernels.imitate("cuda", capability=A100, torch_version=(2, 9)):
        assert kernels.imitated().capability == A100
        assert kernels.imitated().cudnn_version == 91002
    assert kernels.current() == "cuda"
