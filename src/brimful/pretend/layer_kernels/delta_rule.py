"""Parts that the gated delta rule and Kimi's share, and the first of them.

Followed: flash-linear-attention (fla-core) 0.6.0, ``ops/gated_delta_rule/chunk.py``,
``chunk_fwd.py`` and ``wy_fast.py``, ``ops/common/chunk_delta_h.py`` and ``chunk_o.py``,
``modules/norm/l2norm.py``. FLOPs are those of each kernel's ``tl.dot``, for a chunk of ``CHUNK``
tokens; of what solves a chunk's triangle none (2 % of the others).

Shapes: B batch, T tokens, H heads of queries and keys, HV of values, K and V their widths.
"""

from typing import Any

import torch

from brimful.errors import UnsupportedError
from brimful.pretend.layer_kernels.base import (
    Launch,
    as_backward,
    as_forward,
    dense,
    num_chunks,
)

CHUNK = 64
_SOLVED = 10 / 16
"""Of a chunk's square, the blocks on and below its diagonal that a kernel computes."""


class Sizes:
    """Sizes of a call, as its tensors have them, and FLOPs of a token in all heads of values."""

    def __init__(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Read them off keys and values."""
        self.B, self.T, self.H, self.K = k.shape
        self.HV, self.V = v.shape[2:]

    @property
    def states(self) -> tuple[int, ...]:
        """Return the shape of the states that chunks begin with."""
        return self.B, num_chunks(self.T, CHUNK), self.HV, self.K, self.V

    def flops(self, *, keys: float = 0, values: float = 0, both: float = 0) -> int:
        """Return FLOPs of products of chunks with keys and with values, and with states."""
        widths = CHUNK * (keys * self.K + values * self.V) + both * self.K * self.V
        return int(2 * self.B * self.T * self.HV * widths)


def check_plain(told: dict[str, Any], usual: dict[str, Any]) -> None:
    """Refuse what of a function was not followed."""
    for name, value in told.items():
        if name in usual and value is not usual[name] and value != usual[name]:
            raise UnsupportedError(
                f"flash-linear-attention with {name}={value} is not stood in for; install it"
            )


def l2norm(launch: Launch, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``l2norm_fwd``: a tensor of unit rows, and one number for each of them."""
    y = torch.empty_like(x)
    rstd = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    launch("l2norm_fwd_kernel", 0, x, y, rstd)
    return y, rstd


def l2norm_backward(
    launch: Launch, y: torch.Tensor, rstd: torch.Tensor, dy: torch.Tensor
) -> torch.Tensor:
    """Return ``l2norm_bwd``."""
    dx = torch.empty_like(y)
    launch("l2norm_bwd_kernel", 0, y, rstd, dy, dx)
    return dx


def cumsum(launch: Launch, g: torch.Tensor) -> torch.Tensor:
    """Return ``chunk_local_cumsum``, in fp32."""
    out = torch.empty_like(g, dtype=torch.float32)
    launch("chunk_local_cumsum_kernel", 0, g, out)
    return out


def states(
    launch: Launch, size: Sizes, keys: torch.Tensor, w: torch.Tensor, u: torch.Tensor,
    g: torch.Tensor, *, final: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return ``chunk_gated_delta_rule_fwd_h``: states, new values and the last state."""
    h = keys.new_empty(size.states)
    last = keys.new_zeros(size.B, *size.states[2:], dtype=torch.float32) if final else None
    v_new = torch.empty_like(u)
    flops = size.flops(both=2)
    launch("chunk_gated_delta_rule_fwd_kernel_h", flops, keys, w, u, g, h, v_new, last)
    return h, v_new, last


def states_backward(
    launch: Launch, size: Sizes, q: torch.Tensor, keys: torch.Tensor, w: torch.Tensor,
    g: torch.Tensor, do: torch.Tensor, dv: torch.Tensor, h0: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:  # fmt: skip
    """Return ``chunk_gated_delta_rule_bwd_dhu``."""
    dh = q.new_empty(size.states)
    dh0 = None if h0 is None else torch.empty_like(h0, dtype=torch.float32)
    dv2 = torch.empty_like(dv)
    flops = size.flops(both=3)
    launch("chunk_gated_delta_rule_bwd_kernel_dhu", flops, q, keys, w, g, do, dv, dh, dv2)
    return dh, dh0, dv2


def summed_heads(x: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return gradients of keys that several heads of values share."""
    if x.shape[2] == num_heads:
        return x
    return x.view(*x.shape[:2], num_heads, -1, x.shape[-1]).sum(3)


def _wy(
    launch: Launch, size: Sizes, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor,
    a: torch.Tensor, g: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return ``recompute_w_u_fwd``."""
    w = k.new_empty(size.B, size.T, size.HV, size.K)
    u = torch.empty_like(v)
    launch("recompute_w_u_fwd_kernel", size.flops(keys=1, values=1), k, v, beta, a, g, w, u)
    return w, u


def _forward(
    launch: Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    beta: torch.Tensor, *, final: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Return ``chunk_gated_delta_rule_fwd``: the gates' sums, the output, triangles, a state."""
    size = Sizes(k, v)
    g = cumsum(launch, g)
    a = torch.zeros(size.B, size.T, size.HV, CHUNK, device=k.device, dtype=k.dtype)
    launch("chunk_gated_delta_rule_fwd_kkt_solve_kernel", size.flops(keys=_SOLVED), k, g, beta, a)
    w, u = _wy(launch, size, k, v, beta, a, g)
    h, v_new, last = states(launch, size, k, w, u, g, final=final)
    out = torch.empty_like(v_new)
    flops = size.flops(keys=1, values=1, both=1)
    launch("chunk_fwd_kernel_o", flops, q, k, v_new, h, g, out)
    return g, out, a, last


def _backward(
    launch: Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    beta: torch.Tensor, a: torch.Tensor, h0: torch.Tensor | None, do: torch.Tensor,
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``chunk_gated_delta_rule_bwd``: gradients of q, k, v, beta, g and the first state."""
    size = Sizes(k, v)
    w, u = _wy(launch, size, k, v, beta, a, g)
    h, v_new, _ = states(launch, size, k, w, u, g)
    dv = torch.empty_like(do)
    flops = size.flops(keys=1, values=1)
    launch("chunk_bwd_kernel_dv_local", flops, q, k, g, do, dv)
    dh, dh0, dv = states_backward(launch, size, q, k, w, g, do, dv, h0)
    dq, dk, dw, dg = _by_keys(launch, size, (q, k, v_new, w, g, h, dv, do, dh))
    dk2, dv, db, dg2 = _by_triangle(launch, size, (k, v, beta, g, a, dw, dv))
    dk.add_(dk2)
    dg.add_(dg2)
    dg = cumsum(launch, dg)
    return dq, dk, dv, db, dg, dh0


def _by_keys(launch: Launch, size: Sizes, given: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """Return ``chunk_bwd_dqkwg``, whose tiles are as wide as keys (Hopper: up to 128)."""
    q, k, _, w, g, *_ = given
    parts = num_chunks(size.K, 2 * CHUNK)
    dq = q.new_empty(size.B, size.T, size.HV, size.K)
    dk = k.new_empty(size.B, size.T, size.HV, size.K)
    dg = torch.empty(parts, *g.shape, dtype=torch.float32, device=g.device)
    dw = torch.empty_like(w)
    flops = size.flops(keys=3, values=parts, both=3)
    launch("chunk_bwd_kernel_dqkwg", flops, *given, dq, dk, dw, dg)
    dq = summed_heads(dq, size.H)
    dk = summed_heads(dk, size.H)
    return dq, dk, dw, dg.sum(0)


def _by_triangle(launch: Launch, size: Sizes, given: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """Return ``prepare_wy_repr_bwd``."""
    k, v, beta, g, *_ = given
    dk = k.new_empty(size.B, size.T, size.HV, size.K)
    dv, dg, db = torch.empty_like(v), torch.empty_like(g), torch.empty_like(beta)
    flops = size.flops(keys=5, values=2) + 4 * CHUNK * CHUNK * size.B * size.T * size.HV
    launch("prepare_wy_repr_bwd_kernel", flops, *given, dk, dv, db, dg)
    return summed_heads(dk, size.H), dv, db, dg


def chunk_gated_delta_rule_of(launch: Launch) -> Any:
    """Return ``chunk_gated_delta_rule``."""

    class ChunkGatedDeltaRuleFunction(torch.autograd.Function):  # type: ignore[misc]  # untyped
        @staticmethod
        @as_forward
        def forward(
            ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, h0: Any, final: Any, norm: Any
        ) -> Any:  # fmt: skip
            given = dense(q, k, v, g, beta, h0)  # held until the end, as by ``input_guard``
            q, k, v, g, beta, h0 = given
            q_rstd = k_rstd = None
            if norm:
                q, q_rstd = l2norm(launch, q)
                k, k_rstd = l2norm(launch, k)
            g, out, a, last = _forward(launch, q, k, v, g, beta, final=final)
            ctx.save_for_backward(q, q_rstd, k, k_rstd, v, g, beta, a, h0)
            ctx.gate_dtype = given[3].dtype
            return out.to(q.dtype), last

        @staticmethod
        @as_backward
        def backward(ctx: Any, do: Any, *_: Any) -> Any:
            (do,) = dense(do)
            q, q_rstd, k, k_rstd, v, g, beta, a, h0 = ctx.saved_tensors
            dq, dk, dv, db, dg, dh0 = _backward(launch, q, k, v, g, beta, a, h0, do)
            if q_rstd is not None:
                dq = l2norm_backward(launch, q, q_rstd, dq)
                dk = l2norm_backward(launch, k, k_rstd, dk)
            return dq.to(q), dk.to(k), dv.to(v), dg.to(g), db.to(beta), dh0, None, None

    def chunk_gated_delta_rule(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        scale: float | None = None,  # noqa: ARG001
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,  # noqa: FBT001, FBT002
        use_qk_l2norm_in_kernel: bool = False,  # noqa: FBT001, FBT002
        cu_seqlens: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        check_plain({"cu_seqlens": cu_seqlens, **kwargs}, _FOLLOWED)
        return ChunkGatedDeltaRuleFunction.apply(
            q, k, v, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel
        )

    return chunk_gated_delta_rule


_FOLLOWED = {
    "cu_seqlens": None, "use_gate_in_kernel": False, "use_beta_sigmoid_in_kernel": False,
    "state_v_first": False, "cp_context": None, "chunk_size": CHUNK,
}  # fmt: skip
"""What is passed where a function does what was followed."""
