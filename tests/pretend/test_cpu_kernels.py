"""Operations that a CPU's kernel makes of others, or with memory of its own, against real runs."""

import functools

import pytest
import torch
from tests.pretend.real_peaks import measured
from torch import nn

from brimful import pretend

pytestmark = pytest.mark.torch

RELATIVE, LOOSE_BYTES = 0.001, 256
WIDTH = 64


def encoder(**how):
    layers = (
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, **how) for _ in "12"
    )
    return nn.Sequential(*layers)


def masked(device):
    model = nn.TransformerEncoderLayer(WIDTH, 4, batch_first=True).to(device).eval()
    padding = torch.zeros(4, 32, device=device)
    padding[:, -3:] = float("-inf")
    with torch.no_grad():
        model(torch.randn(4, 32, WIDTH, device=device), src_key_padding_mask=padding)


def attended(device, *, need_weights, own=True):
    model = nn.MultiheadAttention(WIDTH, 4, batch_first=True).to(device).eval()
    x = torch.randn(4, 64, WIDTH, device=device)
    other = x if own else x * 2
    with torch.no_grad():
        model(x, other, other, need_weights=need_weights)


def inferred(make, device, *, mode=torch.no_grad):
    model = make().to(device).eval()
    with mode():
        model(torch.randn(4, 64, WIDTH, device=device))


def bags(device, *, mode):
    model = nn.EmbeddingBag(512, WIDTH, mode=mode).to(device)
    ids = torch.zeros(1024, 4, dtype=torch.int64, device=device)
    model(ids).sum().backward()


PROGRAMS = {
    "encoder": functools.partial(inferred, encoder),
    "encoder, norms first": functools.partial(
        inferred, functools.partial(encoder, norm_first=True)
    ),
    "encoder, GELU": functools.partial(inferred, functools.partial(encoder, activation="gelu")),
    "encoder, inference": functools.partial(inferred, encoder, mode=torch.inference_mode),
    "encoder, padded": masked,
    "attention": functools.partial(attended, need_weights=False),
    "attention, weights": functools.partial(attended, need_weights=True),
    "attention, to another": functools.partial(attended, need_weights=False, own=False),
    "bags, sum": functools.partial(bags, mode="sum"),
    "bags, mean": functools.partial(bags, mode="mean"),
    "bags, max": functools.partial(bags, mode="max"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_takes_what_it_takes_for_real(name):
    program = PROGRAMS[name]
    with pretend.gpu(imitate="cpu", says_cuda=False) as run:
        program("gpu:0")
    assert not run.tape.unknown_ops
    real, _ = measured(program)
    assert run.peak_allocated_bytes == pytest.approx(real, rel=RELATIVE, abs=LOOSE_BYTES)


def test_a_kernel_that_nobody_has_read_makes_the_peak_a_bound():
    def program(device):
        x = torch.randn(128, WIDTH, device=device)
        nn.Bilinear(WIDTH, WIDTH, WIDTH).to(device)(x, x).sum().backward()

    with pretend.gpu(imitate="cpu", says_cuda=False) as run:
        program("gpu:0")
    assert run.peak_allocated_bytes < measured(program)[0]
    assert run.report().statement.startswith("peak at least ")
    assert "_trilinear" in run.report().statement


@pytest.mark.parametrize("name", ["encoder", "attention", "attention, weights"])
def test_the_fast_path_on_cuda_is_made_of_known_kernels(name):
    with pretend.gpu("a100-80gb", says_cuda=False) as run:
        PROGRAMS[name]("gpu:0")
    assert not any("multi_head" in op or "encoder" in op for op in run.tape.unknown_ops)
    assert run.peak_allocated_bytes > 2**18
