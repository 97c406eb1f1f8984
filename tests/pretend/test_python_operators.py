"""Operations that a program writes in Python, which a card runs as they are written."""

import pytest
import torch

from brimful import pretend
from brimful.errors import OutOfTimeError

pytestmark = pytest.mark.torch
_ROWS = 1024
_BYTES = 4 * _ROWS**2


@torch.library.custom_op("brimful_test::wide", mutates_args=())
def _wide(x: torch.Tensor) -> torch.Tensor:
    scratch = torch.empty(4 * x.numel(), device="cuda")
    return (x + 1).mul_(scratch.numel())


@torch.library.custom_op("brimful_test::absent", mutates_args=())
def _absent(x: torch.Tensor) -> torch.Tensor:
    raise ImportError(f"the kernel of {x.shape} is not installed")


@torch.library.custom_op("brimful_test::late", mutates_args=())
def _late(x: torch.Tensor) -> torch.Tensor:
    raise OutOfTimeError(f"no time is left for {x.shape}")


for each in (_wide, _absent, _late):
    each.register_fake(torch.empty_like)


def _report(operation):
    with pretend.gpu("h100") as run:
        operation(torch.empty(_ROWS, _ROWS, device="cuda"))
    return run.report()


def test_what_it_allocates_beside_its_result_is_seen():
    report = _report(_wide)
    assert report.simulated_peak_block_bytes == (1 + 4 + 1) * _BYTES
    assert not report.unknown_ops


def test_what_cannot_run_is_taken_from_its_fake_and_said_to_be_unknown():
    report = _report(_absent)
    assert report.simulated_peak_block_bytes == 2 * _BYTES
    assert [each.op for each in report.unknown_ops] == ["brimful_test.absent.default"]


def test_a_budget_that_ends_inside_of_one_is_not_taken_for_a_missing_kernel():
    with pytest.raises(OutOfTimeError):
        _report(_late)
