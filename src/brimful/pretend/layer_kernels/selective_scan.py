"""Mamba's selective scan, alone and with everything around it in one function.

Followed: mamba-ssm 2.3.2.post1, ``mamba_ssm/ops/selective_scan_interface.py`` and
``csrc/selective_scan/selective_scan.cpp``, with gates, and keys that every token has of its own.
The scan itself has no products: what its exponentials take beside what it moves is not counted.

Shapes: B batch, D channels, T tokens, N states, R rank of the steps.
"""

from typing import Any

import torch
from torch.nn.functional import linear

from brimful.pretend.device import NAME
from brimful.pretend.layer_kernels.base import Launch, as_backward, as_forward, num_chunks
from brimful.pretend.layer_kernels.causal_conv1d import convolve, convolve_backward

_CHUNK = 2048


def _scan(launch: Launch, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``selective_scan_cuda.fwd``: the output, states between chunks, and it gated."""
    u, delta, a, b, c, d, z, bias = given
    gated = None if z is None else torch.empty_like(z)
    out = torch.empty_like(delta)
    batch, channels, tokens = u.shape
    shape = batch, channels, num_chunks(tokens, _CHUNK), 2 * a.shape[1]
    x = torch.empty(shape, dtype=a.dtype, device=u.device)
    launch("selective_scan_fwd", 0, u, delta, a, b, c, d, z, bias, out, x, gated)
    return out, x, gated


def _scan_backward(
    launch: Launch, given: tuple[Any, ...], dout: torch.Tensor, dz: torch.Tensor | None,
    *, again: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``selective_scan_cuda.bwd``: gradients of what was given, and the gated output."""
    u, delta, a, b, c, d, z, bias, _, out = given
    dz = torch.empty_like(z) if dz is None and z is not None else dz
    gated = torch.empty_like(out) if again else None
    du, ddelta, da = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)
    db, dc = (torch.zeros_like(each, dtype=torch.float32) for each in (b, c))
    dd = None if d is None else torch.zeros_like(d)
    dbias = None if bias is None else torch.zeros_like(bias)
    launch("selective_scan_bwd", 0, *given, dout, du, ddelta, da, db, dc, dz, gated)
    return du, ddelta, da, db.to(b.dtype), dc.to(c.dtype), dd, dz, dbias, gated


