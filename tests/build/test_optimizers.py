"""Every rule and every recipe takes the steps of a plain loop, and keeps what it says it keeps."""

import contextlib
import sys
from functools import cache

import pytest
import torch
from torch import nn

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.optimizers import build_optimizer
from brimful.build.optimizers.blockwise import BlockwiseAdamW
from brimful.build.precision import TECHNIQUES
from brimful.build.step import train_step
from brimful.errors import UnsupportedError
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import SCALED, LossScale
from samples import make_job, make_model, make_strategy

from .plain import ragged_batch
from .plain_recipes import plain_recipe_run

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 6
SCALE = LossScale(initial_scale=2.0**12, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
WIDE = {"hidden_size": 64, "num_hidden_layers": 2}
"""Wide enough that matrices have 8-bit moments, the last block of some not full."""
EAGER = [n for n, rule in OPTIMIZERS.items() if not (rule.compiled or rule.tells_hidden)]
"""``test_low_bit.py`` has those that are compiled."""
PAIRS = [
    *((recipe, "adamw") for recipe in TECHNIQUES if recipe not in {"fp16", "fp8"}),
    *((recipe, rule) for rule in EAGER if rule != "adamw" for recipe in ("fp32", "bf16-master")),
    ("fp16", "sgd"),
    ("bf16-mixed", "sgd"),
    ("fp16-mixed", "adamw-8bit"),
    ("fp16-master", "adafactor"),
    ("bf16", "adamw-foreach"),
]
TOLERANCES = {
    "fp32": (2e-6, 1e-4),
    "tf32": (2e-6, 1e-4),
    "bf16-mixed": (2e-6, 1e-4),
    "fp16-mixed": (2e-5, 5e-3),
    "fp16-master": (5e-5, 3e-2),
    "bf16-master": (2e-4, 5e-2),
    "bf16": (2e-4, 5e-2),
    "fp16": (2e-4, 5e-2),
}
"""Largest relative differences of a loss (of a norm ten times that) and of the weights' way: the
plain loop adds up the same numbers in another order, in the recipe's type."""


@contextlib.contextmanager
def without_onednn():
    """Multiply by PyTorch's own kernels: which one oneDNN takes hangs on shapes and on the CPU.

    (``torch.backends.mkldnn.flags`` sets more than it is asked for, and warns of that.)
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def job_of(precision, optimizer="adamw", **changes):
    fields = {
        "model": make_model("llama", **WIDE),
        "precision": precision,
        "optimizer": optimizer,
        "loss_scale": SCALE if precision in SCALED else None,
        "learning_rate": 2e-3,
    }
    return make_job("llama", **{**fields, **changes})


def steps_of(program, num_steps=NUM_STEPS):
    results = []
    for step in range(num_steps):
        batch = Batch(*ragged_batch(program.job, step=step))
        results.append(
            train_step(
                program,
                [batch],
                num_targets=count_targets([batch]),
                learning_rate=program.job.learning_rate,
            )
        )
    return results


def start(job, **switches):
    return build_program(job, make_strategy(micro_batch=4, attention="eager", **switches), CPU)


@cache
def both(precision, optimizer):
    job = job_of(precision, optimizer)
    with without_onednn():
        program = start(job)
        weights = {key: value.clone() for key, value in program.model.state_dict().items()}
        results = steps_of(program)
        return program, results, *plain_recipe_run(job, weights, num_steps=NUM_STEPS)


ALIKE = {("fp16-mixed", "adamw"): 4}
"""Steps whose norms are compared, where that is not all: from the fifth on AdamW makes of
roundings, which differ from CPU to CPU, up to 3e-4 of the norm (and 3e-5 of it in the fourth)."""
DECIDED_BY_ROUNDING = {("fp32", "adamw-8bit"), ("fp32", "paged-adamw-8bit")}
"""A rounding decides an 8-bit code: as far apart as this ends the plain loop itself, with the rows
of its batches in another order."""


def scatter_of(precision, optimizer):
    """Return how far apart the weights of two plain loops end, relative to their way."""
    program, _, model, _ = both(precision, optimizer)
    with without_onednn():
        weights = {k: v.clone() for k, v in start(program.job).model.state_dict().items()}
        other, _ = plain_recipe_run(program.job, weights, num_steps=NUM_STEPS, is_flipped=True)
    return apart(weights, model, other)


@torch.no_grad()
def apart(first, model, other):
    """Return the distance of two models' weights, relative to their way from the first ones."""
    moved = difference = 0.0
    for name, parameter in model.named_parameters():
        ours, theirs = other.get_parameter(name).double(), parameter.double()
        moved += float((theirs - first[name].double()).pow(2).sum())
        difference += float((theirs - ours).pow(2).sum())
    assert moved > 0
    return (difference / moved) ** 0.5


@pytest.mark.few
@pytest.mark.parametrize(("precision", "optimizer"), PAIRS)
def test_every_recipe_and_rule_takes_the_steps_of_the_plain_loop(precision, optimizer):
    _, results, _, rows = both(precision, optimizer)
    tolerance, _ = TOLERANCES[precision]
    compared = ALIKE.get((precision, optimizer), NUM_STEPS)
    steps = enumerate(zip(results, rows, strict=True), start=1)
    for step, (result, (loss, norm, scale, skipped)) in steps:
        assert float(result.loss) == pytest.approx(loss, rel=tolerance)
        if step <= compared:
            assert float(result.grad_norm) == pytest.approx(norm, rel=10 * tolerance)
        assert result.loss_scale == scale
        assert result.skipped == skipped
        assert result.grad_norm.dtype == torch.float32


@pytest.mark.parametrize(("precision", "optimizer"), PAIRS)
def test_the_weights_end_where_those_of_the_plain_loop_do(precision, optimizer):
    program, _, model, _ = both(precision, optimizer)
    bound = TOLERANCES[precision][1]
    if (precision, optimizer) in DECIDED_BY_ROUNDING:
        bound = max(bound, 2 * scatter_of(precision, optimizer))
    assert apart(start(program.job).model.state_dict(), model, program.model) < bound


@pytest.mark.parametrize(
    ("optimizer", "keys"),
    [
        ("adamw", {"step", "exp_avg", "exp_avg_sq"}),
        ("adamw-foreach", {"step", "exp_avg", "exp_avg_sq"}),
        ("adamw-8bit", {"step", "exp_avg", "exp_avg_sq", "absmax", "absmax_sq"}),
        ("sgd", {"momentum_buffer"}),
        ("adafactor", {"step", "row_var", "col_var"}),
    ],
)
def test_state_is_tensors_under_plain_keys_from_the_first_update_on(optimizer, keys):
    program = start(job_of("bf16-mixed", optimizer))
    assert not program.optimizer.state
    steps_of(program, 1)
    state = program.optimizer.state[program.model.get_input_embeddings().weight]
    assert state.keys() == keys
    assert all(isinstance(value, torch.Tensor) for value in state.values())


def test_sgd_without_momentum_keeps_nothing():
    program = start(job_of("fp32", "sgd", beta1=0.0))
    steps_of(program, 2)
    kept = [x for state in program.optimizer.state.values() for x in state.values()]
    assert [x for x in kept if x is not None] == []


@pytest.mark.parametrize("precision", ["fp32", "bf16-master"])
@pytest.mark.parametrize("optimizer", EAGER)
def test_frozen_parameters_are_left_alone_and_get_no_state(precision, optimizer):
    model = nn.Sequential(nn.Linear(80, 80), nn.Linear(80, 80, bias=False))
    model[0].requires_grad_(requires_grad=False)
    if precision == "bf16-master":
        model.bfloat16()
    before = [p.clone() for p in model.parameters()]
    optimizer = build_optimizer(job_of(precision, optimizer), model)
    model(torch.ones(1, 80, dtype=before[0].dtype)).sum().backward()
    optimizer.step()
    assert list(optimizer.state) == [model[1].weight]
    unchanged = [torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)]
    assert unchanged == [True, True, False]


