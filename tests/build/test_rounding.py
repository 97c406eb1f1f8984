"""Layers that round as they train: which, to what, and that nothing else changes."""

import sys

import pytest
import torch
from tests.models.meta import SMALL

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.precision.kept import without_borders
from brimful.build.program import gradients
from brimful.build.rounding import convert, rounded_layers
from brimful.build.step import evaluate, micro_step, train_step
from brimful.errors import InputError, UnsupportedError
from brimful.models.config import read_config
from brimful.techniques.quantization import ROW, Quantization
from brimful.techniques.runnable import check_strategy
from brimful.values.job import check_job
from samples import make_job, make_strategy

from .plain import ragged_batch

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason="torchao is not installed (pip install 'brimful[qat]')")

CPU = torch.device("cpu")
INT4, INT8 = Quantization(scheme="int4", group_size=8), Quantization(scheme="int8", group_size=ROW)
SCHEMES = pytest.mark.parametrize("quantization", [INT4, INT8], ids=lambda q: q.scheme)


def start(quantization=INT4, architecture="llama", *, job=None, **switches):
    fields = {"method": "qat", "quantization": quantization, **(job or {})}
    made = check_job(make_job(architecture, **fields))
    strategy = check_strategy(made, make_strategy(micro_batch=4, **switches))
    return build_program(made, strategy, CPU), Batch(*ragged_batch(made, step=0))


def by_hand(weight, *, size, smallest):
    """Round groups of a row to whole multiples of their largest number over ``-smallest``."""
    groups = weight.reshape(weight.shape[0], -1, size)
    scale = groups.abs().amax(-1, keepdim=True) / (-smallest - 0.5)
    whole = (groups * scale.reciprocal()).round().clamp(smallest, -smallest - 1)
    return (whole * scale).reshape(weight.shape)


@pytest.mark.parametrize(("quantization", "smallest"), [(INT4, -8), (INT8, -128)], ids=str)
def test_weights_are_rounded_to_whole_multiples_of_a_scale(quantization, smallest):
    program, _ = start(quantization)
    layer = program.model.model.layers[0].mlp.up_proj
    size = quantization.group_size or layer.in_features
    found = layer.weight_fake_quantizer(layer.weight)
    torch.testing.assert_close(found, by_hand(layer.weight, size=size, smallest=smallest))
    assert not torch.equal(found, layer.weight)


def test_inputs_are_rounded_token_by_token():
    program, _ = start()
    rounding = program.model.model.layers[0].mlp.up_proj.activation_fake_quantizer
    x = torch.randn(2, 3, 32)
    found = rounding(x)
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    assert ((found - x).abs() <= (high - low) / 255 * 0.501).all()
    assert torch.equal(rounding(x)[0], rounding(x[:1])[0])  # no row looks at another
    assert max(len(token.unique()) for token in found.flatten(0, 1)) <= 256


def test_linear_layers_round_but_for_the_head():
    program, _ = start()
    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
    assert set(rounded_layers(program.model)) == {
        f"model.layers.{n}.{p}" for n in range(3) for p in projections
    }


def test_what_is_kept_in_fp32_is_not_rounded():
    kept = {"keep_fp32": ("layers.1", "down_proj"), "precision": "bf16-mixed"}
    program, batch = start(job=kept)
    names = set(rounded_layers(program.model))
    assert len(names) == 2 * 6
    assert not any("layers.1." in name or "down_proj" in name for name in names)
    micro_step(program, batch, num_targets=30)


def test_all_that_is_held_is_as_without_it():
    program, batch = start()
    plain = build_program(make_job(), make_strategy(micro_batch=4), CPU)
    expected = {name: p.shape for name, p in plain.model.named_parameters()}
    assert {name: p.shape for name, p in program.model.named_parameters()} == expected
    for (_, ours), (_, theirs) in zip(
        program.model.state_dict().items(), plain.model.state_dict().items(), strict=True
    ):
        assert torch.equal(ours, theirs)
    micro_step(program, batch, num_targets=30)
    assert len(list(gradients(program))) == len(expected)


def losses(quantization=INT4, *, num_steps=4, precision="fp32", **switches):
    program, batch = start(quantization, job={"precision": precision}, **switches)
    return [
        float(train_step(program, [batch], num_targets=30, learning_rate=1e-3).loss)
        for _ in range(num_steps)
    ]


@SCHEMES
@pytest.mark.few
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "bf16-master"])
def test_it_learns(quantization, precision):
    found = losses(quantization, precision=precision)
    assert found[-1] < found[0] - 0.2


def test_coarser_numbers_are_other_ones():
    assert losses(INT4) != losses(INT8)


@pytest.mark.few(1)
@pytest.mark.parametrize("checkpointing", ["full", "selective:2"])
def test_recomputing_is_exact(checkpointing):
    assert losses(activation_checkpointing=checkpointing) == losses()


@SCHEMES
@pytest.mark.few
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_integers_say_what_was_trained(quantization, precision):
    program, batch = start(quantization, job={"precision": precision})
    for _ in range(2):
        train_step(program, [batch], num_targets=30, learning_rate=1e-2)
    before = evaluate(program, [batch])
    convert(program.model, quantization)
    assert evaluate(program, [batch]) == pytest.approx(before, abs=1e-5)
    weight = program.model.model.layers[0].mlp.up_proj.weight
    assert weight.qdata.dtype == torch.int8
    largest = int(weight.qdata.abs().max())
    assert (largest <= 8) == (quantization is INT4)
    weight.scale.mul_(1.5)
    assert evaluate(program, [batch]) != pytest.approx(before, abs=1e-5)


def test_without_borders_layers_are_plain():
    program, batch = start()
    plain = build_program(make_job(), make_strategy(micro_batch=4), CPU)
    expected, rounded = evaluate(plain, [batch]), evaluate(program, [batch])
    with without_borders():
        found = evaluate(program, [batch])
    assert found == expected != rounded


# What is refused.


def test_a_model_without_such_layers_says_so():
    with pytest.raises(UnsupportedError, match="rounds linear layers but for the output layer"):
        start(architecture="gpt2")


def test_a_layer_whose_width_no_group_fits_is_named():
    """Which the specification does not name: here the latent that queries come from."""
    config = {"model_type": "deepseek_v3", **SMALL["deepseek_v3"], "q_lora_rank": 12}
    with pytest.raises(InputError, match=r"q_b_proj=12; use 4 or 2"):
        start(job={"model": read_config("tiny", config)})


def test_without_the_package_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'brimful\[qat\]'"):
        start()
