"""A kernel of Triton's that is tuned at its first launch, with results that are kept on disk."""

# ruff: noqa: ANN001, ANN201, N803 - parameters of kernels are as Triton wants them

import sys

import torch
import triton
import triton.language as tl

ELEMENTS = int(sys.argv[1])


@triton.autotune(
    configs=[triton.Config({"BLOCK": size}) for size in (128, 256, 512)],
    key=["n"],
    restore_value=["y_ptr"],
    cache_results=True,
)
@triton.heuristics({"EVEN": lambda named: named["n"] % named["BLOCK"] == 0})
@triton.jit
def double(x_ptr, y_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    """Add twice the input to the result."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = None if EVEN else places < n
    twice = 2 * tl.load(x_ptr + places, mask=mask)
    tl.store(y_ptr + places, tl.load(y_ptr + places, mask=mask) + twice, mask=mask)


x = torch.randn(ELEMENTS, device="cuda")
y = torch.zeros_like(x)
for _ in range(3):
    double[lambda meta: (triton.cdiv(ELEMENTS, meta["BLOCK"]),)](x, y, ELEMENTS)
