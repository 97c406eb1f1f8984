"""Switches of the strategy change memory and speed, and nothing that is learnt."""

from functools import cache

import bitsandbytes.functional as int8
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.models.mixtral import modeling_mixtral as mixtral
from transformers.models.switch_transformers import modeling_switch_transformers as switch

from brimful.build.assemble import build_program
from brimful.build.batch import IGNORE_INDEX, Batch, count_targets
from brimful.build.exactness import check_built
from brimful.build.step import evaluate, micro_step, train_step
from brimful.errors import InputError
from brimful.models.module import read_factory
from samples import make_job, make_model, make_strategy

from .plain import MASKED, plain_run, ragged_batch

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 6
JOBS = {
    "llama": make_job("llama"),
    "llama-tied": make_job("llama", model=make_model("llama", tie_word_embeddings=True)),
    "gpt2": make_job("gpt2"),
    "no-clip": make_job("llama", clip=0.0),
}
SWITCHES = [
    {"micro_batch": 4},
    {"micro_batch": 2},
    {"micro_batch": 1},
    {"activation_checkpointing": "full"},
    {"activation_checkpointing": "full:2"},
    {"loss_chunks": 3},
    {"loss_chunks": 4},
    {"loss_chunks": 47},
    {"attention": "eager"},
    {"attention": "flash"},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": "selective:2", "attention": "eager"},
    {
        "micro_batch": 1,
        "activation_checkpointing": "full:1",
        "loss_chunks": 4,
        "attention": "eager",
    },
]


@cache
def expected(name):
    program = build_program(JOBS[name], make_strategy(), CPU)
    weights = {key: value.clone() for key, value in program.model.state_dict().items()}
    return plain_run(JOBS[name], weights, num_steps=NUM_STEPS)


def run(job, strategy, num_steps=NUM_STEPS):
    program = build_program(job, strategy, CPU)
    results = []
    for step in range(num_steps):
        input_ids, labels = ragged_batch(job, step=step)
        size = strategy.micro_batch
        pairs = zip(input_ids.split(size), labels.split(size), strict=True)
        batches = [Batch(*pair) for pair in pairs]
        num_targets = count_targets(batches)
        results.append(
            train_step(program, batches, num_targets=num_targets, learning_rate=job.learning_rate)
        )
    return [(float(r.loss), float(r.grad_norm)) for r in results]


@pytest.mark.few(5)
@pytest.mark.parametrize("switches", SWITCHES, ids=str)
@pytest.mark.parametrize("name", JOBS)
def test_every_strategy_takes_the_steps_of_the_plain_loop(name, switches):
    steps = run(JOBS[name], make_strategy(**switches))
    for (loss, norm), (plain_loss, plain_norm) in zip(steps, expected(name), strict=True):
        assert loss == pytest.approx(plain_loss, rel=1e-5)
        assert norm == pytest.approx(plain_norm, rel=1e-4)


def test_the_plain_loop_learns_and_clips():
    losses = [loss for loss, _ in expected("llama")]
    assert len(set(losses)) == NUM_STEPS
    assert max(norm for _, norm in expected("llama")) > JOBS["llama"].clip
    assert expected("llama") != expected("no-clip")


def test_a_mean_of_means_would_be_another_loss():
    """The reference can tell: ragged rows make the mean over micro-batches differ."""
    job, strategy = JOBS["llama"], make_strategy(micro_batch=1)
    program = build_program(job, strategy, CPU)
    input_ids, labels = ragged_batch(job, step=0)
    rows = [Batch(x[None], y[None]) for x, y in zip(input_ids, labels, strict=True)]
    kept = [row for row in rows if count_targets([row])]
    mean_of_means = sum(evaluate(program, [row]) for row in kept) / len(kept)
    assert evaluate(program, rows) == pytest.approx(expected("llama")[0][0], rel=1e-5)
    assert abs(mean_of_means - expected("llama")[0][0]) > 1e-3


def test_evaluation_leaves_no_gradients_and_the_model_in_training():
    job = JOBS["gpt2"]
    program = build_program(job, make_strategy(loss_chunks=3), CPU)
    evaluate(program, [Batch(*ragged_batch(job, step=0))])
    assert program.model.training
    assert all(p.grad is None for p in program.model.parameters())


def test_masked_labels_are_those_that_torch_ignores():
    assert IGNORE_INDEX == MASKED
    labels = torch.tensor([[1, MASKED, 2], [MASKED, MASKED, MASKED]])
    assert count_targets([Batch(labels, labels), Batch(labels, labels)]) == 4


# -- rows of the table (brimful.techniques.exact) that no strategy of one device shows --


def gradients_of(program):
    return [p.grad.clone() for p in program.model.parameters()]


