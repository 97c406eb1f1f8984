import dataclasses

import msgspec
import pytest
from tests.train.programs import build, nudge, progress, same, weights, with_optimizer

from brimful.errors import FileFormatError, UnsupportedError
from brimful.models.config import read_config
from brimful.techniques.optimizers import OPTIMIZERS as RULES
from float8 import NEEDS_TORCHAO
from samples import make_adapter

pytestmark = pytest.mark.torch


def adamw(trained):
    import torch

    return torch.optim.AdamW(trained, lr=0.01)


def adamw_foreach(trained):
    import torch

    return torch.optim.AdamW(trained, lr=0.01, foreach=True, amsgrad=True)


def sgd(trained):
    import torch

    return torch.optim.SGD(trained, lr=0.01, momentum=0.9, nesterov=True)


def plain_sgd(trained):
    import torch

    return torch.optim.SGD(trained, lr=0.01)


def adafactor(trained):
    import torch

    return torch.optim.Adafactor(trained, lr=0.01)


def averaging(trained):
    import torch

    return torch.optim.ASGD(trained, lr=0.01)


def adamw_8bit(trained):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    return bitsandbytes.optim.AdamW8bit(trained, lr=0.01, min_8bit_size=1024)


def masters(trained):
    """Update copies in fp32 and round them into the parameters; counts in plain numbers."""
    import torch

    class Masters(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.01, "num_steps": 0})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                group["num_steps"] += 1
                for parameter in group["params"]:
                    state = self.state[parameter]
                    if not state:
                        state |= {"master": parameter.float().clone(), "decay": 1.0, "seen": False}
                    state["master"] -= group["lr"] * state["decay"] * parameter.grad.float()
                    state |= {"decay": state["decay"] * 0.9, "seen": True}
                    parameter.copy_(state["master"])

    return Masters(trained)


KEPT = (("bf16", ("norm", "mlp")), ("bf16-master", ("norm", "lm_head")), ("bf16-mixed", ("mlp",)))
OPTIMIZERS = (adamw, adamw_foreach, sgd, plain_sgd, adafactor, averaging, adamw_8bit, masters)


def go_on_in_a_fresh_process(make, plan, folder):
    """Save after two steps and take a third; load into a fresh program and take it too."""
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    program = make(plan)
    for seed in (1, 2):
        nudge(program, seed)
    path = save_checkpoint(folder, program, progress(plan, 2))
    fresh = make(plan)
    load_checkpoint(path, fresh)
    for seed in (3, 4):
        nudge(program, seed)
        nudge(fresh, seed)
    return program, fresh, path


@pytest.mark.parametrize(("precision", "keep"), [
    *KEPT, pytest.param("fp8", ("down_proj",), marks=NEEDS_TORCHAO),
])  # fmt: skip
def test_parameters_of_two_types_go_on_bit_for_bit(plan_with, tmp_path, precision, keep):
    plan = plan_with(precision=precision, keep_fp32=keep)
    program, fresh, _ = go_on_in_a_fresh_process(build, plan, tmp_path)
    assert same(weights(program), weights(fresh))
    pairs = zip(program.model.parameters(), fresh.model.parameters(), strict=True)
    assert all(one.dtype == other.dtype for one, other in pairs)


@pytest.mark.few
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS)
def test_any_optimizer_goes_on_bit_for_bit(plan_with, tmp_path, make_optimizer, precision):
    import torch

    def make(plan):
        return with_optimizer(build(plan), make_optimizer)

    program, fresh, _ = go_on_in_a_fresh_process(make, plan_with(precision=precision), tmp_path)
    assert same(weights(program), weights(fresh))
    states = zip(program.optimizer.state.values(), fresh.optimizer.state.values(), strict=True)
    for before, after in states:
        assert {k: type(v) for k, v in before.items()} == {k: type(v) for k, v in after.items()}
        for key, value in before.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[key])), key


def test_without_the_state_the_third_step_would_differ(plan_with):
    """What the test above compares does depend on what is saved."""
    for make_optimizer in (adamw, sgd, adafactor, masters):
        program = with_optimizer(build(plan_with()), make_optimizer)
        nudge(program, 1)
        fresh = with_optimizer(build(plan_with()), make_optimizer)
        fresh.model.load_state_dict(program.model.state_dict())
        nudge(program, 2)
        nudge(fresh, 2)
        assert not same(weights(program), weights(fresh)), make_optimizer


