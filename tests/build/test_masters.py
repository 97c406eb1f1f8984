"""fp32 masters: what a 16-bit weight would lose, in bounded memory, saved by any generic walk."""

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from brimful.build.batch import Batch, count_targets
from brimful.build.optimizers import build_optimizer
from brimful.build.precision.masters import BUCKET_BYTES, MASTER, MasterWeights
from brimful.build.step import train_step
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.units import MIB

from .plain import ragged_batch
from .test_optimizers import job_of, start, steps_of

pytestmark = pytest.mark.torch

RATES = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}


def layers(dtype=torch.bfloat16, *, sizes=((40, 30), (30, 200), (7, 5))):
    torch.manual_seed(0)
    return nn.ParameterList([nn.Parameter(torch.randn(size).to(dtype)) for size in sizes])


def set_gradients(parameters, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = noise.to(parameter.dtype)


def masters_of(parameters, **changes):
    groups = [{"params": list(parameters), "weight_decay": 0.1, "lr": RATES["lr"]}]

    def rule(groups):
        return torch.optim.AdamW(groups, betas=RATES["betas"], eps=RATES["eps"], fused=True)

    return MasterWeights(groups, rule=rule, **changes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_are_a_hand_written_fp32_adamw_to_the_bit(dtype):
    parameters = layers(dtype)
    wide = [p.detach().float() for p in parameters]
    ours = masters_of(parameters)
    theirs = torch.optim.AdamW(wide, weight_decay=0.1, fused=True, **RATES)
    for step in range(6):
        set_gradients(parameters, step)
        for master, parameter in zip(wide, parameters, strict=True):
            master.grad = parameter.grad.float()
        ours.step()
        theirs.step()
    for master, parameter in zip(wide, parameters, strict=True):
        assert torch.equal(ours.state[parameter][MASTER], master)
        assert torch.equal(ours.state[parameter]["exp_avg_sq"], theirs.state[master]["exp_avg_sq"])
        assert torch.equal(parameter, master.to(dtype))


@pytest.mark.few
@pytest.mark.parametrize("bucket_bytes", [1, 4 * 1300, BUCKET_BYTES])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_buckets_change_nothing_but_what_exists_at_a_time(optimizer, bucket_bytes):
    ends = []
    for size in (bucket_bytes, 10 * BUCKET_BYTES):
        parameters = layers(sizes=((80, 60), (30, 200), (7,)))
        masters = build_optimizer(job_of("bf16-master", optimizer), parameters)
        masters._bucket_bytes = size
        for step in range(4):
            set_gradients(parameters, step)
            masters.step()
        ends.append([masters.state[p][MASTER] for p in parameters])
    assert all(map(torch.equal, *ends))


def test_updates_that_bf16_loses_add_up_in_the_masters():
    """1e-4 of a weight of 1 is a fifteenth of bf16's grain there."""
    plain, mastered = (nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16)) for _ in range(2))
    alone = torch.optim.AdamW([plain], lr=1e-4, weight_decay=0.0, fused=True)
    masters = build_optimizer(
        job_of("bf16-master", learning_rate=1e-4, weight_decay=0.0), nn.ParameterList([mastered])
    )
    for _ in range(100):
        plain.grad, mastered.grad = torch.ones_like(plain), torch.ones_like(mastered)
        alone.step()
        masters.step()
    assert (plain == 1).all()
    torch.testing.assert_close(masters.state[mastered][MASTER], torch.full((64, 64), 0.99))
    assert torch.equal(mastered, torch.full_like(mastered, 0.99))


def test_gradients_are_scaled_in_fp32_where_16_bits_would_lose_them():
    weight = nn.Parameter(torch.ones(4, dtype=torch.float16))
    masters = MasterWeights(
        [{"params": [weight], "lr": 1.0, "weight_decay": 0.0}],
        rule=lambda groups: torch.optim.SGD(groups, lr=1.0),
    )
    weight.grad = torch.full_like(weight, 1.0)
    masters.gradient_factor = torch.tensor(2.0**-20)
    masters.step()
    assert torch.equal(masters.state[weight][MASTER], torch.full((4,), 1 - 2.0**-20))


