"""Kimi's delta rule, whose gates are of each number of a key.

Followed: flash-linear-attention (fla-core) 0.6.0, ``ops/kda/chunk.py``, ``chunk_fwd.py``,
``chunk_bwd.py``, ``chunk_intra.py``, ``wy_fast.py``, ``gate.py`` and ``ops/gla/chunk.py``, as they
are called without what keeps more for backward (``disable_recompute``). Shapes as in
``delta_rule.py``.
"""

from typing import Any

import torch

from brimful.pretend.layer_kernels.base import Launch, as_backward, as_forward, dense, num_chunks
from brimful.pretend.layer_kernels.delta_rule import (
    CHUNK,
    Sizes,
    check_plain,
    cumsum,
    l2norm,
    l2norm_backward,
    states,
    states_backward,
    summed_heads,
)

_SUB = 16
"""Tokens of a block on a chunk's diagonal."""
_BELOW = 6 / 16
"""Of a chunk's square, the blocks below its diagonal: those on it are no products."""
_WIDEST = 32
"""Numbers of a key that a program of the backward kernel within chunks works on."""


def _wy(
    launch: Launch, size: Sizes, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor,
    a: torch.Tensor, g: torch.Tensor, q: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:  # fmt: skip
    """Return ``recompute_w_u_fwd``."""
    w = k.new_empty(size.B, size.T, size.HV, size.K)
    u = torch.empty_like(v)
    qg = None if q is None else torch.empty_like(w)
    kg = torch.empty_like(w)
    flops = size.flops(keys=1, values=1)
    launch("recompute_w_u_fwd_kda_kernel", flops, q, k, v, beta, a, g, w, u, qg, kg)
    return w, u, qg, kg


def _within(
    launch: Launch, size: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    g: torch.Tensor, beta: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return ``chunk_kda_fwd_intra``: w, u, keys with gates, and two squares of every chunk."""
    shape = size.B, size.T, size.HV
    aqk = k.new_empty(*shape, CHUNK)
    akk = torch.zeros(*shape, CHUNK, device=k.device, dtype=k.dtype)
    diagonal = torch.empty(*shape, _SUB, device=k.device, dtype=torch.float32)
    launch("chunk_kda_fwd_kernel_intra_token_parallel", 0, q, k, g, beta, aqk, diagonal)
    flops = size.flops(keys=2 * _BELOW)
    name = "chunk_kda_fwd_kernel_inter_solve_fused"
    launch(name, flops, q, k, g, beta, aqk, diagonal, akk)
    w, u, _, kg = _wy(launch, size, k, v, beta, akk, g)
    return w, u, kg, aqk, akk


def _gate(
    launch: Launch, g: torch.Tensor, a_log: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return ``kda_gate_chunk_cumsum``."""
    out = torch.empty_like(g, dtype=torch.float32)
    launch("kda_gate_chunk_cumsum_vector_kernel", 0, g, a_log, bias, out)
    return out


def _gate_backward(
    launch: Launch, g: torch.Tensor, a_log: torch.Tensor | None, bias: torch.Tensor | None,
    dyg: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """Return ``kda_gate_bwd``."""
    heads, width = g.shape[-2:]
    rows = num_chunks(g.numel() // (heads * width), 32)
    dg = torch.empty_like(g)
    da = None if a_log is None else g.new_empty(rows, heads, dtype=torch.float32)
    db = None if bias is None else g.new_empty(rows, heads * width, dtype=torch.float32)
    launch("kda_gate_bwd_kernel", 0, g, a_log, bias, dyg, dg, da, db)
    if a_log is not None and da is not None:
        da = da.sum(0).view_as(a_log).type_as(a_log)
    return dg, da, None if db is None or bias is None else db.sum(0).to(bias)


def _forward(
    launch: Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    beta: torch.Tensor, *, final: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``chunk_kda_fwd`` behind the gates: the output, a state, and two squares."""
    size = Sizes(k, v)
    w, u, kg, aqk, akk = _within(launch, size, q, k, v, g, beta)
    h, v_new, last = states(launch, size, kg, w, u, g, final=final)
    out = torch.zeros_like(v_new)
    launch("chunk_gla_fwd_kernel_o", size.flops(values=1, both=1), q, v_new, g, aqk, h, out)
    return out, last, aqk, akk


def _backward(
    launch: Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
    beta: torch.Tensor, squares: tuple[torch.Tensor, torch.Tensor], h0: torch.Tensor | None,
    do: torch.Tensor,
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``chunk_kda_bwd`` but for the gates: of q, k, v, beta, their sums and a state."""
    size, (aqk, akk) = Sizes(k, v), squares
    w, u, qg, kg = _wy(launch, size, k, v, beta, akk, g, q)
    h, v_new, _ = states(launch, size, kg, w, u, g)
    daqk = v.new_empty(size.B, size.T, size.HV, CHUNK, dtype=torch.float32)
    dv = torch.empty_like(do)
    launch("chunk_kda_bwd_kernel_dAv", size.flops(values=2), v_new, do, aqk, daqk, dv)
    assert qg is not None
    dh, dh0, dv = states_backward(launch, size, qg, kg, w, g, do, dv, h0)
    given = (q, k, v, v_new, g, beta, akk, h, do, dh, dv)
    dq, dk, dv, db, dg, dakk = _by_keys(launch, size, given)
    dq, dk, db, dg = _within_backward(launch, size, (q, k, g, beta, daqk, dakk, dq, dk, db, dg))
    dq = summed_heads(dq, size.H)
    dk = summed_heads(dk, size.H)
    dg = cumsum(launch, dg)
    return dq, dk, dv, db, dg, dh0


def _by_keys(launch: Launch, size: Sizes, given: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """Return ``chunk_kda_bwd_wy_dqkg_fused``."""
    _, _, v, _, g, beta, akk, *_ = given
    dq = g.new_empty(size.B, size.T, size.HV, size.K, dtype=torch.float32)
    dk = torch.empty_like(dq)
    dv = torch.empty_like(v)
    dg, db, da = (torch.empty_like(x, dtype=torch.float32) for x in (g, beta, akk))
    flops = size.flops(keys=2, values=2, both=3) + 4 * CHUNK * CHUNK * size.B * size.T * size.HV
    launch("chunk_kda_bwd_kernel_wy_dqkg_fused", flops, *given, dq, dk, dv, dg, db, da)
    return dq, dk, dv, db, dg, da


def _within_backward(
    launch: Launch, size: Sizes, given: tuple[torch.Tensor, ...]
) -> tuple[Any, ...]:
    """Return ``chunk_kda_bwd_intra``."""
    _, _, _, beta, _, _, dq, dk, db, dg = given
    dq2, dk2 = torch.empty_like(dq), torch.empty_like(dk)
    db2 = beta.new_empty(num_chunks(size.K, _WIDEST), *beta.shape, dtype=torch.float32)
    dg2 = torch.empty_like(dg, dtype=torch.float32)
    flops = size.flops(keys=4 * _BELOW)
    launch("chunk_kda_bwd_kernel_intra", flops, *given, dq2, dk2, db2, dg2)
    return dq2, dk2, db2.sum(0).add_(db), dg2


def _function(launch: Launch) -> Any:
    class ChunkKDAFunction(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped
        @staticmethod
        @as_forward
        def forward(
            ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, a_log: Any, bias: Any, h0: Any,
            final: Any, norm: Any, gates: Any,
        ) -> Any:  # fmt: skip
            given = dense(q, k, v, g, beta, a_log, bias, h0)  # held until the end
            q, k, v, g_input, beta, a_log, bias, h0 = given
            q_rstd = k_rstd = None
            if norm:
                q, q_rstd = l2norm(launch, q)
                k, k_rstd = l2norm(launch, k)
            g = _gate(launch, g_input, a_log, bias) if gates else cumsum(launch, g_input)
            out, last, aqk, akk = _forward(launch, q, k, v, g, beta, final=final)
            kept = None if gates else g
            ctx.save_for_backward(
                q, q_rstd, k, k_rstd, v, kept, g_input, beta, a_log, bias, aqk, akk, h0
            )
            return out.type_as(q), last

        @staticmethod
        @as_backward
        def backward(ctx: Any, do: Any, *_: Any) -> Any:
            (do,) = dense(do)
            q, q_rstd, k, k_rstd, v, g, g_input, beta, a_log, bias, *squares, h0 = ctx.saved_tensors
            has_gates = g is None
            g = _gate(launch, g_input, a_log, bias) if has_gates else g
            two = squares[0], squares[1]
            dq, dk, dv, db, dg, dh0 = _backward(launch, q, k, v, g, beta, two, h0, do)
            da = dbias = None
            if has_gates:
                dg, da, dbias = _gate_backward(launch, g_input, a_log, bias, dg)
            if q_rstd is not None:
                dq = l2norm_backward(launch, q, q_rstd, dq)
                dk = l2norm_backward(launch, k, k_rstd, dk)
            mine = dq.to(q), dk.to(k), dv.to(v), dg.to(g_input), db.to(beta)
            return *mine, da, dbias, dh0, None, None, None

    return ChunkKDAFunction


def chunk_kda_of(launch: Launch) -> Any:
    """Return ``chunk_kda``."""
    function = _function(launch)

    def chunk_kda(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        scale: float | None = None,  # noqa: ARG001
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,  # noqa: FBT001, FBT002
        use_qk_l2norm_in_kernel: bool = False,  # noqa: FBT001, FBT002
        use_gate_in_kernel: bool = False,  # noqa: FBT001, FBT002
        cu_seqlens: torch.Tensor | None = None,
        A_log: torch.Tensor | None = None,  # noqa: N803
        dt_bias: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        check_plain({"cu_seqlens": cu_seqlens, **kwargs}, _FOLLOWED)
        gates = (A_log, dt_bias) if use_gate_in_kernel else (None, None)
        return function.apply(
            q, k, v, g, beta, *gates, initial_state, output_final_state,
            use_qk_l2norm_in_kernel, use_gate_in_kernel,
        )  # fmt: skip

    return chunk_kda


_FOLLOWED = {
    "cu_seqlens": None, "use_beta_sigmoid_in_kernel": False, "state_v_first": False,
    "safe_gate": False, "disable_recompute": False, "cp_context": None, "use_graph": False,
    "chunk_size": CHUNK,
}  # fmt: skip
"""What is passed where the function does what was followed."""