def test_a_tensor_that_parameters_share_is_saved_once_and_shared_again(plan_with, tmp_path):
    from brimful.train.tensor_files import read_shapes

    def make(plan):
        return with_optimizer(build(plan), adamw_8bit)

    _, fresh, path = go_on_in_a_fresh_process(make, plan_with(), tmp_path)
    assert sum(name.startswith("optimizer.qmap1.") for name in read_shapes(path)) == 1
    maps = [state["qmap1"] for state in fresh.optimizer.state.values() if "qmap1" in state]
    assert len(maps) > 2
    assert len({id(tensor) for tensor in maps}) == 1


def test_state_that_is_the_parameter_itself_stays_so(plan_with, tmp_path):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    program, fresh = build(plan_with()), build(plan_with())
    parameter = next(program.model.parameters())
    program.optimizer.state[parameter]["master"] = parameter
    load_checkpoint(save_checkpoint(tmp_path, program, progress(plan_with(), 1)), fresh)
    parameter = next(fresh.model.parameters())
    assert fresh.optimizer.state[parameter]["master"].data_ptr() == parameter.data_ptr()


@pytest.mark.parametrize("number", [0.1, float("inf"), float("nan"), -0.0, 2**60, True, None])
def test_numbers_come_back_exactly(plan_with, tmp_path, number):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    program, fresh = build(plan_with()), build(plan_with())
    program.optimizer.state[next(program.model.parameters())]["x"] = number
    load_checkpoint(save_checkpoint(tmp_path, program, progress(plan_with(), 1)), fresh)
    back = fresh.optimizer.state[next(fresh.model.parameters())]["x"]
    assert repr(back) == repr(number)


@pytest.mark.parametrize("value", ["a word", [1.0], {"nested": 1}])
def test_what_cannot_be_saved_is_refused_before_anything_is_written(plan_with, tmp_path, value):
    from brimful.train.checkpoint import save_checkpoint

    program = build(plan_with())
    program.optimizer.state[next(program.model.parameters())]["odd"] = value
    with pytest.raises(UnsupportedError, match=r"AdamW keeps 'odd' of type (str|list|dict)"):
        save_checkpoint(tmp_path, program, progress(plan_with(), 1))
    assert list(tmp_path.iterdir()) == []


def test_state_of_a_tensor_that_the_model_lacks_is_refused(plan_with, tmp_path):
    import torch

    from brimful.train.checkpoint import save_checkpoint

    program = build(plan_with())
    program.optimizer.state[torch.nn.Parameter(torch.ones(2))]["step"] = 1
    with pytest.raises(UnsupportedError, match="AdamW keeps 'step' of type int"):
        save_checkpoint(tmp_path, program, progress(plan_with(), 1))


# A frozen base: quantised, from files, or random.


def adapted(plan, *, base):
    """A frozen layer and a trained one beside it, as adapters are."""
    import torch

    random = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, weights=None))
    program = build(random)
    torch.manual_seed(plan.job.seed)
    model = torch.nn.ModuleDict({"base": make_base(base), "adapter": torch.nn.Linear(64, 4)})
    model["base"].requires_grad_(requires_grad=False)
    # As if its base had come from the folder that the job names.
    return with_optimizer(dataclasses.replace(program, job=plan.job, model=model), adamw)


def make_base(kind):
    import torch

    layer = torch.nn.Linear(64, 128, bias=False)
    if kind == "plain":
        return layer
    bitsandbytes = pytest.importorskip("bitsandbytes")
    if kind == "library-nf4":
        quantised = bitsandbytes.nn.Linear4bit(64, 128, bias=False, quant_type="nf4")
    elif kind == "library-int8":
        quantised = bitsandbytes.nn.Linear8bitLt(64, 128, bias=False, has_fp16_weights=False)
    else:
        return filled(kind, layer.weight.detach())
    quantised.load_state_dict(layer.state_dict())
    return quantised.to("cpu")


def filled(kind, weight):
    from brimful.build.quantize import FORMATS

    layer = FORMATS[kind].linear(64, 128, False, weight.dtype)
    FORMATS[kind].fill(layer, weight)
    return layer


BASES = ("library-nf4", "library-int8", "nf4", "nf4-double", "int8", "llm-int8")


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("source", [None, "some/folder"])
def test_a_quantised_base_is_made_again_and_only_its_checksum_is_saved(
    plan_with, tmp_path, base, source
):
    from brimful.train.tensor_files import read_shapes

    plan = plan_with(weights=source)
    program, fresh, path = go_on_in_a_fresh_process(
        lambda plan: adapted(plan, base=base), plan, tmp_path
    )
    assert same(weights(program), weights(fresh))
    names = [name for name in read_shapes(path) if name.startswith("model.")]
    assert sorted(names) == ["model.adapter.bias", "model.adapter.weight"]