def test_parameters_in_fp32_have_no_master_and_take_part_in_every_bucket():
    """Adapters may be held in fp32 under a 16-bit recipe."""
    ends = []
    for bucket_bytes in (1, BUCKET_BYTES):
        mixed = [*layers(sizes=((9, 9),)), *layers(torch.float32, sizes=((9, 9), (8, 8)))]
        masters = masters_of(mixed, bucket_bytes=bucket_bytes)
        for step in range(3):
            set_gradients(mixed, step)
            masters.step()
        assert [MASTER in masters.state[p] for p in mixed] == [True, False, False]
        assert [float(masters.state[p]["step"]) for p in mixed] == [3, 3, 3]
        ends.append(mixed)
    assert all(map(torch.equal, *ends))


def test_a_parameter_without_a_gradient_is_left_alone_until_it_has_one():
    parameters = layers()
    masters = masters_of(parameters)
    before = parameters[1].clone()
    set_gradients(parameters, 0)
    parameters[1].grad = None
    masters.step()
    assert torch.equal(parameters[1], before)
    set_gradients(parameters, 1)
    masters.step()
    assert [float(masters.state[p]["step"]) for p in parameters] == [2, 1, 2]


def allocated_by_a_step(masters):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        masters.step()
    live = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("bucket_mib", "largest_mib"), [(1, 2), (4, 4), (64, 12)])
def test_a_step_holds_one_bucket_of_fp32_gradients_or_the_largest_parameter(
    bucket_mib, largest_mib
):
    """Six parameters of which each has 2 MiB of fp32 gradient."""
    parameters = layers(sizes=((512, 1024),) * 6)
    masters = masters_of(parameters, bucket_bytes=bucket_mib * MIB)
    for step in range(2):
        set_gradients(parameters, step)
        masters.step()
    set_gradients(parameters, 2)
    assert allocated_by_a_step(masters) == pytest.approx(largest_mib * MIB, rel=0.01)


@pytest.mark.few(4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_generic_walk_saves_and_restores_it_bit_by_bit(optimizer):
    """Low-bit updates run as they are written: compiling them changes nothing that is saved."""
    with torch.compiler.set_stance("force_eager"):
        check_generic_walk(job_of("bf16-master", optimizer))


def check_generic_walk(job):
    whole, first, second = (start(job) for _ in range(3))
    steps_of(whole, 4)
    steps_of(first, 2)
    for (name, saved), fresh in zip(
        first.model.named_parameters(), second.model.parameters(), strict=True
    ):
        fresh.data.copy_(saved)
        for key, value in first.optimizer.state[saved].items():
            assert isinstance(value, torch.Tensor), (name, key)
            second.optimizer.state[fresh][key] = value.clone()
    go_on(second, from_step=2, num_steps=2)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(
            whole.optimizer.state[one][MASTER], second.optimizer.state[other][MASTER]
        )


@pytest.mark.parametrize("num_steps_before", [0, 1])
@pytest.mark.parametrize(
    ("precision", "optimizer"),
    [("bf16-master", "adamw"), ("bf16-master", "adamw-8bit"), ("bf16", "adamw-8bit")],
)
def test_their_own_state_dict_keeps_every_type_too(precision, optimizer, num_steps_before):
    job = job_of(precision, optimizer)
    first, second = start(job), start(job)
    steps_of(first, 2)
    steps_of(second, num_steps_before)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for program in (first, second):
        go_on(program, from_step=2, num_steps=2)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
        for key, value in first.optimizer.state[one].items():
            assert value.dtype == second.optimizer.state[other][key].dtype
            assert torch.equal(value, second.optimizer.state[other][key])


def go_on(program, *, from_step, num_steps):
    for step in range(from_step, from_step + num_steps):
        batch = Batch(*ragged_batch(program.job, step=step))
        train_step(program, [batch], num_targets=count_targets([batch]), learning_rate=2e-3)
