import pytest
import torch
from torch import nn

from brimful.build import phases
from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.program import gradients, state_tensors
from brimful.build.step import micro_step, train_step, update
from samples import make_job, make_strategy

from .plain import ragged_batch

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def start(precision, architecture="llama", **switches):
    job = make_job(architecture, precision=precision)
    program = build_program(job, make_strategy(micro_batch=4, **switches), CPU)
    return program, Batch(*ragged_batch(job, step=0))


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("precision", "held", "computed"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("bf16-mixed", torch.float32, torch.bfloat16),
    ],
)
def test_a_recipe_holds_and_computes_in_its_types(architecture, precision, held, computed):
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
    assert {x.dtype for x in moments} == {held}


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
    assert names == [*micro, *micro, ("optimizer", True), ("optimizer", False)]


def test_listeners_leave_with_their_block_even_when_it_fails():
    seen = []
    with pytest.raises(KeyError), phases.listening(lambda *event: seen.append(event)):
        raise KeyError
    with phases.phase("forward"):
        pass
    assert seen == []
