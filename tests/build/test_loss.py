import pytest
import torch
from torch import nn
from torch.nn import functional

from brimful.build import phases
from brimful.build.batch import IGNORE_INDEX
from brimful.build.loss import CHUNK, TokenLoss

pytestmark = pytest.mark.torch

NUM_TOKENS, HIDDEN, VOCAB = 1024, 16, 48


def inputs():
    torch.manual_seed(0)
    head = nn.Linear(HIDDEN, VOCAB, bias=False)
    hidden = torch.randn(NUM_TOKENS, HIDDEN, requires_grad=True)
    labels = torch.randint(0, VOCAB, (NUM_TOKENS,))
    labels[::3] = IGNORE_INDEX
    return head, hidden, labels


def gradients(head, hidden, labels, *, num_chunks):
    head.weight.grad = hidden.grad = None
    loss = TokenLoss(head, num_chunks=num_chunks)(hidden, labels, 700)
    loss.backward()
    return loss.detach(), head.weight.grad, hidden.grad


def test_the_loss_is_a_sum_over_unmasked_tokens_divided_by_the_given_count():
    head, hidden, labels = inputs()
    loss, _, hidden_grad = gradients(head, hidden, labels, num_chunks=1)
    kept = labels != IGNORE_INDEX
    mean = functional.cross_entropy(head(hidden)[kept], labels[kept])
    assert loss.item() == pytest.approx(mean.item() * kept.sum().item() / 700, rel=1e-6)
    assert not hidden_grad[~kept].any()


@pytest.mark.few(only=["7", "3", "2", "600"])
@pytest.mark.parametrize("num_chunks", [2, 3, 7, 600, NUM_TOKENS])
def test_chunks_change_neither_loss_nor_gradients(num_chunks):
    head, hidden, labels = inputs()
    whole = gradients(head, hidden, labels, num_chunks=1)
    chunked = gradients(head, hidden, labels, num_chunks=num_chunks)
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_chunk_gradients_add_up_in_fp32_under_autocast():
    """Each chunk's gradient is bf16 by nature; their sum must not be."""
    head, hidden, labels = inputs()
    num_chunks = 64
    expected, coarse = torch.zeros(VOCAB, HIDDEN), torch.zeros(VOCAB, HIDDEN, dtype=torch.bfloat16)
    for x, y in zip(hidden.detach().chunk(num_chunks), labels.chunk(num_chunks), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            logits = functional.linear(x, head.weight).float()
            loss = functional.cross_entropy(logits, y, reduction="sum", ignore_index=IGNORE_INDEX)
        (grad,) = torch.autograd.grad(loss / 700, head.weight)
        expected += grad
        coarse += grad.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = TokenLoss(head, num_chunks=num_chunks)(hidden, labels, 700)
    loss.backward()
    scale = expected.abs().max()
    assert (head.weight.grad - expected).abs().max() < 1e-5 * scale
    assert (coarse - expected).abs().max() > 1e-3 * scale


def test_the_weight_cache_is_switched_on_again_after_the_chunks():
    head, hidden, labels = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        TokenLoss(head, num_chunks=4)(hidden, labels, 700)
        assert torch.is_autocast_cache_enabled()
    with pytest.raises(RuntimeError), torch.autocast("cpu", torch.bfloat16):
        TokenLoss(head, num_chunks=4)(hidden[:, 1:], labels, 700)
    assert torch.is_autocast_cache_enabled()


def test_logits_are_reduced_in_fp32_even_when_the_head_is_bf16():
    head, hidden, labels = inputs()
    loss = TokenLoss(head.bfloat16(), num_chunks=1)(hidden.bfloat16(), labels, 700)
    assert loss.dtype == torch.float32


def test_every_chunk_announces_itself_in_forward_and_again_in_backward():
    head, hidden, labels = inputs()
    seen = []
    with phases.listening(lambda name, begins, _: seen.append((name, begins))):
        loss = TokenLoss(head, num_chunks=3)(hidden, labels, 700)
        assert seen == [(CHUNK, True), (CHUNK, False)] * 3
        loss.backward()
    assert sum(begins for _, begins in seen) == 6
