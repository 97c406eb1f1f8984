"""What stands for causal-conv1d: a short convolution over each channel, with its activation.

Followed: causal-conv1d 1.6.1, ``causal_conv1d/causal_conv1d_interface.py``, ``cpp_functions.py``
and ``csrc/causal_conv1d.cpp``, where reductions may come in any order. It saves its input for
backward, and nothing between convolution and activation.

Shapes: B batch, D channels, T tokens, W width.
"""

from typing import Any

import torch

from brimful.pretend.layer_kernels.base import Launch, Modules, package

VERSION = "1.6.1"
WORDS = f"causal-conv1d {VERSION}, by what its functions allocate (causal_conv1d_interface.py)"


def has_gaps(x: torch.Tensor) -> bool:
    """Whether neither tokens nor channels of a tensor lie beside one another."""
    return bool(x.stride(2) != 1 and x.stride(1) != 1)


def convolve(
    launch: Launch, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return ``causal_conv1d_fwd_function``."""
    out = torch.empty_like(x)
    launch("causal_conv1d_fwd", 0, x, weight, bias, out)
    return out


def convolve_backward(
    launch: Launch, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
    dout: torch.Tensor, dx: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return ``causal_conv1d_bwd_function``; ``dout`` is copied where it lies otherwise than x."""
    dx = torch.empty_like(x) if dx is None else dx
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    is_channel_last = x.stride(1) == 1 and x.stride(2) > 1
    if not is_channel_last and dout.stride(2) != 1:
        dout = dout.contiguous()
    elif is_channel_last and dout.stride(1) != 1:
        dout = dout.transpose(-1, -2).contiguous().transpose(-1, -2)
    launch("causal_conv1d_bwd", 0, x, weight, bias, dout, dx, dweight, dbias)
    return dx, dweight, dbias


def modules(launch: Launch) -> Modules:
    """Return what its modules have."""

    class CausalConv1dFn(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any, bias: Any, state: Any, last: Any) -> Any:
            x = x.contiguous() if has_gaps(x) else x
            bias = None if bias is None else bias.contiguous()
            out = convolve(launch, x, weight, bias)
            ctx.save_for_backward(x, weight, bias, state)
            return out if last is None else (out, last)

        @staticmethod
        def backward(ctx: Any, dout: Any, *_: Any) -> Any:
            x, weight, bias, _state = ctx.saved_tensors
            dout = dout.contiguous() if has_gaps(dout) else dout
            dx, dweight, dbias = convolve_backward(launch, x, weight, bias, dout)
            return dx, dweight, dbias, None, None

    def causal_conv1d_fn(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None,  # noqa: ARG001 - which tells rows apart, and is kept
        initial_states: torch.Tensor | None = None,
        return_final_states: bool = False,  # noqa: FBT001, FBT002
        final_states_out: torch.Tensor | None = None,
        activation: str | None = None,  # noqa: ARG001
    ) -> Any:
        last = final_states_out
        if return_final_states and last is None:
            last = x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[1]).transpose(1, 2)
        return CausalConv1dFn.apply(x, weight, bias, initial_states, last)

    def causal_conv1d_update(
        x: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,  # noqa: ARG001
        cache_seqlens: torch.Tensor | None = None,  # noqa: ARG001
        conv_state_indices: torch.Tensor | None = None,  # noqa: ARG001
    ) -> torch.Tensor:
        out = torch.empty_like(x)
        launch("causal_conv1d_update", 0, x, conv_state, weight, bias, out)
        return out

    functions = {
        "causal_conv1d_fn": causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d_update,
    }
    return {"causal_conv1d": functions, "causal_conv1d.causal_conv1d_interface": functions}


stand_in = package(VERSION, WORDS, modules)
