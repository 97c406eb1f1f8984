"""What stands for apex where Megatron calls it: its fused layer norm, and products that add up.

As remembered of apex of 2025, whose files were not read again: partial sums in 16 rows
(``HostLayerNormGradient`` of ``csrc/layer_norm_cuda_kernel.cu``), and a weight gradient
(``csrc/megatron/fused_weight_gradient_dense.cpp``) that writes into what it is given.
"""

from types import ModuleType
from typing import Any

import torch

from brimful.pretend import apex_softmax
from brimful.pretend.absent import StandIn
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels

VERSION = "0.1"
PACKAGE, PRODUCTS = "apex", "fused_weight_gradient_mlp_cuda"
WORDS = "apex's fused norms, softmax and weight gradients, by what they allocate (apex/csrc)"
_PARTS = 16


def stand_in(kernels: OtherKernels, known: KnownValues) -> StandIn:
    """Return the package."""

    class FusedLayerNormAffineFunction(torch.autograd.Function):  # type: ignore[misc]  # untyped
        @staticmethod
        def forward(  # noqa: PLR0913, PLR0917 - the signature is apex's
            ctx: Any,
            x: torch.Tensor,
            weight: torch.Tensor,
            bias: torch.Tensor,
            normalized_shape: Any,
            _eps: float,
            memory_efficient: Any = None,
        ) -> torch.Tensor:
            x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
            rows = x.numel() // torch.Size(normalized_shape).numel()
            out = torch.empty_like(x)
            mean = torch.empty(rows, dtype=torch.float32, device=x.device)
            invvar = torch.empty_like(mean)
            kernels.launch("fused_layer_norm_cuda.forward_affine", {}, known)
            kept = (out, weight, bias, None) if memory_efficient else (x, weight, bias, mean)
            ctx.save_for_backward(*kept, invvar)
            return out

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            x, weight, bias, _mean, _invvar = ctx.saved_tensors
            grad = grad.contiguous()
            out = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
            parts = torch.empty((2, _PARTS, weight.numel()), dtype=torch.float32, device=x.device)
            kernels.launch("fused_layer_norm_cuda.backward_affine", {}, known)
            del parts
            return *out, None, None, None

    def added(_x: torch.Tensor, _grad: torch.Tensor, into: torch.Tensor) -> None:
        kernels.launch(f"{PRODUCTS}.wgrad_gemm_accum", {"into": into}, known)

    named: dict[str, dict[str, Any]] = {
        PACKAGE: {},
        f"{PACKAGE}.normalization": {},
        f"{PACKAGE}.normalization.fused_layer_norm": {
            "FusedLayerNormAffineFunction": FusedLayerNormAffineFunction
        },
        PRODUCTS: {"wgrad_gemm_accum_fp32": added, "wgrad_gemm_accum_fp16": added},
        **apex_softmax.modules(kernels, known),
    }

    def fill(module: ModuleType) -> None:
        vars(module).update(named[module.__name__])

    return StandIn(VERSION, WORDS, fill, named.__contains__)
