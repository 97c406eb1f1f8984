import sys
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from brimful.build import quantize
from brimful.build.quantize.int8 import Int8Linear
from brimful.errors import UnsupportedError
from brimful.values.job import Base

pytestmark = pytest.mark.torch

ROWS, COLUMNS, TOKENS = 96, 128, 10
FORMATS = [name for name in quantize.FORMATS if name in get_args(Base)]
"""Those of frozen bases; ``tests/measure/test_inference.py`` has those that are only read."""
WORST = {"nf4": 0.16, "nf4-double": 0.165, "int8": 0.004, "llm-int8": 0.004}
"""Largest error of a weight by the largest weight: half the widest step of the format."""


def swapped(base, *, dtype=torch.float32, conv=False, bias=True):
    with torch.device("meta"):
        layer = Conv1D(ROWS, COLUMNS) if conv else nn.Linear(COLUMNS, ROWS, bias=bias)
        model = nn.Sequential(layer)
    quantize.swap(model, base, dtype=dtype, keeps=lambda _: False)
    if model[0].bias is not None:
        model[0].bias = nn.Parameter(torch.randn(ROWS, dtype=dtype), requires_grad=False)
    return model[0]


def filled(base, *, dtype=torch.float32, conv=False, bias=True):
    torch.manual_seed(0)
    layer = swapped(base, dtype=dtype, conv=conv, bias=bias)
    weight = torch.randn(quantize.full_shape(layer), dtype=dtype)
    quantize.fill(layer, weight.clone())
    return layer, weight


def stored_bytes(layer):
    tensors = [layer.weight, *layer.buffers()]
    return sum(x.numel() * x.element_size() for x in tensors)


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("base", FORMATS)
def test_a_filled_layer_stands_for_its_weight_in_the_layout_of_the_layer_it_replaced(base, conv):
    layer, weight = filled(base, conv=conv)
    held = quantize.dequantize(layer)
    assert held.shape == weight.shape == ((COLUMNS, ROWS) if conv else (ROWS, COLUMNS))
    assert 0 < (held - weight).abs().max() <= WORST[base] * weight.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", FORMATS)
def test_forward_and_backward_are_those_of_the_weight_it_stands_for(base, dtype):
    layer, _ = filled(base, dtype=dtype)
    x = torch.randn(2, TOKENS, COLUMNS, dtype=dtype, requires_grad=True)
    out = layer.train()(x)
    out.backward(torch.ones_like(out))
    weight = quantize.dequantize(layer).to(dtype)
    like = x.detach().clone().requires_grad_()
    expected = functional.linear(like, weight, layer.bias)
    expected.backward(torch.ones_like(expected))
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.2}
    torch.testing.assert_close(out, expected, **near)
    torch.testing.assert_close(x.grad, like.grad, **near)
    assert out.dtype == dtype
    assert all(p.grad is None and not p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("double", [False, True])
def test_nf4_holds_what_the_library_s_own_parameter_would(double):
    library = pytest.importorskip("bitsandbytes")
    layer, weight = filled("nf4-double" if double else "nf4")
    theirs = library.nn.Params4bit(
        weight, requires_grad=False, compress_statistics=double, quant_type="nf4"
    ).to("cpu")
    assert torch.equal(layer.weight.data, theirs.data)
    assert torch.equal(layer.quant_state.absmax, theirs.quant_state.absmax)
    if double:
        assert torch.equal(layer.quant_state.state2.absmax, theirs.quant_state.state2.absmax)
        assert torch.equal(layer.quant_state.state2.code, theirs.quant_state.state2.code)
        assert torch.equal(layer.quant_state.offset, theirs.quant_state.offset)


def test_llm_int8_holds_what_the_library_s_own_parameter_would():
    library = pytest.importorskip("bitsandbytes")
    layer, weight = filled("llm-int8")
    theirs = library.nn.Int8Params(weight, requires_grad=False).to("cpu")
    assert torch.equal(layer.weight.data, theirs.data)
    assert torch.equal(layer.state.SCB, theirs.SCB)


@pytest.mark.parametrize("base", FORMATS)
def test_a_layer_takes_the_bytes_of_its_closed_form(base):
    layer, weight = filled(base)
    count, blocks = weight.numel(), weight.numel() // 64
    table, nested_table = 16 * 4, 256 * 4
    expected = {
        "nf4": count // 2 + blocks * 4 + table,
        "nf4-double": count // 2 + blocks + -(-blocks // 256) * 4 + 4 + table + nested_table,
        "int8": count + ROWS * 4,
        "llm-int8": count + ROWS * 4,
    }
    assert stored_bytes(layer) == expected[base]


def test_a_row_of_zeros_stays_one():
    layer, weight = filled("int8", bias=False)
    weight[3] = 0
    quantize.fill(layer, weight)
    assert not quantize.dequantize(layer)[3].any()
    assert quantize.dequantize(layer).isfinite().all()


def test_an_int8_product_keeps_nothing_wide_until_backward():
    layer, _ = filled("int8", dtype=torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        layer(torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16, requires_grad=True))
    assert sorted(x.numel() * x.element_size() for x in kept) == [ROWS * 4, ROWS * COLUMNS]


@pytest.mark.parametrize("base", FORMATS)
def test_an_evaluation_between_two_steps_changes_nothing(base):
    """On some CPUs the library lays 4-bit weights out anew in evaluation; they would not train."""
    layer, _ = filled(base, dtype=torch.bfloat16)
    x = torch.randn(TOKENS, COLUMNS, dtype=torch.bfloat16)
    before = layer.weight.data.clone(), layer.train()(x.clone().requires_grad_())
    with torch.no_grad():
        layer.eval()(x)
    after = layer.train()(x.clone().requires_grad_())
    assert torch.equal(layer.weight.data, before[0])
    assert torch.equal(after, before[1])
    assert after.requires_grad


def test_layers_of_other_classes_and_kept_ones_stay():
    class Special(nn.Linear):
        pass

    with torch.device("meta"):
        model = nn.ModuleDict(
            {
                "a": nn.Linear(8, 8),
                "b": nn.Linear(8, 8),
                "c": Special(8, 8),
                "d": nn.Embedding(8, 8),
            }
        )
    quantize.swap(model, "int8", dtype=torch.float32, keeps=lambda name: name == "b")
    assert [type(m) for m in model.values()] == [Int8Linear, nn.Linear, Special, nn.Embedding]
    assert [quantize.is_quantized(m) for m in model.values()] == [True, False, False, False]


@pytest.mark.parametrize("base", ["nf4", "nf4-double", "llm-int8"])
def test_a_missing_package_is_named_with_the_way_to_get_it(base, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UnsupportedError, match=r"brimful\[quant\]"):
        swapped(base)
