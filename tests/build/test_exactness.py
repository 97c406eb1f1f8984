"""Switches of the strategy change memory and speed, and nothing that is learnt."""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import IGNORE_INDEX, Batch, count_targets
from brimful.build.step import evaluate, train_step
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
