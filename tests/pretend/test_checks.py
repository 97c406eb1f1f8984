"""Checks of numbers pass on the pretend GPU, as they do where training goes well."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from brimful import pretend

pytestmark = pytest.mark.torch

CHECKS = {
    "a loss is finite": lambda x: torch.isfinite(x.mean()),
    "all are": lambda x: torch.isfinite(x).all(),
    "none is NaN": lambda x: not torch.isnan(x).any(),
    "none is NaN or infinite": lambda x: not (torch.isnan(x) | torch.isinf(x)).any().item(),
    "no count of NaN": lambda x: torch.isnan(x).sum().item() == 0,
    "no count above none": lambda x: not torch.isnan(x).sum() > 0,
    "not all but": lambda x: not (~torch.isfinite(x)).any(),
    "no row has one": lambda x: not torch.isnan(x).any(dim=-1).any(),
    "is itself": lambda x: not bool((x != x).any()),  # noqa: PLR0124 - as NaN was told once
    "on the host": lambda x: torch.isfinite(x.cpu()).all(),
    "any is finite": lambda x: torch.isfinite(x).any(),
    "in Python": lambda x: math.isfinite(x.mean().item()),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_nothing_is_nan_or_infinite(check):
    assert check(torch.ones(4, 8))
    with pretend.gpu("t4"):
        assert check(torch.randn(4, 8, device="cuda"))


def test_what_a_number_decides_stays_unknown():
    with pretend.gpu("t4") as run:
        x = torch.randn(4, 8, device="cuda")
        assert not (x > 0).all()
        assert not (x == x.exp()).all()
    assert len(run.tape.stand_ins) == 2


def test_parameters_of_distributions_are_taken_for_valid():
    with pretend.gpu("t4") as run:
        x = torch.randn(64, 8, device="cuda", requires_grad=True)
        chosen = Categorical(logits=x)
        spread = Independent(Normal(x, x.exp()), 1)
        loss = chosen.log_prob(chosen.sample()).mean() + spread.log_prob(spread.rsample()).mean()
        (loss + chosen.entropy().mean()).backward()
    assert not run.tape.stand_ins


def test_the_runtime_s_own_functions_succeed():
    with pretend.gpu("t4"):
        torch.ones(4, device="cuda")
        torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
        free, total = torch.cuda.cudart().cudaMemGetInfo(0)
    assert 0 < free <= total
