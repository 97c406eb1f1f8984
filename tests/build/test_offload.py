"""Keeping something on the host, or updating early, changes no number of a step."""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.offload import HostOptimizer, host
from brimful.build.offload.activations import ACTIVATIONS, AwayActivations
from brimful.build.step import evaluate, train_step
from brimful.techniques.runnable import check_strategy
from brimful.values.job import LossScale
from build.plain import plain_run, ragged_batch
from pairs import cut_pairs, make_lora, make_pair_job, make_pairs
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 5
LOSS_BAR, NORM_BAR = 1e-5, 1e-4
OFFLOADS = (
    "optimizer", "parameters", "parameters:2", "activations", "activations:1",
    "parameters,activations", "optimizer,activations:2",
)  # fmt: skip
CASES = [
    (architecture, offload, checkpointing, micro_batch, accumulate)
    for architecture in ("llama", "gpt2")
    for offload in OFFLOADS
    for checkpointing in ("none", "full", "full:1", "selective")
    for micro_batch in (4, 1)
    for accumulate in ("reduce-each", "hold")
]
RECIPES = ("bf16", "bf16-mixed", "bf16-master", "fp16-mixed", "fp16-master")
SCALE = LossScale(initial_scale=2.0**8, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)


def run(job, strategy, *, num_steps=NUM_STEPS):
    """Train, and return each step's loss and norm, the first weights and the last program."""
    check_strategy(job, strategy)
    program = build_program(job, strategy, CPU)
    weights = {name: p.detach().clone() for name, p in program.model.state_dict().items()}
    numbers = []
    for step in range(num_steps):
        inputs, labels = ragged_batch(job, step=step)
        size = strategy.micro_batch
        batches = [
            Batch(*pair) for pair in zip(inputs.split(size), labels.split(size), strict=True)
        ]
        result = train_step(
            program,
            batches,
            num_targets=count_targets(batches),
            learning_rate=job.learning_rate,
        )
        numbers.append((float(result.loss), float(result.grad_norm)))
    return numbers, weights, program


@cache
def plain(architecture):
    job = make_job(architecture)
    _, weights, _ = run(job, make_strategy(), num_steps=0)
    return plain_run(job, weights, num_steps=NUM_STEPS)


@pytest.mark.few
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_is_the_plain_one(case):
    architecture, offload, checkpointing, micro_batch, accumulate = case
    strategy = make_strategy(
        offload=offload,
        activation_checkpointing=checkpointing,
        micro_batch=micro_batch,
        accumulate=accumulate,
    )
    numbers, _, _ = run(make_job(architecture), strategy)
    for (loss, norm), (plain_loss, plain_norm) in zip(numbers, plain(architecture), strict=True):
        assert loss == pytest.approx(plain_loss, abs=LOSS_BAR)
        assert norm == pytest.approx(plain_norm, rel=NORM_BAR)


def recipe(precision, **changes):
    scale = {"loss_scale": SCALE} if precision.startswith("fp16-") else {}
    return make_job(precision=precision, **scale, **changes)