def selective_scan_of(launch: Launch) -> Any:
    """Return ``selective_scan_fn``."""

    class SelectiveScanFn(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped
        @staticmethod
        def forward(ctx: Any, last: Any, *given: Any) -> Any:
            u, delta, a, b, c, d, z, bias = given
            u, delta, b, c, z = (
                x if x is None or x.stride(-1) == 1 else x.contiguous()
                for x in (u, delta, b, c, z)
            )  # fmt: skip
            b, c = (x.unsqueeze(1) if x.dim() == 3 else x for x in (b, c))  # noqa: PLR2004
            ctx.is_squeezed = given[3].dim() == 3  # noqa: PLR2004
            told = (u, delta, a, b, c, d, z, bias)
            out, x, gated = _scan(launch, told)
            ctx.save_for_backward(*told, x, None if z is None else out)
            shown = out if z is None else gated
            return (shown, x[:, :, -1, 1::2]) if last else shown

        @staticmethod
        def backward(ctx: Any, dout: Any, *_: Any) -> Any:
            dout = dout if dout.stride(-1) == 1 else dout.contiguous()
            found = _scan_backward(launch, ctx.saved_tensors, dout, None, again=False)
            du, ddelta, da, db, dc, dd, dz, dbias, _gated = found
            if ctx.is_squeezed:
                db, dc = db.squeeze(1), dc.squeeze(1)
            return None, du, ddelta, da, db, dc, dd, dz, dbias

    def selective_scan_fn(
        u: torch.Tensor, delta: torch.Tensor, A: torch.Tensor,  # noqa: N803
        B: torch.Tensor, C: torch.Tensor, D: torch.Tensor | None = None,  # noqa: N803
        z: torch.Tensor | None = None, delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False, return_last_state: bool = False,  # noqa: ARG001, FBT001, FBT002
    ) -> Any:  # fmt: skip
        return SelectiveScanFn.apply(return_last_state, u, delta, A, B, C, D, z, delta_bias)

    return selective_scan_fn


def _normed(launch: Launch, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return ``rms_norm_forward`` of [B, ..., D, T] in rows of tokens, and back."""
    if weight is None:
        return x
    tokens = x.shape[-1]
    rows = x.flatten(0, -3).transpose(1, 2).flatten(0, 1).contiguous()
    out = torch.empty_like(rows)
    rstd = rows.new_empty(rows.shape[0], dtype=torch.float32)
    launch("_layer_norm_fwd_1pass_kernel", 0, rows, weight, out, rstd)
    return out.unflatten(0, (-1, tokens)).transpose(1, 2).reshape(x.shape).contiguous()


def inner_of(launch: Launch) -> Any:
    """Return ``mamba_inner_fn``."""

    class MambaInnerFn(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped
        @staticmethod
        @as_forward
        def forward(ctx: Any, norms: Any, *given: Any) -> Any:
            xz, conv_weight, conv_bias, x_proj, dt_proj, head, head_bias, a, d, bias = given
            if torch.is_autocast_enabled(NAME):
                dtype = torch.get_autocast_dtype(NAME)
                x_proj, dt_proj, head = x_proj.to(dtype), dt_proj.to(dtype), head.to(dtype)
                head_bias = None if head_bias is None else head_bias.to(dtype)
            xz = xz if xz.stride(-1) == 1 else xz.contiguous()
            conv_weight = conv_weight.squeeze(1)
            x, z = xz.chunk(2, dim=1)
            convolved = convolve(launch, x, conv_weight, conv_bias)
            x_dbl = linear(convolved.transpose(1, 2).reshape(-1, convolved.shape[1]), x_proj)
            delta = _delta(dt_proj, x_dbl, xz)
            keys = [
                each.unflatten(0, (xz.shape[0], -1)).transpose(1, 2).unsqueeze(1).contiguous()
                for each in _keys(x_dbl, dt_proj.shape[1], a.shape[-1])
            ]
            b, c = (_normed(launch, key, weight) for key, weight in zip(keys, norms, strict=False))
            delta = _normed(launch, delta, norms[2])
            out, states, gated = _scan(launch, (convolved, delta, a, b, c, d, z, bias))
            ctx.norms = norms
            ctx.save_for_backward(
                xz, conv_weight, conv_bias, x_dbl, x_proj, dt_proj, head, head_bias, a, b, c, d,
                bias, states, out,
            )  # fmt: skip
            return linear(gated.transpose(1, 2), head, head_bias)

        @staticmethod
        @as_backward
        def backward(ctx: Any, dout: Any) -> Any:
            return None, *_inner_backward(launch, ctx.saved_tensors, ctx.norms, dout)

    def mamba_inner_fn(
        xz: torch.Tensor, conv1d_weight: torch.Tensor, conv1d_bias: torch.Tensor | None,
        x_proj_weight: torch.Tensor, delta_proj_weight: torch.Tensor,
        out_proj_weight: torch.Tensor, out_proj_bias: torch.Tensor | None,
        A: torch.Tensor, B: None = None, C: None = None,  # noqa: ARG001, N803
        D: torch.Tensor | None = None, delta_bias: torch.Tensor | None = None,  # noqa: N803
        B_proj_bias: None = None, C_proj_bias: None = None,  # noqa: ARG001, N803
        delta_softplus: bool = True, checkpoint_lvl: int = 1,  # noqa: ARG001, FBT001, FBT002
        b_rms_weight: torch.Tensor | None = None, c_rms_weight: torch.Tensor | None = None,
        dt_rms_weight: torch.Tensor | None = None, b_c_dt_rms_eps: float = 1e-6,  # noqa: ARG001
    ) -> Any:  # fmt: skip
        return MambaInnerFn.apply(
            (b_rms_weight, c_rms_weight, dt_rms_weight), xz, conv1d_weight, conv1d_bias,
            x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, D, delta_bias,
        )  # fmt: skip

    return mamba_inner_fn


def _delta(dt_proj: torch.Tensor, x_dbl: torch.Tensor, xz: torch.Tensor) -> torch.Tensor:
    """Return the steps, [B, D, T], whose channels lie apart the most."""
    product = dt_proj @ x_dbl[:, : dt_proj.shape[1]].t()
    return product.unflatten(1, (xz.shape[0], xz.shape[-1])).transpose(0, 1)


def _keys(x_dbl: torch.Tensor, rank: int, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what states are written and read by."""
    return x_dbl[:, rank : rank + num], x_dbl[:, -num:]


def _inner_backward(
    launch: Launch, saved: tuple[Any, ...], norms: tuple[Any, ...], dout: torch.Tensor
) -> tuple[Any, ...]:
    """Return ``MambaInnerFn.backward``, which convolves and makes the steps again."""
    (xz, conv_weight, conv_bias, x_dbl, x_proj, dt_proj, head, head_bias, a, b, c, d, bias,
     states, out) = saved  # fmt: skip
    rank, num, batch = dt_proj.shape[1], a.shape[-1], xz.shape[0]
    x, z = xz.chunk(2, dim=1)
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    convolved = convolve(launch, x, conv_weight, conv_bias)
    delta = _normed(launch, _delta(dt_proj, x_dbl, xz), norms[2])
    b, c = _normed(launch, b, norms[0]), _normed(launch, c, norms[1])
    dxz = torch.empty_like(xz)
    dx, dz = dxz.chunk(2, dim=1)
    dout = dout.permute(2, 0, 1).flatten(1)
    dout_y = (head.t() @ dout).unflatten(1, (batch, -1)).transpose(0, 1)
    given = (convolved, delta, a, b, c, d, z, bias, states, out)
    found = _scan_backward(launch, given, dout_y, dz, again=True)
    dconvolved, ddelta, da, db, dc, dd, _, dbias, gated = found
    dhead = torch.einsum("eB,dB->ed", dout, gated.transpose(0, 1).flatten(1))
    dhead_bias = None if head_bias is None else dout.sum(dim=(0, 1))
    dx_dbl = torch.empty_like(x_dbl)
    for own, key in zip(_keys(dx_dbl, rank, num), (db, dc), strict=True):
        own.copy_(key.squeeze(1).transpose(1, 2).flatten(0, 1).contiguous())
    ddelta = ddelta.transpose(0, 1).flatten(1)
    ddt_proj = torch.einsum("dB,Br->dr", ddelta, x_dbl[:, :rank])
    dx_dbl[:, :rank] = torch.einsum("dB,dr->Br", ddelta, dt_proj)
    dconvolved = dconvolved.transpose(0, 1).flatten(1)
    rows = convolved.transpose(1, 2).reshape(-1, convolved.shape[1])
    dx_proj = torch.einsum("Br,Bd->rd", dx_dbl, rows)
    dconvolved = torch.addmm(dconvolved, x_proj.t(), dx_dbl.t(), out=dconvolved)
    dconvolved = dconvolved.unflatten(1, (batch, -1)).transpose(0, 1)
    _, dweight, dconv_bias = convolve_backward(
        launch, x, conv_weight, conv_bias, dconvolved, dx
    )  # fmt: skip
    return (
        dxz, dweight.unsqueeze(1), dconv_bias, dx_proj, ddt_proj, dhead, dhead_bias, da, dd, dbias
    )  # fmt: skip
