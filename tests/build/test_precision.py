import pytest
import torch
from torch import nn

from brimful.build import phases
from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.precision import PARAMETER_DTYPE, TECHNIQUES, micro_batch_context
from brimful.build.precision.tf32 import fp32_products
from brimful.build.program import gradients, state_tensors
from brimful.build.step import evaluate, micro_step, train_step, update
from brimful.values.job import SCALED, LossScale
from samples import make_job, make_strategy

from .plain import ragged_batch

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
SCALE = LossScale(initial_scale=2.0**8, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)


def start(precision, architecture="llama", **switches):
    scale = SCALE if precision in SCALED else None
    job = make_job(architecture, precision=precision, loss_scale=scale)
    program = build_program(job, make_strategy(micro_batch=4, **switches), CPU)
    return program, Batch(*ragged_batch(job, step=0))


@pytest.mark.few
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("precision", "held", "computed", "state"),
    [
        ("fp32", torch.float32, torch.float32, torch.float32),
        ("tf32", torch.float32, torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16, torch.bfloat16),
        ("fp16", torch.float16, torch.float16, torch.float16),
        ("bf16-mixed", torch.float32, torch.bfloat16, torch.float32),
        ("fp16-mixed", torch.float32, torch.float16, torch.float32),
        ("bf16-master", torch.bfloat16, torch.bfloat16, torch.float32),
        ("fp16-master", torch.float16, torch.float16, torch.float32),
    ],
)
def test_a_recipe_holds_and_computes_in_its_types(architecture, precision, held, computed, state):
    program, batch = start(precision, architecture)
    seen = set()
    for module in program.model.modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            module.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    loss = micro_step(program, batch, num_targets=30)
    assert loss.dtype == torch.float32
    assert seen == {computed}
    assert {p.dtype for p in program.model.parameters()} == {held}
    assert {g.dtype for g in gradients(program)} == {held}
    update(program, learning_rate=1e-3)
    moments = [x for x in state_tensors(program) if x.ndim]
    assert {x.dtype for x in moments} == {state}
    assert PARAMETER_DTYPE[precision] == held


@pytest.mark.few
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"loss_chunks": 4},
        {"activation_checkpointing": "full"},
        {"activation_checkpointing": "full:2", "loss_chunks": 3, "attention": "eager"},
    ],
    ids=str,
)
def test_mixed_precision_follows_fp32_within_the_grain_of_bf16(architecture, switches):
    losses = {}
    for precision in ("fp32", "bf16-mixed"):
        program, batch = start(precision, architecture, **switches)
        losses[precision] = [
            float(train_step(program, [batch], num_targets=30, learning_rate=1e-3).loss)
            for _ in range(3)
        ]
    assert losses["bf16-mixed"] == pytest.approx(losses["fp32"], rel=2e-2)
    assert losses["bf16-mixed"] != losses["fp32"]


def test_gradients_exist_between_backward_and_update_only():
    program, batch = start("fp32")
    assert gradients(program) == []
    assert state_tensors(program) == []
    micro_step(program, batch, num_targets=30)
    assert len(gradients(program)) == len(list(program.model.parameters()))
    update(program, learning_rate=1e-3)
    assert gradients(program) == []
    assert len(state_tensors(program)) == 3 * len(list(program.model.parameters()))


def test_a_step_announces_its_phases_and_its_program():
    program, batch = start("fp32")
    seen = []
    with phases.listening(lambda name, begins, whose: seen.append((name, begins, whose))):
        train_step(program, [batch, batch], num_targets=60, learning_rate=1e-3)
    names = [(name, begins) for name, begins, whose in seen if whose is program]
    micro = [("forward", True), ("forward", False), ("backward", True), ("backward", False)]
    made, updated = (((name, True), (name, False)) for name in ("state", "optimizer"))
    assert names == [*made, *micro, *micro, *updated]


def test_listeners_leave_with_their_block_even_when_it_fails():
    seen = []
    with pytest.raises(KeyError), phases.listening(lambda *event: seen.append(event)):
        raise KeyError
    with phases.phase("forward"):
        pass
    assert seen == []


def switches():
    backends = torch.backends
    return (
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.cudnn.rnn.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
        torch.get_float32_matmul_precision(),
    )


def seen_switches(program, run):
    """Note the switches in every forward of a linear layer and when its gradient arrives."""
    seen = []
    layer = program.model.get_output_embeddings()
    hooks = [
        layer.register_forward_hook(lambda *_: seen.append(switches())),
        layer.weight.register_hook(lambda _: seen.append(switches())),
    ]
    run()
    for hook in hooks:
        hook.remove()
    return seen


TF32 = ("tf32", "tf32", "tf32", "none", "high")
IEEE = ("ieee", "ieee", "ieee", "none", "highest")


def test_two_programs_of_one_process_each_have_their_own_products():
    before = switches()
    programs = {name: start(name) for name in ("tf32", "fp32", "bf16-mixed")}
    expected = {"tf32": TF32, "fp32": IEEE, "bf16-mixed": before}
    for name in ("tf32", "fp32", "bf16-mixed", "fp32", "tf32"):
        program, batch = programs[name]
        seen = seen_switches(program, lambda p=program, b=batch: micro_step(p, b, num_targets=30))
        assert seen == [expected[name]] * 2
        assert switches() == before


def test_evaluation_computes_as_training_does():
    program, batch = start("tf32")
    assert seen_switches(program, lambda: evaluate(program, [batch])) == [TF32]


def test_the_switches_are_put_back_after_an_error_and_inside_one_another():
    before = switches()
    with fp32_products("tf32"):
        with pytest.raises(KeyError), fp32_products("ieee"):
            {}["an error"]
        assert switches() == TF32
        with fp32_products("ieee"):
            assert switches() == IEEE
        assert switches() == TF32
    assert switches() == before


def test_on_a_cpu_tf32_is_fp32_to_the_bit():
    ends = []
    for precision in ("fp32", "tf32"):
        program, batch = start(precision)
        for _ in range(2):
            train_step(program, [batch], num_targets=30, learning_rate=1e-3)
        ends.append(list(program.model.parameters()))
    assert all(map(torch.equal, *ends))


@pytest.mark.parametrize("precision", TECHNIQUES)
def test_only_the_fp32_recipes_touch_the_switches(precision):
    before = switches()
    with micro_batch_context(precision):
        touched = switches() != before
    assert touched == (precision in {"fp32", "tf32"})
