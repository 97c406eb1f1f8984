"""Products in fp8 by torchao: which, in which types, and by what mathematics."""

import sys

import msgspec
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.precision.fp8 import MULTIPLE, convert, converted_layers
from brimful.build.precision.kept import without_borders
from brimful.build.program import gradients, state_tensors
from brimful.build.step import micro_step, train_step, update
from brimful.errors import InputError, UnsupportedError
from brimful.techniques.exact import exactness
from brimful.techniques.kernel_support import Place, check_precision
from brimful.techniques.runnable import FP8_MULTIPLE, check_strategy
from brimful.values.job import check_job
from float8 import WHY
from samples import make_adapter, make_job, make_model, make_strategy

from .plain import ragged_batch

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason=WHY)

CPU = torch.device("cpu")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def start(architecture="llama", *, job=None, **switches):
    made = check_job(make_job(architecture, precision="fp8", **(job or {})))
    strategy = check_strategy(made, make_strategy(micro_batch=4, **switches))
    return build_program(made, strategy, CPU), Batch(*ragged_batch(made, step=0))


def names_of(program):
    paths = {id(module): path for path, module in program.model.named_modules()}
    return {paths[id(layer)] for layer in converted_layers(program.model)}


# By hand.


def rounded(tensor, kind):
    """Scale a tensor by its largest number, round it, and return what is left of it."""
    scale = (torch.finfo(kind).max / tensor.abs().max().double().clamp(min=1e-12)).float()
    return (tensor.float() * scale).to(kind).float() / scale


class ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (rounded(x, E4M3) @ rounded(weight, E4M3).T).to(x.dtype)

    @staticmethod
    def backward(ctx, arrived):
        x, weight = ctx.saved_tensors
        narrow = rounded(arrived, E5M2)
        back = (narrow @ rounded(weight, E4M3)).to(arrived.dtype)
        return back, (narrow.T @ rounded(x, E4M3)).to(arrived.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_computes_what_is_written_out_by_hand(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48, bias=False, dtype=dtype))
    weight = model[0].weight.detach().clone().requires_grad_()
    convert(model, keeps=lambda _: False, emulate=True, pads=False)
    x = (torch.randn(64, 32) * torch.logspace(-3, 3, 32)).to(dtype)
    pair = [x.clone().requires_grad_() for _ in range(2)]
    ours, theirs = ByHand.apply(pair[0], weight), model(pair[1])
    arrived = torch.randn(64, 48).to(dtype)
    ours.backward(arrived)
    theirs.backward(arrived)
    for one, other in (
        (theirs, ours),
        (pair[1].grad, pair[0].grad),
        (model[0].weight.grad, weight.grad),
    ):
        torch.testing.assert_close(
            one, other, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
        )
    exact = x.float() @ weight.float().T
    lost = (theirs.detach().float() - exact.detach()).norm() / exact.detach().norm()
    assert 1e-3 < float(lost) < 0.1  # three digits after the point, twice


def test_outside_of_borders_it_is_the_plain_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 48))
    x = torch.randn(16, 32)
    plain = model(x)
    convert(model, keeps=lambda _: False, emulate=True, pads=False)
    assert not torch.equal(model(x), plain)
    with without_borders():
        assert torch.equal(model(x), plain)


# In a program.


def test_linear_layers_are_converted_but_for_the_head():
    program, _ = start()
    projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")  # fmt: skip
    assert names_of(program) == {f"model.layers.{n}.{p}" for n in range(3) for p in projections}


def test_what_no_kernel_takes_is_left_in_16_bits():
    program, _ = start(job={"model": make_model(intermediate_size=88)})
    assert not any("mlp" in name for name in names_of(program))
    assert any("self_attn" in name for name in names_of(program))


def test_what_is_kept_in_fp32_is_not_converted():
    program, batch = start(job={"keep_fp32": ("layers.1", "down_proj")})
    names = names_of(program)
    assert not any("layers.1." in name or "down_proj" in name for name in names)
    assert len(names) == 2 * 6
    micro_step(program, batch, num_targets=30)


