"""AdamW with moments of few bits: torchao's numbers, our state, and what compiling it takes.

Each format compiles for 3 to 20 seconds a shape on one core.
"""

import copy

import pytest
import torch
from torch import nn

from brimful.build.optimizers import build_optimizer
from brimful.build.optimizers.base import compiled_in
from brimful.errors import InputError, UnsupportedError
from brimful.techniques.optimizers import OPTIMIZERS, Settings, Updated, bytes_kept
from brimful.techniques.optimizers.adamw_4bit import FOUR_BITS
from brimful.techniques.optimizers.adamw_fp8 import EIGHT_BITS
from brimful.techniques.optimizers.low_bit import LEAST
from brimful.techniques.runnable import check_strategy
from brimful.values.job import check_job
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason="torchao is not installed (pip install 'brimful[qat]')")

NAMES = ["adamw-fp8", "adamw-4bit"]
SHAPES = ((64, 128), (30,))
BITS = {"adamw-4bit": 4, "adamw-fp8": 8}
FORMATS = {"adamw-4bit": FOUR_BITS, "adamw-fp8": EIGHT_BITS}


def kept_bytes(rule, shape, element):
    settings = Settings(num_bytes=element, kernels="cpu", momentum=0.9, decay=0.1)
    return bytes_kept(rule, [Updated(shape)], settings)


def job_of(name, **changes):
    return check_job(make_job(optimizer=name, **changes))


def parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    return nn.ParameterList([nn.Parameter(values) for values in made])


def step(optimizer, held, number):
    generator = torch.Generator().manual_seed(number)
    for parameter in held:
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.grad = noise.to(parameter.dtype)
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_torchao_s_own_to_the_bit(name, dtype):
    from torchao import optim

    job = job_of(name, precision="fp32" if dtype == torch.float32 else "bf16")
    ours, theirs = parameters(dtype), parameters(dtype)
    optimizer = build_optimizer(job, ours)
    kind = {"adamw-4bit": optim.AdamW4bit, "adamw-fp8": optim.AdamWFp8}[name]
    groups = [
        {"params": [p for p in theirs if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in theirs if p.ndim <= 1], "weight_decay": 0.0},
    ]
    rates = {"lr": job.learning_rate, "betas": (job.beta1, job.beta2), "eps": job.epsilon}
    reference = kind(groups, **rates)
    before = copy.deepcopy(ours)
    for number in range(3):
        step(optimizer, ours, number)
        step(reference, theirs, number)
    for mine, other, first in zip(ours, theirs, before, strict=True):
        assert torch.equal(mine, other)
        assert not torch.equal(mine, first)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_moments_take_the_bytes_that_are_said(name):
    held = parameters()
    optimizer = build_optimizer(job_of(name), held)
    step(optimizer, held, 0)
    rule, bits = OPTIMIZERS[name], FORMATS[name]
    for parameter in held:
        state = optimizer.state[parameter]
        sizes = {key: x.numel() * x.element_size() for key, x in state.items() if key != "step"}
        assert sum(sizes.values()) == kept_bytes(rule, tuple(parameter.shape), 4)
        assert all(type(x) is torch.Tensor for x in state.values())
    large = 64 * 128
    assert kept_bytes(rule, (64, 128), 4) == large * 2 * BITS[name] // 8 + 8 * large // bits.block
    assert kept_bytes(rule, (LEAST - 1,), 2) == 2 * 2 * (LEAST - 1)
    assert bits.workspace_bytes((LEAST - 1,), "cuda") == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_bit_for_bit_after_loading(name):
    job, held = job_of(name), parameters()
    optimizer = build_optimizer(job, held)
    for number in range(2):
        step(optimizer, held, number)
    fresh = copy.deepcopy(held)
    again = build_optimizer(job, fresh)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(2, 4):
        step(optimizer, held, number)
        step(again, fresh, number)
    for mine, other in zip(held, fresh, strict=True):
        assert torch.equal(mine, other)
    pairs = zip(optimizer.state.values(), again.state.values(), strict=True)
    for mine, other in pairs:
        assert {key: x.dtype for key, x in mine.items()} == {k: x.dtype for k, x in other.items()}
        assert all(torch.equal(x.float(), other[key].float()) for key, x in mine.items())


def test_compiling_is_counted_once_for_a_shape():
    held = parameters()
    optimizer = build_optimizer(job_of("adamw-fp8"), held)
    assert compiled_in(optimizer) == (0, 0.0)
    step(optimizer, held, 0)
    num, seconds = compiled_in(optimizer)
    assert (num, seconds > 0) == (2, True)
    step(optimizer, held, 1)
    assert compiled_in(optimizer) == (num, seconds)
    assert compiled_in(build_optimizer(job_of("adamw"), parameters())) == (0, 0.0)


def test_without_a_compiler_it_is_refused_before_training():
    from torch._inductor import config

    job, held = job_of("adamw-fp8"), parameters()
    without = config.patch({"cpp.cxx": ("no-such-compiler",)})
    with without, pytest.raises(UnsupportedError, match=r"no C\+\+ compiler here; install g\+\+"):
        build_optimizer(job, held)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_run_is_refused(name):
    with pytest.raises(UnsupportedError, match="whose masters are updated in buckets"):
        job_of(name, precision="bf16-master")
    for spread in ({"zero": 1, "dp_shard": 2}, {"zero": 3, "dp_shard": 2}, {"pp": 2}, {"tp": 2}):
        with pytest.raises((UnsupportedError, InputError), match=f"optimizer={name}|vocab"):
            check_strategy(job_of(name), make_strategy(**spread))
