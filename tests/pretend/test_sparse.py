"""Sparse tensors on the pretend GPU: their indices and values, against real runs."""

import functools

import pytest
import torch
from tests.pretend.real_peaks import measured
from torch import nn

from brimful import pretend
from brimful.pretend.script_errors import read_error
from brimful.pretend.sparse import DISTINCT, UNCOUNTED

pytestmark = pytest.mark.torch

ROWS, WIDTH, BATCH = 5000, 64, 1024
LOOSE_BYTES = 256
OPTIMIZERS = {
    "SparseAdam": torch.optim.SparseAdam,
    "Adagrad": torch.optim.Adagrad,
    "SGD": torch.optim.SGD,
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9),
}


def embedded(device, optimizer="SparseAdam", *, num_uses=1, num_backwards=1, is_expanded=False):
    """Train a table of embeddings, each of whose rows is in a batch once at most."""
    table = nn.Embedding(ROWS, WIDTH, sparse=True, device=device)
    head = nn.Linear(WIDTH, WIDTH, device=device)
    updates = OPTIMIZERS[optimizer](table.parameters(), lr=0.1)
    for _ in range(3):
        for number in range(num_backwards):
            ids = BATCH * number + torch.arange(BATCH, device=device)
            out = sum(table(ids + 2 * BATCH * use) for use in range(num_uses))
            loss = out.sum() if is_expanded else head(out).pow(2).mean()
            loss.backward()
        updates.step()
        updates.zero_grad()


def bagged(device, *, mode):
    """Train a table whose rows are added up, bag by bag."""
    table = nn.EmbeddingBag(ROWS, WIDTH, sparse=True, mode=mode, device=device)
    updates = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for _ in range(3):
        table(torch.arange(BATCH, device=device).view(64, 16)).pow(2).mean().backward()
        updates.step()
        updates.zero_grad()


def convolved(device):
    """Multiply by the matrix of a graph, forward and backward."""
    ends = torch.arange(2000, device=device).expand(2, -1)
    graph = torch.sparse_coo_tensor(ends, torch.ones(2000, device=device), (2000, 2000)).coalesce()
    x = torch.randn(2000, WIDTH, device=device, requires_grad=True)
    out = torch.sparse.mm(graph, nn.Linear(WIDTH, WIDTH, device=device)(x)).relu()
    torch.mm(graph, out).pow(2).mean().backward()


PROGRAMS = {
    **{name: functools.partial(embedded, optimizer=name) for name in OPTIMIZERS},
    "used twice": functools.partial(embedded, num_uses=2),
    "accumulated": functools.partial(embedded, num_backwards=3),
    "expanded gradient": functools.partial(embedded, is_expanded=True),
    "bags": functools.partial(bagged, mode="sum"),
    "bags, mean": functools.partial(bagged, mode="mean"),
    "graph": convolved,
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_sparse_tensors_takes_what_it_takes_for_real(name):
    with pretend.gpu(imitate="cpu", says_cuda=False) as run:
        PROGRAMS[name]("gpu:0")
    real, _ = measured(PROGRAMS[name])
    assert run.peak_allocated_bytes == pytest.approx(real, abs=LOOSE_BYTES)


def test_what_stays_of_a_sparse_gradient_is_a_gradient_and_what_is_counted_at_most_is_said():
    with pretend.gpu("a100-80gb") as run:
        table = nn.Embedding(ROWS, WIDTH, sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(table.parameters())
        (table(torch.arange(BATCH, device="cuda")) * 2).sum().backward()
        assert table.weight.grad.is_sparse
        assert table.weight.grad._nnz() == BATCH
        optimizer.step()
    held = {item.name: item.num_bytes for item in run.report().items}
    assert held["gradients"] == BATCH * (WIDTH * 4 + 8)
    assert DISTINCT in run.report().assumptions


def test_what_cusparse_takes_beside_a_product_is_said_not_to_be_counted():
    with pretend.gpu("a100-80gb") as run:
        convolved("cuda")
    assert UNCOUNTED in run.report().assumptions


def test_it_moves_and_is_dense_again():
    with pretend.gpu("a100-80gb"):
        ends, values = torch.zeros(1, 3, dtype=torch.int64), torch.ones(3, 4)
        made = torch.sparse_coo_tensor(ends, values, (10, 4))
        assert made.cuda().device.type == "cuda"
        assert made.cuda().to_dense().shape == made.shape


def test_clipping_sparse_gradients_fails_as_it_does_on_a_card():
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    table(torch.arange(BATCH)).sum().backward()
    with pytest.raises(NotImplementedError, match="linalg_vector_norm"):
        nn.utils.clip_grad_norm_(table.parameters(), 1.0)
    with pretend.gpu("a100-80gb"):
        table = nn.Embedding(ROWS, WIDTH, sparse=True).cuda()
        table(torch.arange(BATCH, device="cuda")).sum().backward()
        with pytest.raises(NotImplementedError, match="linalg_vector_norm") as caught:
            nn.utils.clip_grad_norm_(table.parameters(), 1.0)
    assert read_error(caught.value).why == "any real card would say the same"


def test_other_layouts_are_refused_in_a_sentence():
    with pretend.gpu("a100-80gb"):
        dense = torch.ones(4, 4, device="cuda")
        for make in (dense.to_sparse, dense.to_sparse_csr):
            with pytest.raises(NotImplementedError, match="is not simulated: of sparse tensors"):
                make()