def test_all_that_is_held_is_fp32_and_layers_hand_on_16_bits():
    program, batch = start()
    seen = set()
    for layer in converted_layers(program.model):
        layer.register_forward_hook(lambda _m, _i, out: seen.add(out.dtype))
    loss = micro_step(program, batch, num_targets=30)
    assert loss.dtype == torch.float32
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in program.model.parameters()} == {torch.float32}
    assert {g.dtype for g in gradients(program)} == {torch.float32}
    update(program, learning_rate=1e-3)
    assert {x.dtype for x in state_tensors(program) if x.ndim} == {torch.float32}


def losses(precision, *, num_steps=4, **switches):
    job = make_job(precision=precision)
    program = build_program(job, make_strategy(micro_batch=4, **switches), CPU)
    batch = Batch(*ragged_batch(job, step=0))
    return [
        float(train_step(program, [batch], num_targets=30, learning_rate=1e-3).loss)
        for _ in range(num_steps)
    ]


def test_it_learns_as_bf16_mixed_does():
    found, mixed = losses("fp8"), losses("bf16-mixed")
    assert found != mixed
    assert found == pytest.approx(mixed, rel=5e-3)
    assert found[-1] < found[0] - 0.3


@pytest.mark.few(1)
@pytest.mark.parametrize("switches", [
    {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective:2"},
], ids=str)  # fmt: skip
def test_recomputing_is_exact(switches):
    assert losses("fp8", **switches) == losses("fp8")


@pytest.mark.parametrize("switches", [{"loss_chunks": 4}, {"attention": "eager"}], ids=str)
def test_other_switches_move_what_bf16_rounds(switches):
    assert losses("fp8", **switches) == pytest.approx(losses("fp8"), rel=2e-3)


def test_rows_of_any_number_are_filled_up():
    """Seven tokens a row: products that add over tokens are of a multiple of 16."""
    job = check_job(make_job(precision="fp8", seq_len=7, packing="none"))
    program = build_program(job, check_strategy(job, make_strategy(micro_batch=1)), CPU)
    ids = torch.randint(0, 97, (1, 7))
    batch = Batch(ids, ids, torch.ones(1, 7, dtype=torch.int32))
    done = train_step(program, [batch], num_targets=7, learning_rate=1e-3)
    assert float(done.grad_norm) > 0


def test_a_module_of_the_users_own_is_converted():
    from brimful.models.config import load_model

    model = load_model("user_modules:perceptron")
    job = make_job(model=model, task="module", packing="none", seq_len=1, precision="fp8")
    for _ in range(2):  # the factory is called anew each time
        program = build_program(check_job(job), make_strategy(micro_batch=4), CPU)
        assert len(converted_layers(program.model)) == 2
        batch = Batch(torch.randn(4, 32), torch.zeros(4, dtype=torch.int64))
        assert float(micro_step(program, batch, num_targets=4)) > 0
    plain = msgspec.structs.replace(job, precision="bf16-mixed")
    assert not converted_layers(build_program(plain, make_strategy(micro_batch=4), CPU).model)


# Where torchao's layer does not fit.


def passed(model, x):
    """Return what comes out, what goes back, and how many numbers were kept between both."""
    given, kept = x.clone().requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        out = model(given)
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype))
    return out, given.grad, sum(kept)


def test_a_frozen_layer_is_torchao_s_without_what_its_weight_s_gradient_takes():
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Linear(32, 48))
    frozen = nn.Sequential(nn.Linear(32, 48)).requires_grad_(False)
    frozen.load_state_dict(trained.state_dict())
    for model in (trained, frozen):
        convert(model, keeps=lambda _: False, emulate=True, pads=False)
    x = torch.randn(64, 32)
    (out, back, kept), (ours, ours_back, ours_kept) = passed(trained, x), passed(frozen, x)
    assert torch.equal(out, ours)
    assert torch.equal(back, ours_back)
    assert kept - ours_kept == x.numel()
    assert frozen[0].weight.grad is None