def test_a_random_base_is_saved_whole_and_one_from_files_is_not(plan_with, tmp_path):
    from brimful.train.tensor_files import read_shapes

    def make(plan):
        return adapted(plan, base="plain")

    for source, is_saved in ((None, True), ("some/folder", False)):
        plan = plan_with(weights=source)
        program, fresh, path = go_on_in_a_fresh_process(make, plan, tmp_path / str(source))
        assert same(weights(program), weights(fresh))
        assert ("model.base.weight" in read_shapes(path)) == is_saved


def scales_of(base):
    """Find the scales, wherever a format keeps them."""
    if base.weight.dtype.is_floating_point:
        return base.weight
    buffers = dict(base.named_buffers())
    for name in ("absmax", "scale", "row_absmax"):
        if name in buffers:
            return buffers[name]
    state = getattr(base.weight, "quant_state", None)
    return base.weight.SCB if state is None else state.absmax


def lift(program):
    scales_of(program.model["base"]).data.view(-1)[0] += 1


def change(program):
    program.model["base"].weight.data.view(-1)[0] += 1


@pytest.mark.few
@pytest.mark.parametrize("base", ["plain", *BASES])
@pytest.mark.parametrize("damage", [lift, change])
def test_a_base_that_became_another_is_refused(plan_with, tmp_path, base, damage):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    plan = plan_with(weights="some/folder")
    path = save_checkpoint(tmp_path, adapted(plan, base=base), progress(plan, 1))
    load_checkpoint(path, adapted(plan, base=base))
    other = adapted(plan, base=base)
    damage(other)
    with pytest.raises(FileFormatError, match=r"had checksum \w{8} and those of some/folder now"):
        load_checkpoint(path, other)


def test_a_base_counts_however_big_its_pieces(plan_with, monkeypatch):
    from brimful.train import program_state

    program = adapted(plan_with(weights="some/folder"), base="plain")
    whole = program_state.base_checksum(program)
    monkeypatch.setattr(program_state, "_CHUNK_BYTES", 1000)
    assert program_state.base_checksum(program) == whole


# A loss scaler.


def scaled_plan(plan_with):
    from brimful.values.job import LossScale

    loss_scale = LossScale(
        initial_scale=2.0**16 / 3, growth_factor=2.0, backoff_factor=0.3, growth_interval=7
    )
    return plan_with(precision="fp16-mixed", loss_scale=loss_scale)


def test_the_scaler_comes_back(plan_with, tmp_path):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    plan = scaled_plan(plan_with)
    program, fresh = build(plan), build(plan)
    for is_finite in (True, False, False, True, True):
        program.scaler.update(is_finite=is_finite)
    load_checkpoint(save_checkpoint(tmp_path, program, progress(plan, 5)), fresh)
    assert fresh.scaler.state_dict() == program.scaler.state_dict()
    assert (fresh.scaler.num_skipped, fresh.scaler.growth_tracker) == (2, 2)
    assert fresh.scaler.scale == 2.0**16 / 3 * 0.3 * 0.3


def test_a_scaler_that_the_plan_lacks_is_refused(plan_with, tmp_path):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    scaled, plain = build(scaled_plan(plan_with)), build(plan_with())
    path = save_checkpoint(tmp_path / "scaled", scaled, progress(plan_with(), 1))
    with pytest.raises(FileFormatError, match="checkpoint has a loss scaler and the plan has none"):
        load_checkpoint(path, plain)
    path = save_checkpoint(tmp_path / "plain", plain, progress(plan_with(), 1))
    with pytest.raises(FileFormatError, match="plan has a loss scaler and the checkpoint has none"):
        load_checkpoint(path, scaled)


# The program's own optimizers, by the steps that a run takes.


@pytest.mark.few
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "bf16-master"])
@pytest.mark.parametrize("optimizer", [n for n, r in RULES.items() if not r.compiled])
def test_every_optimizer_of_a_job_goes_on_bit_for_bit(plan_with, tmp_path, optimizer, precision):
    plan = plan_with(precision=precision, optimizer=optimizer)
    if optimizer == "adamw-8bit":
        pytest.importorskip("bitsandbytes")
    program, fresh, _ = go_on_in_a_fresh_process(build, plan, tmp_path)
    assert same(weights(program), weights(fresh))


# What is on the host is saved as what is on the device, and a run may go on the other way.


def take_steps(program, seeds):
    import torch

    from brimful.build.batch import Batch, count_targets
    from brimful.build.step import train_step

    losses = []
    for seed in seeds:
        tokens = torch.randint(0, 300, (4, 33), generator=torch.Generator().manual_seed(seed))
        batches = [Batch(tokens[:, :-1], tokens[:, 1:])]
        num_targets = count_targets(batches)
        result = train_step(program, batches, num_targets=num_targets, learning_rate=0.01)
        losses.append(float(result.loss))
    return losses


