"""What stands for flash-linear-attention: the functions that classes of transformers ask for.

Followed: flash-linear-attention (fla-core) 0.6.0; beside ``delta_rule.py`` and ``kimi_delta.py``
``modules/norm/fused_norm_gate.py`` and the recurrent kernels, which write one token and have no
backward. Packed documents, context parallelism and the package's own layers are not there.
"""

from typing import Any

import torch
from torch import nn

from brimful.pretend import kernels
from brimful.pretend.layer_kernels.base import Launch, Modules, dense, package
from brimful.pretend.layer_kernels.delta_rule import chunk_gated_delta_rule_of
from brimful.pretend.layer_kernels.kimi_delta import chunk_kda_of

VERSION = "0.6.0"
WORDS = f"flash-linear-attention {VERSION}, by what its functions allocate (fla/ops)"


def _recurrent(launch: Launch, name: str) -> Any:
    """Return a function that writes token by token, with a state in fp32."""

    def call(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor | None = None,
        beta: torch.Tensor | None = None,
        scale: float | None = None,  # noqa: ARG001
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,  # noqa: FBT001, FBT002
        use_qk_l2norm_in_kernel: bool = False,  # noqa: ARG001, FBT001, FBT002
        **_kwargs: Any,
    ) -> Any:
        q, k, v, g, beta = dense(q, k, v, g, beta)
        out = torch.empty_like(v)
        shape = (v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
        last = q.new_empty(shape, dtype=torch.float32) if output_final_state else None
        launch(f"{name}_fwd_kernel", 0, q, k, v, g, beta, initial_state, out, last)
        return out, last

    call.__name__ = name
    return call


def _gated_norm(launch: Launch) -> type[Any]:
    """Return ``FusedRMSNormGated``."""

    class LayerNormGatedFunction(torch.autograd.Function):  # type: ignore[misc]  # untyped
        @staticmethod
        def forward(ctx: Any, x: Any, g: Any, weight: Any) -> Any:
            x, g, weight = dense(x, g, weight)
            shape = x.shape
            x, g = x.reshape(-1, shape[-1]), g.reshape(-1, shape[-1])
            y = torch.empty_like(x)
            rstd = torch.empty(x.shape[:1], dtype=torch.float32, device=x.device)
            launch("layer_norm_gated_fwd_kernel", 0, x, g, weight, y, rstd)
            ctx.save_for_backward(x, g, weight, rstd)
            return y.reshape(shape)

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x, g, weight, rstd = ctx.saved_tensors
            dy = dy.contiguous()
            dx, dg = torch.empty_like(x), torch.empty_like(g)
            rows = min(kernels.imitated().chip.num_multiprocessors, x.shape[0])
            dw = torch.empty(rows, x.shape[1], dtype=torch.float32, device=x.device)
            launch("layer_norm_gated_bwd_kernel", 0, x, g, weight, rstd, dy, dx, dg, dw)
            dw = dw.sum(0).to(weight.dtype)
            return dx.reshape(dy.shape), dg.reshape(dy.shape), dw

    class FusedRMSNormGated(nn.Module):  # type: ignore[misc]  # torch is untyped
        def __init__(
            self, hidden_size: int, *, eps: float = 1e-5, activation: str = "swish",
            device: Any = None, dtype: Any = None, **_how: Any,
        ) -> None:  # fmt: skip
            super().__init__()
            self.hidden_size, self.eps, self.activation = hidden_size, eps, activation
            self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))

        def forward(self, x: torch.Tensor, g: torch.Tensor) -> Any:
            return LayerNormGatedFunction.apply(x, g, self.weight)

    return FusedRMSNormGated


def modules(launch: Launch) -> Modules:
    """Return what its modules have."""
    delta, kimi = "gated_delta_rule", "kda"
    return {
        "fla": {},
        "fla.modules": {"FusedRMSNormGated": _gated_norm(launch)},
        "fla.ops": {},
        f"fla.ops.{delta}": {
            f"chunk_{delta}": chunk_gated_delta_rule_of(launch),
            f"fused_recurrent_{delta}": _recurrent(launch, f"fused_recurrent_{delta}"),
        },
        f"fla.ops.{kimi}": {
            f"chunk_{kimi}": chunk_kda_of(launch),
            f"fused_recurrent_{kimi}": _recurrent(launch, f"fused_recurrent_{kimi}"),
        },
    }


stand_in = package(VERSION, WORDS, modules)
