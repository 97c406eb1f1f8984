"""What stands for Megatron's fused softmax kernels, which apex builds: extensions of three names.

Followed: apex of 2025, ``csrc/megatron/scaled_softmax_cuda.cu``, ``scaled_masked_softmax_cuda.cu``
and ``scaled_upper_triang_masked_softmax_cuda.cu``: one result of the scores' size forward; backward
in place of the gradient that came, but with a mask that is given, which takes a tensor more.
"""

from typing import Any

import torch

from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels

PLAIN, MASKED = "scaled_softmax_cuda", "scaled_masked_softmax_cuda"
TRIANGULAR = "scaled_upper_triang_masked_softmax_cuda"
EXTENSIONS = (PLAIN, MASKED, TRIANGULAR)
_WARP, _THREADS, _NARROW = 32, 128, 128


def modules(kernels: OtherKernels, known: KnownValues) -> dict[str, dict[str, Any]]:
    """Return what each of the extensions has, by its name."""

    def forward_of(name: str) -> Any:
        def forward(scores: torch.Tensor, *_mask_and_scale: Any) -> torch.Tensor:
            out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
            kernels.launch(f"{name}.forward", {"out": out}, known)
            return out

        return forward

    def backward_of(name: str) -> Any:
        def backward(grad: torch.Tensor, results: torch.Tensor, _scale: Any) -> torch.Tensor:
            grad, results = grad.contiguous(), results.contiguous()
            out = torch.empty_like(grad) if name == MASKED else grad
            kernels.launch(f"{name}.backward", {"out": out}, known)
            return out

        return backward

    return {
        name: {
            "forward": forward_of(name),
            "backward": backward_of(name),
            "get_batch_per_block": rows_per_block,
        }
        for name in EXTENSIONS
    }


def rows_per_block(_queries: int, keys: int, _batches: int, _heads: int) -> int:
    """Return how many rows of scores a block of threads takes: ``get_batch_per_block``.

    Source: ``csrc/megatron/scaled_masked_softmax.h``.
    """
    width: int = 1 << max(0, keys - 1).bit_length()
    warp = min(width, _WARP)
    return (_THREADS // warp) * (2 if width <= _NARROW else 1)