def halves(job):
    input_ids, labels = ragged_batch(job, step=0)
    return [Batch(x, y) for x, y in zip(input_ids.split(2), labels.split(2), strict=True)]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_devices_that_each_see_a_part_add_up_to_the_whole_gradient(name):
    job = JOBS[name]
    parts = halves(job)
    num_targets = count_targets(parts)
    whole = build_program(job, make_strategy(micro_batch=4), CPU)
    micro_step(whole, Batch(*ragged_batch(job, step=0)), num_targets=num_targets)
    summed = []
    for part in parts:
        device = build_program(job, make_strategy(), CPU)
        micro_step(device, part, num_targets=num_targets)
        summed.append(gradients_of(device))
    for one, other, expected_grad in zip(*summed, gradients_of(whole), strict=True):
        torch.testing.assert_close(one + other, expected_grad, rtol=1e-4, atol=1e-6)


def step_in_backward(program, batch, num_targets):
    """Update each parameter as soon as its gradient is whole."""
    lone = {p: torch.optim.SGD([p], lr=0.1) for p in program.model.parameters()}

    def update(parameter):
        lone[parameter].step()
        lone[parameter].zero_grad()

    for parameter in lone:
        parameter.register_post_accumulate_grad_hook(update)
    micro_step(program, batch, num_targets=num_targets)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2"])
def test_an_update_inside_the_backward_pass_is_that_after_it(name):
    job, batch = JOBS[name], Batch(*ragged_batch(JOBS[name], step=0))
    num_targets = count_targets([batch])
    early, late = (build_program(job, make_strategy(micro_batch=4), CPU) for _ in range(2))
    step_in_backward(early, batch, num_targets)
    micro_step(late, batch, num_targets=num_targets)
    torch.optim.SGD(late.model.parameters(), lr=0.1).step()
    for one, other in zip(early.model.parameters(), late.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_micro_batches_that_update_inside_the_backward_pass_learn_something_else():
    job = JOBS["llama"]
    parts = halves(job)
    num_targets = count_targets(parts)
    early, late = (build_program(job, make_strategy(), CPU) for _ in range(2))
    for part in parts:
        micro_step(late, part, num_targets=num_targets)
    torch.optim.SGD(late.model.parameters(), lr=0.1).step()
    step_in_backward(early, parts[0], num_targets)
    micro_step(early, parts[1], num_targets=num_targets)
    pairs = zip(early.model.parameters(), late.model.parameters(), strict=True)
    assert any((one - other).abs().max() > 1e-5 for one, other in pairs)


def test_routers_that_balance_a_batch_are_not_split_and_those_that_balance_rows_are():
    logits = torch.randn(4, 24, 8, generator=torch.Generator().manual_seed(0))

    def by_batch(x):
        return mixtral.load_balancing_loss_func((x.flatten(0, 1),), num_experts=8, top_k=2)

    def by_row(x):
        return switch.load_balancing_loss_func(x.softmax(-1), x.argmax(-1))

    def of_halves(loss):
        return sum(float(loss(part)) for part in logits.split(2)) / 2

    assert of_halves(by_row) == pytest.approx(float(by_row(logits)), rel=1e-6)
    assert abs(of_halves(by_batch) / float(by_batch(logits)) - 1) > 1e-4


def test_llm_int8_quantises_a_row_by_the_outliers_of_the_others():
    rows = torch.ones(2, 64, dtype=torch.float16)
    rows[1, 5] = 20.0
    together, *_ = int8.int8_vectorwise_quant(rows.clone(), threshold=6.0)
    by_itself, *_ = int8.int8_vectorwise_quant(rows[:1].clone(), threshold=6.0)
    assert together[0, 5] == 0
    assert by_itself[0, 5] == 127
    assert torch.equal(together[0, 6:], by_itself[0, 6:])


def module_job():
    return make_job(model=read_factory("mine:net"), task="module", packing="none")


def test_batch_norm_takes_other_statistics_of_a_part_and_is_refused():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    parts = torch.cat([net(part) for part in x.split(2)])
    assert (net(x) - parts).abs().max() > 1e-2
    with pytest.raises(InputError, match=r"1 \(BatchNorm1d\) takes statistics .* micro_batch=4"):
        check_built(module_job(), make_strategy(micro_batch=2), net)
    assert check_built(module_job(), make_strategy(micro_batch=4), net) is net
    assert check_built(module_job(), make_strategy(micro_batch=2), net[0]) is net[0]


def test_batch_norm_remembers_a_recomputed_pass_and_is_refused():
    plain, recomputed = (nn.Sequential(nn.BatchNorm1d(3)) for _ in range(2))
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain(x).square().sum().backward()
    checkpoint(recomputed, x, use_reentrant=False).square().sum().backward()
    assert (plain[0].running_mean - recomputed[0].running_mean).abs().max() > 1e-3
    strategy = make_strategy(micro_batch=4, activation_checkpointing="full")
    with pytest.raises(InputError, match="updates its running statistics"):
        check_built(module_job(), strategy, plain)