def away(plan, offload):
    strategy = msgspec.structs.replace(plan.strategy, offload=offload, micro_batch=4)
    return msgspec.structs.replace(plan, strategy=strategy)


def check_it_goes_on(first, second, tmp_path):
    """Save a run after two steps, load it under another plan, and train three more of both."""
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    program = build(first)
    take_steps(program, (1, 2))
    path = save_checkpoint(tmp_path / "checkpoints", program, progress(first, 2))
    expected = take_steps(program, (3, 4, 5))
    fresh = build(second)
    load_checkpoint(path, fresh)
    assert take_steps(fresh, (3, 4, 5)) == expected
    assert same(weights(program), weights(fresh))


@pytest.mark.few
@pytest.mark.parametrize(
    "kind", [("adamw", "fp32"), ("sgd", "fp32"), ("adamw", "bf16-master"), ("sgd", "bf16-master")]
)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("optimizer", "optimizer"),
        ("parameters:1,activations", "parameters:1,activations"),
        ("none", "parameters"),
        ("parameters", "none"),
    ],
)
def test_a_run_goes_on_wherever_its_state_is(plan_with, tmp_path, before, after, kind):
    optimizer, precision = kind
    plan = plan_with(optimizer=optimizer, precision=precision)
    check_it_goes_on(away(plan, before), away(plan, after), tmp_path)


@pytest.mark.few
@pytest.mark.parametrize("base", ["same", "nf4", "nf4-double", "int8"])
@pytest.mark.parametrize(
    ("before", "after"),
    [("parameters", "parameters"), ("none", "parameters:1"), ("parameters,activations", "none")],
)
def test_adapters_go_on_wherever_their_base_is(plan_with, tmp_path, before, after, base):
    if base in {"nf4", "nf4-double"}:
        pytest.importorskip("bitsandbytes")
    plan = plan_with(method="lora" if base == "same" else "qlora", adapter=make_adapter(base=base))
    check_it_goes_on(away(plan, before), away(plan, after), tmp_path)


@pytest.mark.few
@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor", "adamw-8bit"])
@pytest.mark.parametrize(
    ("before", "after"), [("parameters:1", "parameters:1"), ("none", "parameters"),
                          ("parameters", "none")],
)  # fmt: skip
def test_early_updates_go_on_wherever_the_blocks_are(plan_with, tmp_path, before, after, optimizer):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    plan = plan_with(optimizer=optimizer, clip=0.0)
    early = msgspec.structs.replace(plan.strategy, optimizer_in_backward=True)
    plan = msgspec.structs.replace(plan, strategy=early)
    first, second = away(plan, before), away(plan, after)
    program = build(first)
    take_steps(program, (1, 2))
    path = save_checkpoint(tmp_path / "checkpoints", program, progress(first, 2))
    expected = take_steps(program, (3, 4, 5))
    fresh = build(second)
    load_checkpoint(path, fresh)
    assert take_steps(fresh, (3, 4, 5)) == expected
    assert same(weights(program), weights(fresh))


def test_a_copy_on_the_host_that_was_not_refreshed_would_be_noticed(plan_with, tmp_path):
    from brimful.train.checkpoint import load_checkpoint, save_checkpoint

    plan = away(plan_with(), "optimizer")
    program = build(plan)
    take_steps(program, (1, 2))
    path = save_checkpoint(tmp_path / "checkpoints", program, progress(plan, 2))
    expected = take_steps(program, (3, 4))
    fresh = build(plan)
    stale = [home.detach().clone() for home in fresh.optimizer.homes.values()]
    load_checkpoint(path, fresh)
    for home, old in zip(fresh.optimizer.homes.values(), stale, strict=True):
        home.data.copy_(old)
    assert take_steps(fresh, (3, 4)) != expected


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw-fp8", "adamw-4bit"])
def test_moments_of_few_bits_go_on_bit_for_bit(plan_with, tmp_path, optimizer, precision):
    pytest.importorskip("torchao")
    config = {**plan_with().job.model.hf_config, "model_type": "llama", "vocab_size": 512}
    model = read_config("tiny", config)
    plan = plan_with(precision=precision, optimizer=optimizer, model=model)
    program, fresh, _ = go_on_in_a_fresh_process(build, plan, tmp_path)
    assert same(weights(program), weights(fresh))
    held = [key for state in program.optimizer.state.values() for key in state]
    assert "exp_avg_scale" in held  # of the embedding; other tensors are too small
