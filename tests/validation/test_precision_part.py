"""A sample of what the long evidence asks of the precision doctor."""

import precision_cases
import precision_part
import precision_shares
import pytest

pytestmark = pytest.mark.torch

SAMPLE = (
    "attention logits overflow, gpt2",
    "one layer's gradients underflow, fp16-mixed",
    "norm variance overflow, fp16",
    "lost updates, bf16",
    "Inf in data",
    "exploding embedding",
)


def planted(label):
    (found,) = [p for p in precision_cases.faults() if p.label == label]
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("label", SAMPLE)
def test_a_planted_fault_is_named_first(label):
    row = precision_part.row_of(planted(label))
    assert row.holds, (row.expected, row.said)


@pytest.mark.parametrize("place", [1, 17])
def test_a_healthy_program_has_no_finding(place):
    row = precision_part.row_of(precision_cases.healthy()[place])
    assert row.holds, row.said


def test_a_row_that_is_not_as_it_must_be_is_missed():
    healthy = precision_cases.healthy()[16]
    wrong = healthy._replace(expected=precision_cases.Expected("router", "model.0", "activation"))
    row = precision_part.row_of(wrong)
    assert not row.holds
    assert precision_part.summarize([row]).missed


def test_shares_are_those_of_fp64():
    case = precision_cases.make_case("llama", "fp16-mixed")
    plant = precision_cases.gradient(2.0**-32, "model.layers.1.mlp.down_proj")
    counted, vanished, num = precision_shares.worst_errors(case, plant)
    assert max(counted, vanished) <= precision_part.SHARE_BAR
    assert num > 500
