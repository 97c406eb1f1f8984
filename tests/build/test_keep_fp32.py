"""Modules that are kept in fp32: found by name, held and computed in it, healed by it."""

import msgspec
import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.precision.kept import kept_modules
from brimful.build.precision.masters import MASTER
from brimful.build.step import micro_step, train_step, update
from brimful.errors import InputError, UnknownNameError, UnsupportedError
from brimful.models.config import load_model
from brimful.techniques.runnable import check_strategy
from brimful.values.job import SCALED, LossScale, check_job
from samples import make_adapter, make_job, make_model, make_strategy

from .plain import ragged_batch

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_TARGETS = 30
SCALE = LossScale(initial_scale=2.0**8, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)
EVERYTHING = {"llama": ("model", "lm_head"), "gpt2": ("transformer", "lm_head")}
LAYER = "model.layers.1"


def start(precision, keep, architecture="llama", *, job=None, **switches):
    scale = SCALE if precision in SCALED else None
    fields = {"precision": precision, "loss_scale": scale, "keep_fp32": keep, **(job or {})}
    made = check_job(make_job(architecture, **fields))
    strategy = check_strategy(made, make_strategy(micro_batch=4, **switches))
    return build_program(made, strategy, CPU), Batch(*ragged_batch(made, step=0))


def losses(precision, keep, architecture="llama", *, num_steps=3, **changes):
    program, batch = start(precision, keep, architecture, **changes)
    steps = [
        train_step(program, [batch], num_targets=NUM_TARGETS, learning_rate=1e-3)
        for _ in range(num_steps)
    ]
    return [float(step.loss) for step in steps], [float(step.grad_norm) for step in steps]


def watched(program, *names):
    """Return what the named modules hand on and hold, as they run."""
    seen = {}
    for name in names:
        module = program.model.get_submodule(name)
        module.register_forward_hook(
            lambda m, _, out, name=name: seen.update({name: (m.weight.dtype, out.dtype)})
        )
    return seen


