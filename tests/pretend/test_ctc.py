"""The loss of connectionist temporal classification, and what its two kernels allocate."""

import pytest
import torch

from brimful.errors import UnsupportedError
from brimful.pretend import gpu, real_values

pytestmark = pytest.mark.torch

TIME, BATCH, LABELS, LONGEST = 120, 6, 30, 20
TABLE_BYTES = 4 * BATCH * TIME * (2 * LONGEST + 1)
"""log_alpha, and log_beta in backward (LossCTC.cu), as the lengths say."""


def trained(lengths, targets):
    """Run the loss and its backward on the pretend GPU."""
    x = torch.randn(TIME, BATCH, LABELS, device="cuda", requires_grad=True)
    loss = torch.nn.functional.ctc_loss(
        x.log_softmax(-1), targets, torch.full((BATCH,), TIME, device="cuda"), lengths, blank=29
    )
    loss.backward()


def peak(*, lengths, targets, assumes=False):
    run = gpu("rtx-4080", says_cuda=True, assume_all_selected=assumes)
    with run:
        trained(lengths(), targets())
    return run.report().simulated_peak_allocated_bytes


def known():
    return torch.tensor([LONGEST, 3, 5, 7, 9, 11], device="cuda")


def on_the_host():
    return torch.tensor([LONGEST, 3, 5, 7, 9, 11])


def unknown():
    return torch.randn(BATCH, device="cuda").long()


def rows():
    return torch.ones((BATCH, LONGEST), dtype=torch.long, device="cuda")


def joined():
    return torch.ones(LONGEST * BATCH, dtype=torch.long, device="cuda")


@pytest.mark.parametrize(
    ("lengths", "targets", "assumed"),
    [
        (known, rows, False),
        (known, joined, False),
        (on_the_host, rows, False),
        (unknown, rows, True),
        (unknown, joined, True),
    ],
)
def test_the_tables_are_counted(lengths, targets, assumed):
    peak_bytes = peak(lengths=lengths, targets=targets, assumes=assumed)
    scores_bytes = 4 * TIME * BATCH * LABELS
    # In backward: what it began with, its logarithms, both tables, and the gradient.
    assert 0 <= peak_bytes - 2 * TABLE_BYTES - 3 * scores_bytes < 16 * 1024


def test_lengths_that_nobody_knows_are_refused_with_what_helps():
    with pytest.raises(UnsupportedError, match="assume-all-selected") as refused:
        peak(lengths=unknown, targets=rows)
    assert refused.value.nearest == {"assume_all_selected": True}


def test_what_does_not_help_is_not_advised():
    error = real_values.refusal(torch.ops.aten._unique2.default, "a.py:1")
    assert "assume-all-selected" not in str(error)
    assert not error.nearest