@pytest.mark.parametrize("optimizer", EAGER)
def test_decay_shrinks_matrices_and_nothing_else(optimizer):
    model = nn.Linear(80, 80)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    job = job_of("fp32", optimizer, weight_decay=0.5, learning_rate=0.1)
    rule = build_optimizer(job, model)
    model.weight.grad, model.bias.grad = torch.zeros(80, 80), torch.zeros(80)
    rule.step()
    torch.testing.assert_close(model.weight, torch.full((80, 80), 0.95))
    torch.testing.assert_close(model.bias, torch.ones(80))


def test_eight_bits_are_those_of_bitsandbytes_to_the_bit():
    import bitsandbytes

    torch.manual_seed(0)
    ours, theirs = (nn.Linear(80, 60) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    rates = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}
    groups = [{"params": list(ours.parameters()), "weight_decay": 0.1}]
    mine = BlockwiseAdamW(groups, OPTIMIZERS["adamw-8bit"], **rates)
    other = bitsandbytes.optim.AdamW8bit(theirs.parameters(), weight_decay=0.1, **rates)
    for _ in range(5):
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        mine.step()
        other.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    state, theirs_state = mine.state[ours.weight], other.state[theirs.weight]
    assert torch.equal(state["exp_avg"], theirs_state["state1"])
    assert torch.equal(state["absmax_sq"], theirs_state["absmax2"])


def test_eight_bits_take_two_bytes_per_parameter_and_a_scale_per_block():
    weight = nn.Parameter(torch.ones(100, 50))
    weight.grad = torch.ones_like(weight)
    optimizer = build_optimizer(job_of("fp32", "adamw-8bit"), nn.ParameterList([weight]))
    optimizer.step()
    kept = [x for key, x in optimizer.state[weight].items() if key != "step"]
    assert sum(x.nbytes for x in kept) == 2 * 5000 + 2 * 4 * 20


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", None)
    with pytest.raises(UnsupportedError, match=r"adamw-8bit needs bitsandbytes.*brimful\[quant\]"):
        build_optimizer(job_of("fp32", "adamw-8bit"), nn.Linear(2, 2))
