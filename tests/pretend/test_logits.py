"""Logits are named at a peak where shapes tell them, and what a loss in chunks would do."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional

from brimful import pretend
from brimful.show.pretend import pretend_summary
from brimful.values.results import LOGITS

pytestmark = pytest.mark.torch

WORDS, WIDTH, TOKENS = 8192, 64, 4096


class Block(nn.Module):
    """As wide within as a vocabulary might be."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WORDS // 2)
        self.down = nn.Linear(WORDS // 2, WIDTH)

    def forward(self, x):
        return x + self.down(functional.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, *, is_tied):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ran(*, is_tied=False, words=WORDS, budget_bytes=None):
    with pretend.gpu("t4") as run:
        model = Model(is_tied=is_tied).cuda()
        ids = torch.zeros(1, TOKENS, dtype=torch.long, device="cuda")
        logits = model(ids)[..., :words].float()
        functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    return run.report(budget_bytes=budget_bytes)


@pytest.mark.parametrize("is_tied", [False, True])
def test_logits_and_their_copies_are_a_class_of_their_own(is_tied):
    report = ran(is_tied=is_tied)
    one = 4 * TOKENS * WORDS
    assert report.logits.num_bytes == report.logits.num_tensors * one
    assert report.logits.num_tensors >= 2
    assert report.logits.shape.endswith(f"{WORDS}]")
    held = {item.name: item.num_bytes for item in report.items}
    assert held[LOGITS] == report.logits.num_bytes
    assert sum(held.values()) == report.simulated_peak_allocated_bytes
    told = " ".join(fact.text for fact in pretend_summary(report, ["x.py"]).facts)
    assert f"logits and loss {one * report.logits.num_tensors >> 20}.00 MiB in" in told


def test_what_repeats_is_no_vocabulary():
    with pretend.gpu("t4") as run:
        blocks = nn.Sequential(*(Block() for _ in range(3))).cuda()
        blocks(torch.ones(TOKENS, WIDTH, device="cuda")).sum().backward()
    assert run.report().logits is None


def test_a_head_with_a_bias_whose_gradient_is_transposed_has_logits():
    with pretend.gpu("t4") as run:
        head = nn.Linear(WIDTH, WORDS).cuda()
        x = torch.ones(TOKENS, WIDTH, device="cuda", requires_grad=True)
        ids = torch.zeros(TOKENS, dtype=torch.long, device="cuda")
        functional.cross_entropy(head(x), ids).backward()
    assert run.report().logits.shape == f"[{TOKENS}, {WORDS}]"


@pytest.mark.parametrize(
    "layers",
    [
        {"up": nn.Linear(WIDTH, WORDS), "down": nn.Linear(WORDS, 10)},
        {"alone": nn.Linear(TOKENS, TOKENS)},
    ],
    ids=["up and down", "as wide as before"],
)
def test_a_hidden_layer_is_no_vocabulary(layers):
    with pretend.gpu("t4") as run:
        model = nn.Sequential(OrderedDict(layers)).cuda()
        x = torch.ones(TOKENS, next(iter(layers.values())).in_features, device="cuda")
        model(x).square().mean().backward()
    assert run.report().logits is None


class Unembedded(nn.Module):
    """A head that is stored the other way round, or an adapter of the embedding."""

    def __init__(self, how):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False) if how == "adapted" else None
        self.least = nn.Parameter(torch.zeros(8 if self.head else WIDTH, WORDS))

    def forward(self, ids):
        x = self.embedding(ids)
        if self.head is None:
            return x @ self.least
        return self.head(x + functional.embedding(ids, self.least.T).mean(-1, keepdim=True))


@pytest.mark.parametrize("how", ["turned", "adapted"])
def test_logits_are_told_where_other_matrices_are_as_wide(how):
    with pretend.gpu("t4") as run:
        model = Unembedded(how).cuda()
        ids = torch.zeros(TOKENS, dtype=torch.long, device="cuda")
        functional.cross_entropy(model(ids), ids).backward()
    assert run.report().logits.shape == f"[{TOKENS}, {WORDS}]"


def test_a_loss_in_chunks_is_named_where_it_would_make_it_fit():
    whole = ran()
    need, less = (
        whole.reserved.simulated_peak_reserved_bytes,
        whole.logits.in_chunks_reserved_bytes,
    )
    assert less < need
    said = {
        budget: {fact.label: fact.text for fact in pretend_summary(report, ["x.py"]).facts}
        for budget in (need, less, less // 2)
        for report in [ran(budget_bytes=budget)]
    }
    assert "would fit" not in said[need]
    assert "the loss in 8 chunks" in said[less]["would fit"]
    assert "would fit" not in said[less // 2]
    assert "the loss in chunks" in said[less // 2]["change"]
