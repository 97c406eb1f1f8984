"""Loss scaling: torch's rule, overflowing steps that leave no trace, and one host sync per step."""

import json
import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.build.batch import Batch, count_targets
from brimful.build.first_state import make_state
from brimful.build.precision.loss_scaling import MIN_SCALE, LossScaler
from brimful.build.program import gradients, state_tensors
from brimful.build.step import micro_step, train_step
from brimful.errors import RunError
from brimful.values.job import SCALED, LossScale

from .plain import ragged_batch
from .test_optimizers import job_of, start, steps_of

pytestmark = pytest.mark.torch

TORCH = LossScale(
    initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)


def settings(**changes):
    fields = {name: getattr(TORCH, name) for name in LossScale.__struct_fields__}
    return LossScale(**{**fields, **changes})


def step_of(program, *, step=0):
    batch = Batch(*ragged_batch(program.job, step=step))
    return train_step(program, [batch], num_targets=count_targets([batch]), learning_rate=2e-3)


def everything(program):
    tensors = [*program.model.parameters(), *state_tensors(program)]
    return [x.detach().clone() for x in tensors]


def is_same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("growth_factor", [2.0, 1.5, 4.0])
@pytest.mark.parametrize("backoff_factor", [0.5, 0.25])
def test_the_scale_follows_torchs_grad_scaler(growth_factor, backoff_factor):
    rule = {"growth_factor": growth_factor, "backoff_factor": backoff_factor, "growth_interval": 3}
    ours = LossScaler(settings(**rule))
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**16, **rule)
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    draw = random.Random(0)  # noqa: S311 - which steps overflow
    for _ in range(200):
        assert ours.scale == pytest.approx(theirs.get_scale(), rel=1e-5)
        finite = draw.random() < 0.93
        theirs.scale(weight * (1.0 if finite else float("inf"))).backward()
        theirs.step(optimizer)
        theirs.update()
        weight.grad = None
        ours.update(is_finite=finite)
        assert ours.growth_tracker == theirs.state_dict()["_growth_tracker"]


def test_the_scale_never_grows_beyond_fp32():
    scaler = LossScaler(settings(initial_scale=2.0**40, growth_factor=1e9, growth_interval=1))
    for _ in range(10):
        scaler.update(is_finite=True)
    assert scaler.scale == pytest.approx(2.0**40 * 1e18)
    scaler.update(is_finite=True)
    assert scaler.scale == pytest.approx(2.0**40 * 1e27, rel=1e9)
    assert scaler.scale <= torch.finfo(torch.float32).max


def test_a_scale_that_only_falls_ends_the_run_with_both_numbers():
    scaler = LossScaler(settings(initial_scale=MIN_SCALE * 4))
    scaler.update(is_finite=False)
    scaler.update(is_finite=False)
    with pytest.raises(RunError, match=r"3 steps were skipped.*from 0.000244141 to 3.05176e-05"):
        scaler.update(is_finite=False)


def test_its_state_is_plain_numbers_and_goes_on_where_it_was():
    one, other = (LossScaler(settings(growth_interval=5)) for _ in range(2))
    for finite in (False, True, True):
        one.update(is_finite=finite)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.state_dict() == {"scale": 2.0**15, "growth_tracker": 2, "num_skipped": 1}
    for _ in range(3):
        one.update(is_finite=True)
        other.update(is_finite=True)
    assert other.scale == one.scale == 2.0**16


@pytest.mark.parametrize("precision", sorted(SCALED))
def test_a_scale_far_too_large_is_backed_off_until_steps_are_taken(precision):
    scale = settings(initial_scale=2.0**40, backoff_factor=2.0**-6)
    program = start(job_of(precision, loss_scale=scale))
    make_state(program)
    before = everything(program)
    first = step_of(program)
    assert first.skipped
    assert not torch.isfinite(first.grad_norm)
    assert first.loss_scale == 2.0**40
    assert is_same(everything(program), before)
    rest = [step_of(program) for _ in range(6)]
    skipped = [first.skipped, *(result.skipped for result in rest)]
    num_skipped = skipped.index(False)
    assert 1 <= num_skipped < 6
    assert not any(skipped[num_skipped:])
    assert program.scaler.num_skipped == num_skipped
    assert program.scaler.scale == 2.0 ** (40 - 6 * num_skipped)
    # What is reported is the loss itself, whatever it was multiplied by.
    assert {float(result.loss) for result in [first, *rest[:num_skipped]]} == {float(first.loss)}
    assert float(rest[-1].loss) < float(first.loss)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-foreach", "adamw-8bit", "sgd", "adafactor"])
@pytest.mark.parametrize("precision", sorted(SCALED))
def test_an_overflow_in_the_middle_leaves_no_trace_and_training_goes_on(precision, optimizer):
    program = start(job_of(precision, optimizer))
    steps_of(program, 2)
    before, scale = everything(program), program.scaler.scale
    poisoned = program.model.get_output_embeddings().weight.register_hook(
        lambda gradient: gradient * float("inf")
    )
    result = step_of(program, step=2)
    poisoned.remove()
    assert result.skipped
    assert is_same(everything(program), before)
    assert gradients(program) == []
    assert program.scaler.scale == scale / 2
    after = step_of(program, step=2)
    assert not after.skipped
    assert float(after.loss) == pytest.approx(float(result.loss), rel=1e-6)
    assert not is_same(everything(program), before)


@pytest.mark.parametrize("precision", sorted(SCALED))
def test_clipping_is_of_the_gradients_without_the_scale(precision):
    norms = []
    for initial_scale in (1.0, 2.0**12):
        program = start(job_of(precision, loss_scale=settings(initial_scale=initial_scale)))
        norms.append([float(result.grad_norm) for result in steps_of(program, 4)])
    assert max(norms[0]) > program.job.clip
    assert norms[1] == pytest.approx(norms[0], rel=2e-2)


def test_without_a_scale_small_gradients_are_lost_in_fp16():
    zeros = []
    for initial_scale in (2.0**-20, 2.0**10):
        program = start(job_of("fp16-master", loss_scale=settings(initial_scale=initial_scale)))
        micro_step(program, Batch(*ragged_batch(program.job, step=0)), num_targets=30)
        blocks = [p.grad for p in program.model.base_model.layers.parameters()]
        zeros.append(sum(int((g == 0).sum()) for g in blocks) / sum(g.numel() for g in blocks))
    assert zeros[0] > zeros[1] + 0.1


def test_recipes_without_scaling_have_no_scaler_and_skip_nothing():
    program = start(job_of("bf16-mixed"))
    result = step_of(program)
    assert program.scaler is None
    assert (result.skipped, result.loss_scale) == (False, None)


class HostSyncs(TorchDispatchMode):
    """Counts the values that the host reads of the device's tensors."""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize(
    ("precision", "num_syncs"),
    [("fp32", 0), ("bf16-master", 0), ("fp16-mixed", 1), ("fp16-master", 1)],
)
def test_a_step_reads_one_value_if_it_is_scaled_and_none_otherwise(
    precision, num_syncs, micro_batches
):
    program = start(job_of(precision, "sgd"))
    batches = [Batch(*ragged_batch(program.job, step=0))] * micro_batches
    steps_of(program, 1)
    with HostSyncs() as syncs:
        train_step(program, batches, num_targets=30, learning_rate=1e-3)
    assert syncs.num == num_syncs
