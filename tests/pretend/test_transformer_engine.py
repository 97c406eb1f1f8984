"""What stands for Transformer Engine's extension: shapes, bytes, and what is laid out together.

The suite has no Transformer Engine: quantisers are named tuples with the switches of its own.
"""

from types import ModuleType, SimpleNamespace

import pytest
import torch

from brimful import pretend
from brimful.errors import UnsupportedError
from brimful.pretend import device, session
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.transformer_engine import extension, quantizing

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("run")]
LOW = torch.bfloat16
S, B, H, D = 64, 2, 4, 32


@pytest.fixture
def run():
    with pretend.gpu("h100-80gb") as run:
        torch.zeros(1, device="cuda")
        yield run


@pytest.fixture
def tex():
    module = ModuleType(extension.PACKAGE)
    extension.stand_in(OtherKernels(), KnownValues()).fill(module)
    return module


def made(*shape, dtype=LOW):
    return torch.empty(shape, dtype=dtype, device="cuda")


def gemm(tex, a, b, out=None, *, layout, bias=None, grad=False, gelu=False):  # noqa: PLR0913
    return tex.generic_gemm(
        a, layout[0] == "T", b, layout[1] == "T", out, None, None, bias, None, gelu, None, grad,
        None, 0,
    )  # fmt: skip


def test_products_have_the_shapes_of_a_layer(run, tex):
    x, weight = made(S, B, 48), made(80, 48)
    out, bias, gelu, _ = gemm(tex, weight, x, layout="TN", gelu=True)
    assert out.shape == (S, B, 80)
    assert out.dtype == LOW
    assert bias is None
    assert gelu.shape == out.shape
    back, _, none, _ = gemm(tex, weight, out, layout="NN")
    assert back.shape == x.shape
    assert none is None
    into = made(80, 48, dtype=torch.float32)
    before = run.tape.num_allocations()
    same, bias, _, _ = gemm(tex, x, out, into, layout="NT", bias=made(80), grad=True)
    assert same is into
    assert bias.shape == (80,)
    assert run.tape.num_allocations() == before + 2  # the bias that was given, and its gradient


def test_norms_keep_a_number_or_two_of_each_row(tex):
    x, weight = made(S, B, 48), made(48)
    out, mean, invvar = tex.layernorm_fwd(x, weight, weight, 1e-5, None, None, LOW, 0, False)
    assert out.shape == x.shape
    assert mean.shape == invvar.shape == (S * B,)
    out, nothing, invvar = tex.rmsnorm_fwd(x, weight, 1e-5, None, None, LOW, 0, False)
    assert nothing is None
    assert invvar.dtype == torch.float32
    assert [g.shape for g in tex.layernorm_bwd(x, x, mean, invvar, weight, 0, False)] == [
        x.shape, weight.shape, weight.shape
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "num"), [("SBH3D", 1), ("SBHD_SBH2D", 2), ("SBHD_SBHD_SBHD", 3)]
)
def test_gradients_of_attention_lie_as_its_inputs_did(tex, layout, num):
    q, k, v = (made(S, B, H, D) for _ in range(3))
    kinds = tex.NVTE_QKV_Layout[f"NVTE_{layout}"]
    out, lse, state = tex.fused_attn_fwd(S, S, True, 1.0, 0.0, True, kinds, q, k, v, LOW)
    assert out.shape == q.shape
    assert lse.shape == (B, H, S, 1)
    assert state.dtype == torch.int64
    dq, dk, dv, *_ = tex.fused_attn_bwd(S, S, 1.0, 0.0, True, kinds, q, k, v, out, out, LOW)
    assert dq.shape == dk.shape == dv.shape == q.shape
    assert len({g.untyped_storage()._cdata for g in (dq, dk, dv)}) == num


def test_a_learnt_offset_of_softmax_is_handed_on_and_has_a_gradient(tex):
    q, k, v = (made(S, B, H, D) for _ in range(3))
    kinds = tex.NVTE_QKV_Layout.NVTE_SBHD_SBHD_SBHD
    softmax = tex.NVTE_Softmax_Type.NVTE_LEARNABLE_SOFTMAX
    offset = made(1, H, 1, 1)
    *_, kept = tex.fused_attn_fwd(S, S, True, 1.0, 0.0, True, kinds, softmax, q, k, v, LOW, offset)
    assert kept is offset
    *_, gradient = tex.fused_attn_bwd(S, S, 1.0, 0.0, True, kinds, softmax, q, k, v, q, q, LOW)
    assert gradient.shape == offset.shape
    assert gradient.dtype == torch.float32


def test_softmax_is_written_over_the_gradient(tex):
    scores = made(B, H, S, S)
    out = tex.scaled_masked_softmax_forward(scores, None, 1.0)
    assert out is not scores
    assert out.shape == scores.shape
    assert tex.scaled_masked_softmax_backward(scores, out, 1.0) is scores


@pytest.mark.parametrize(("gpu", "transposed"), [("h100-80gb", True), ("b200", False)])
def test_fp8_keeps_a_transpose_where_the_card_multiplies_one_layout_only(
    tex, monkeypatch, gpu, transposed
):

    monkeypatch.setattr(quantizing, "import_module", lambda _: FAKE_CLASSES)
    quantizer = Float8Quantizer()
    card = session.card_of(gpu)
    with device.pretending(card):
        x = tex.quantize(made(S, 48), quantizer)
        assert x.data.shape == (S, 48)
        assert x.data.dtype == torch.uint8
        assert (x.data_transpose is not None) == transposed
        assert not transposed or x.data_transpose.shape == (48, S)


def test_nvfp4_is_half_a_byte_along_rows_and_along_columns(tex, monkeypatch):
    monkeypatch.setattr(quantizing, "import_module", lambda _: FAKE_CLASSES)
    with device.pretending(session.card_of("b200")):
        x = tex.quantize(made(256, 512), NVFP4Quantizer())
    assert x.rowwise_data.shape == (256, 256)
    assert x.rowwise_scale_inv.shape == (256, 32)
    assert x.columnwise_data.shape == (512, 128)
    assert x.columnwise_scale_inv.shape == (512, 16)
    assert x.amax_rowwise.shape == x.amax_columnwise.shape == (1,)


class NVFP4Quantizer:
    """The switches of NVFP4's quantiser."""

    rowwise_usage = columnwise_usage = internal = True
    row_scaled_nvfp4 = nvfp4_use_4over6 = False
    nvfp4_e4m3_max, dtype = 448, 10


class Float8Quantizer:
    """The switches of delayed scaling's quantiser."""

    rowwise_usage = columnwise_usage = internal = True
    dtype = 7


FAKE_CLASSES = SimpleNamespace(
    Float8TensorStorage=SimpleNamespace, NVFP4TensorStorage=SimpleNamespace
)


def test_what_was_not_read_is_refused_by_name(tex):
    with pytest.raises(UnsupportedError, match=r"transformer_engine_torch\.newton_schulz"):
        tex.newton_schulz(1, 2)
    with pytest.raises(UnsupportedError, match="tp-comm-overlap"):
        tex.CommOverlap()


def test_its_own_python_has_to_be_there(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError, match="pip install --no-deps transformer-engine"):
        pretend.gpu(assume=["transformer-engine"])