@pytest.mark.few(2)
@pytest.mark.parametrize("precision", RECIPES)
def test_every_recipe_takes_the_steps_that_it_takes_on_the_device(precision):
    job = recipe(precision)
    whole, _, plain_program = run(job, make_strategy())
    away = make_strategy(offload="parameters:2,activations", activation_checkpointing="full:1")
    numbers, _, program = run(job, away)
    assert numbers == whole
    for one, other in zip(
        plain_program.model.parameters(), program.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("optimizer", ["adamw-foreach", "sgd", "adafactor"])
def test_every_rule_updates_on_the_host(optimizer):
    job = make_job(optimizer=optimizer)
    whole, _, _ = run(job, make_strategy())
    numbers, _, program = run(job, make_strategy(offload="parameters:1"))
    assert numbers == whole
    assert isinstance(program.optimizer, HostOptimizer)


def test_what_is_away_leaves_nothing_on_the_device():
    """On a CPU memory is memory: what tells is that nobody holds a copy."""
    _, _, program = run(make_job(), make_strategy(offload="parameters"), num_steps=1)
    assert not program.offloaded.parameters._here
    for module in program.model.modules():
        for parameter in module._parameters.values():
            assert parameter is None or isinstance(parameter, torch.nn.Parameter)


def test_adapters_train_beside_a_base_that_is_away():
    job = make_job(**make_lora())
    whole, _, _ = run(job, make_strategy())
    numbers, _, _ = run(job, make_strategy(offload="parameters,activations:2"))
    assert numbers == whole


def test_a_model_that_is_away_is_judged_as_one_that_is_there():
    job = make_job(seq_len=64)
    _, _, there = run(job, make_strategy(), num_steps=2)
    inputs, labels = ragged_batch(job, step=9)
    batches = [Batch(inputs, labels)]
    for checkpointing in ("none", "full"):
        strategy = make_strategy(
            offload="parameters,activations", activation_checkpointing=checkpointing
        )
        _, _, away = run(job, strategy, num_steps=2)
        assert evaluate(away, batches) == evaluate(there, batches)


@pytest.mark.parametrize("reference", ["resident", "offloaded"])
def test_pairs_are_learnt_from_with_a_policy_that_is_away(reference):
    job = make_pair_job()
    found = []
    for offload in ("none", "parameters:2,activations"):
        strategy = make_strategy(micro_batch=2, reference=reference, offload=offload)
        check_strategy(job, strategy)
        program = build_program(job, strategy, CPU)
        batches = cut_pairs(make_pairs(job), strategy.micro_batch)
        num_targets = count_targets(batches)
        found.append(
            [
                float(
                    train_step(program, batches, num_targets=num_targets, learning_rate=1e-2).loss
                )
                for _ in range(3)
            ]
        )
    assert found[0] == found[1]


def test_saved_tensors_really_leave():
    """A hook that keeps everything where it is would pass every test of numbers."""
    job, taken = make_job(seq_len=128), []

    def listen(purpose, begins):
        if begins and purpose == ACTIVATIONS:
            taken.append(purpose)

    with host.listening(listen):
        run(job, make_strategy(offload="activations:2"), num_steps=1)
    num_passes = 2 * job.global_batch // 2  # two blocks, micro-batches of two
    assert len(taken) % num_passes == 0
    assert len(taken) > 5 * num_passes


class Twice(torch.autograd.Function):
    """A function that reads what it saved twice, as some libraries' do."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        (first,) = ctx.saved_tensors
        (second,) = ctx.saved_tensors
        assert torch.equal(first, second)
        return gradient * (1 + first - second) * 2


def test_what_is_read_twice_is_brought_twice():
    away = AwayActivations(CPU)
    weight = torch.ones(4096, requires_grad=True)
    flight = away.depart(0)
    with torch.autograd.graph.saved_tensors_hooks(flight.pack, lambda ref: ref.tensor()):
        out = Twice.apply(weight * 3)
    away.past()
    out.sum().backward()
    assert torch.equal(weight.grad, torch.full((4096,), 6.0))


EARLY = [
    (optimizer, precision, checkpointing)
    for optimizer in ("adamw", "adamw-foreach", "adamw-8bit", "sgd", "adafactor")
    for precision in ("fp32", "bf16", "bf16-mixed", "bf16-master")
    for checkpointing in ("none", "full")
]


@pytest.mark.few(3)
@pytest.mark.parametrize("case", EARLY, ids=str)
def test_an_early_update_is_the_late_one_bit_for_bit(case):
    optimizer, precision, checkpointing = case
    job = make_job(optimizer=optimizer, precision=precision, clip=0.0)
    late, _, late_program = run(job, make_strategy(micro_batch=4))
    early, _, program = run(
        job,
        make_strategy(
            micro_batch=4, optimizer_in_backward=True, activation_checkpointing=checkpointing
        ),
    )
    assert [loss for loss, _ in early] == [loss for loss, _ in late]
    for (_, one), (_, other) in zip(early, late, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    for one, other in zip(late_program.model.parameters(), program.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(p.grad is None for p in program.model.parameters())


STREAMED = [
    (optimizer, precision, checkpointing, offload)
    for optimizer in ("adamw", "adamw-foreach", "adamw-8bit", "sgd", "adafactor")
    for precision in ("fp32", "bf16", "bf16-mixed")
    for checkpointing in ("none", "full", "full:1", "selective")
    for offload in (
        "parameters", "parameters:2", "parameters:1,activations", "optimizer,parameters",
        "optimizer,parameters:2,activations",
    )
]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("case", STREAMED, ids=str)
def test_an_early_update_of_what_is_away_is_the_late_one_bit_for_bit(case):
    optimizer, precision, checkpointing, offload = case
    job = make_job(optimizer=optimizer, precision=precision, clip=0.0)
    late, _, late_program = run(job, make_strategy(micro_batch=4))
    away = make_strategy(
        micro_batch=4,
        optimizer_in_backward=True,
        activation_checkpointing=checkpointing,
        offload=offload,
    )
    early, _, program = run(job, away)
    assert [loss for loss, _ in early] == [loss for loss, _ in late]
    for (_, one), (_, other) in zip(early, late, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    for one, other in zip(late_program.model.parameters(), program.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not isinstance(program.optimizer, HostOptimizer)
    assert not program.early._sent
    assert set(program.optimizer.state) <= set(program.model.parameters())


def test_adapters_are_updated_early_beside_a_base_that_is_away():
    job = make_job(clip=0.0, **make_lora())
    late, _, late_program = run(job, make_strategy(micro_batch=4))
    away = make_strategy(micro_batch=4, optimizer_in_backward=True, offload="parameters")
    early, _, program = run(job, away)
    assert [loss for loss, _ in early] == [loss for loss, _ in late]
    for one, other in zip(late_program.model.parameters(), program.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_early_update_with_a_second_micro_batch_would_learn_something_else():
    """So the table that refuses it is right, and this test file can fail."""
    job = make_job(clip=0.0)
    late, _, _ = run(job, make_strategy(micro_batch=2))
    program = build_program(job, make_strategy(micro_batch=4, optimizer_in_backward=True), CPU)
    early = []
    for step in range(NUM_STEPS):
        inputs, labels = ragged_batch(job, step=step)
        batches = [Batch(*pair) for pair in zip(inputs.split(2), labels.split(2), strict=True)]
        num_targets = count_targets(batches)
        early.append(float(train_step(
            program, batches, num_targets=num_targets, learning_rate=job.learning_rate
        ).loss))  # fmt: skip
    assert abs(early[-1] - late[-1][0]) > 100 * LOSS_BAR