def test_gpt_2_s_layer_is_the_linear_layer_of_its_transpose():
    torch.manual_seed(0)
    linear, turned = nn.Sequential(nn.Linear(32, 48)), nn.Sequential(Conv1D(48, 32))
    with torch.no_grad():
        turned[0].weight.copy_(linear[0].weight.t())
        turned[0].bias.copy_(linear[0].bias)
    for model in (linear, turned):
        convert(model, keeps=lambda _: False, emulate=True, pads=False)
    x = torch.randn(64, 32)
    for mine, theirs in zip(passed(turned, x)[:2], passed(linear, x)[:2], strict=True):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(turned[0].weight.grad, linear[0].weight.grad.t())


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_frozen_layers_multiply_in_fp8_and_adapters_do_not(architecture, method):
    job = {"method": method, "adapter": make_adapter(rank=16), "packing": "none"}
    program, batch = start(architecture, job=job)
    names = names_of(program)
    assert names
    assert not any("lora_" in name for name in names)
    done = train_step(program, [batch], num_targets=30, learning_rate=1e-3)
    assert float(done.grad_norm) > 0


# What is refused.


def test_a_model_without_such_layers_says_so():
    narrow = {"hidden_size": 40, "intermediate_size": 72, "num_attention_heads": 2}
    with pytest.raises(UnsupportedError, match="rows and columns are multiples of 16"):
        start(job={"model": make_model(**narrow)})


def test_packed_bases_are_not_run():
    adapted = make_job(precision="fp8", method="qlora", adapter=make_adapter(base="nf4"))
    with pytest.raises(UnsupportedError, match="precision=fp8 with method=qlora"):
        check_job(adapted)


@pytest.mark.parametrize(("strategy", "words"), [
    ({"tp": 2}, "tp=2 with precision=fp8"),
    ({"pp": 2, "stages_per_device": 2, "pp_schedule": "zero-bubble"}, "zero-bubble with precision"),
    ({"zero": 3, "dp_shard": 2, "engine": "deepspeed"}, "precision=fp8 is not run by engine="),
], ids=str)  # fmt: skip
def test_strategies_that_do_not_run_it(strategy, words):
    model = make_model(vocab_size=96, num_hidden_layers=4)
    job = make_job(model=model, precision="fp8")
    with pytest.raises(UnsupportedError, match=words):
        check_strategy(job, make_strategy(**strategy))


def test_rows_that_cannot_be_added_over():
    assert FP8_MULTIPLE == MULTIPLE
    job = make_job(precision="fp8", seq_len=25, global_batch=4)
    with pytest.raises(InputError, match="50 tokens and precision=fp8 multiplies multiples of 16"):
        check_strategy(job, make_strategy(micro_batch=2))
    assert check_strategy(msgspec.structs.replace(job, packing="none"), make_strategy())


@pytest.mark.parametrize("capability", [7.0, 8.0, 8.6])
def test_gpus_without_units_are_told_so(capability):
    job = make_job(precision="fp8")
    with pytest.raises(UnsupportedError, match=rf"capability 8\.9 on, not {capability}"):
        check_precision(job, Place("cuda", capability))


@pytest.mark.parametrize("place", [Place("cuda", 8.9), Place("cuda", 9.0), Place("cpu", 0.0)])
def test_where_it_runs(place):
    assert check_precision(make_job(precision="fp8"), place)


def test_without_the_package_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'brimful\[fp8\]', or use bf16-mixed"):
        start()


def test_the_size_of_a_micro_batch_moves_roundings_and_no_more():
    found = []
    for size in (4, 1):
        job = make_job(precision="fp8", seq_len=32)
        assert exactness(job, "micro_batch", size).how == ("exact" if size == 4 else "rounding")
        program = build_program(job, make_strategy(micro_batch=size), CPU)
        ids = torch.randint(0, 97, (4, 32), generator=torch.Generator().manual_seed(2))
        batches = [Batch(rows, rows) for rows in ids.split(size)]
        step = train_step(program, batches, num_targets=128, learning_rate=1e-3)
        found.append((float(step.loss), float(step.grad_norm)))
    assert found[0] != found[1]
    assert found[0][0] == pytest.approx(found[1][0], rel=2e-3)
    assert found[0][1] == pytest.approx(found[1][1], rel=2e-2)