@pytest.mark.parametrize(("precision", "held", "computed", "kept"), [
    ("bf16-mixed", torch.float32, torch.bfloat16, torch.float32),
    ("fp16-mixed", torch.float32, torch.float16, torch.float32),
    ("bf16", torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ("fp16-master", torch.float16, torch.float16, torch.float16),
])  # fmt: skip
def test_a_kept_module_is_fp32_and_what_surrounds_it_is_not(precision, held, computed, kept):
    up, down = f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj"
    program, batch = start(precision, ("layers.1.mlp.down_proj",))
    seen = watched(program, up, down)
    inside = []
    program.model.get_submodule(down).weight.register_hook(lambda g: inside.append(g.dtype))
    micro_step(program, batch, num_targets=NUM_TARGETS)
    assert seen == {up: (held, computed), down: (torch.float32, kept)}
    assert inside == [torch.float32]
    assert kept_modules(program.model) == [program.model.get_submodule(down)]


@pytest.mark.parametrize("architecture", EVERYTHING)
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
def test_everything_kept_is_fp32_to_the_bit(architecture, precision):
    kept = losses(precision, EVERYTHING[architecture], architecture)
    assert kept == losses("fp32", (), architecture)


@pytest.mark.parametrize("architecture", EVERYTHING)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16-master", "fp16-master"])
def test_everything_kept_is_fp32_but_for_what_crosses_to_the_head(architecture, precision):
    """The last states are handed on in 16 bits. A gpt2's embedding and head are one weight."""
    kept = losses(precision, EVERYTHING[architecture], architecture)
    plain = losses("fp32", (), architecture)
    assert kept[0] == pytest.approx(plain[0], rel=1e-4)
    assert kept[1] == pytest.approx(plain[1], rel=5e-3)


@pytest.mark.parametrize("switches", [
    {"loss_chunks": 4}, {"activation_checkpointing": "full"}, {"attention": "eager"},
    {"activation_checkpointing": "selective", "loss_chunks": 3},
], ids=str)  # fmt: skip
def test_everything_kept_is_fp32_under_every_switch(switches):
    kept = losses("bf16-mixed", EVERYTHING["llama"], **switches)
    assert kept == losses("fp32", (), **switches)


def test_the_logits_of_a_kept_head_are_not_rounded():
    program, batch = start("bf16", ("lm_head",))
    seen = watched(program, "lm_head", f"{LAYER}.mlp.up_proj")
    micro_step(program, batch, num_targets=NUM_TARGETS)
    assert seen["lm_head"] == (torch.float32, torch.float32)
    assert seen[f"{LAYER}.mlp.up_proj"] == (torch.bfloat16, torch.bfloat16)


def test_what_shares_a_weight_with_a_kept_module_is_kept_too():
    program, batch = start("bf16", ("lm_head",), "gpt2")
    embedding, head = program.model.transformer.wte, program.model.lm_head
    assert embedding.weight is head.weight
    assert embedding.weight.dtype == torch.float32
    assert set(kept_modules(program.model)) == {embedding, head}
    seen = watched(program, "transformer.wte")
    micro_step(program, batch, num_targets=NUM_TARGETS)
    assert seen["transformer.wte"] == (torch.float32, torch.bfloat16)


def test_kept_parameters_have_no_master():
    program, batch = start("bf16-master", ("input_layernorm",))
    micro_step(program, batch, num_targets=NUM_TARGETS)
    update(program, learning_rate=1e-3)
    for name, parameter in program.model.named_parameters():
        kept = "input_layernorm" in name
        assert (MASTER in program.optimizer.state[parameter]) != kept
        assert parameter.dtype == (torch.float32 if kept else torch.bfloat16)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-foreach", "sgd", "adafactor"])
def test_every_rule_updates_parameters_of_two_types(optimizer):
    program, batch = start("bf16", ("mlp",), job={"optimizer": optimizer, "beta1": 0.9})
    before = {name: p.detach().clone() for name, p in program.model.named_parameters()}
    micro_step(program, batch, num_targets=NUM_TARGETS)
    update(program, learning_rate=0.3)
    for name, parameter in program.model.named_parameters():
        if parameter.ndim > 1:
            assert not torch.equal(parameter, before[name]), name


def test_adapters_of_a_kept_layer_are_fp32_with_it():
    job = {"method": "lora", "adapter": make_adapter()}
    program, batch = start("bf16", ("layers.0.mlp.up_proj",), job=job)
    micro_step(program, batch, num_targets=NUM_TARGETS)
    for name, parameter in program.model.named_parameters():
        wide = "layers.0.mlp.up_proj" in name
        assert parameter.dtype == (torch.float32 if wide else torch.bfloat16), name


# What it heals.


def module_job(precision, keep):
    return check_job(
        make_job(
            model=load_model("user_modules:squaring"),
            task="module",
            packing="none",
            seq_len=1,
            precision=precision,
            keep_fp32=keep,
            loss_scale=SCALE if precision in SCALED else None,
        )
    )


def handed_on(precision, keep=()):
    """Return what a norm hands on that is given some hundreds and squares them."""
    program = build_program(module_job(precision, keep), make_strategy(micro_batch=4), CPU)
    seen = []
    norm = program.model.get_submodule("model.norm")
    norm.register_forward_hook(lambda _m, _i, out: seen.append(out.detach().float()))
    generator = torch.Generator().manual_seed(1)
    rows = 400 + 100 * torch.randn(4, 8, generator=generator)
    batch = Batch(rows, torch.zeros(4, dtype=torch.int64))
    loss = micro_step(program, batch, num_targets=4)
    return seen[0], float(loss)


@pytest.mark.parametrize("precision", ["fp16", "fp16-master"])
def test_a_norm_whose_variance_overflows_is_healed(precision):
    right, loss = handed_on("fp32")
    broken, _ = handed_on(precision)
    healed, healed_loss = handed_on(precision, ("norm",))
    assert not broken.any()  # divided by the root of Inf
    torch.testing.assert_close(healed, right, rtol=2e-3, atol=0)
    assert healed_loss == pytest.approx(loss, rel=5e-3)


def test_autocast_computes_such_a_norm_in_what_it_is_given():
    right, _ = handed_on("fp32")
    broken, _ = handed_on("fp16-mixed")
    healed, _ = handed_on("fp16-mixed", ("norm",))
    assert not broken.any()
    torch.testing.assert_close(healed, right, rtol=2e-3, atol=0)


# What is refused.


def test_a_name_of_nothing_says_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown module to keep in fp32 'nrm'; did you"):
        start("bf16", ("nrm",))


def test_a_list_of_modules_is_never_called():
    with pytest.raises(InputError, match=r"names a list .* name its members, such as model\.lay"):
        start("bf16", ("layers",))


@pytest.mark.parametrize(("fields", "words"), [
    ({"precision": "fp32"}, "keep_fp32=norm has no meaning with precision=fp32"),
    ({"precision": "tf32"}, "leave it out"),
    ({"precision": "bf16", "keep_fp32": ("",)}, "empty name"),
])  # fmt: skip
def test_a_job_says_what_it_means(fields, words):
    with pytest.raises(InputError, match=words):
        check_job(make_job(**{"keep_fp32": ("norm",), **fields}))


def test_a_kept_attention_takes_a_kernel_for_fp32():
    with pytest.raises(UnsupportedError, match="attention=flash takes 16-bit types only"):
        start("bf16", ("self_attn",), attention="flash")


@pytest.mark.parametrize(("strategy", "words"), [
    ({"tp": 2}, "tp=2 with keep_fp32=norm is not run"),
    ({"zero": 1, "dp_shard": 2}, "zero=1 with keep_fp32=norm and precision=bf16"),
    ({"zero": 3, "dp_shard": 2, "engine": "deepspeed"}, "is not run by engine=deepspeed"),
], ids=str)  # fmt: skip
def test_strategies_that_cannot_keep_are_refused(strategy, words):
    job = make_job(model=make_model(vocab_size=96), precision="bf16", keep_fp32=("norm",))
    with pytest.raises(UnsupportedError, match=words):
        check_strategy(job, make_strategy(**strategy))


def test_zero_1_keeps_what_a_mixed_recipe_holds_in_fp32_anyway():
    job = make_job(precision="bf16-mixed", keep_fp32=("norm",))
    assert check_strategy(job, make_strategy(zero=1, dp_shard=2))


def test_a_job_without_the_field_reads_as_before():
    raw = msgspec.to_builtins(make_job(precision="bf16"))
    del raw["keep_fp32"]
    assert msgspec.convert(raw, type(make_job())).keep_fp32 == ()
