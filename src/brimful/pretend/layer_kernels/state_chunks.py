"""Mamba 2's scan in chunks, alone and with everything around it in one function.

Followed: mamba-ssm 2.3.2.post1, ``mamba_ssm/ops/triton/ssd_combined.py``, ``ssd_chunk_state.py``,
``ssd_chunk_scan.py``, ``ssd_state_passing.py``, ``ssd_bmm.py`` and ``layernorm_gated.py``, with
reductions in any order and no layer beside the scan. With fewer chunks than a card has
multiprocessors a few kernels split groups of heads: their sums in fp32 are then some times as
large, and here never are. FLOPs are those of each kernel's ``tl.dot``; of what is causal in a chunk
half of its square.

Shapes: B batch, T tokens, C chunks of L tokens, H heads of P numbers, G groups of them, N states.
"""

import math
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from brimful.pretend import kernels
from brimful.pretend.device import NAME
from brimful.pretend.layer_kernels.base import Launch, as_backward, as_forward, num_chunks
from brimful.pretend.layer_kernels.causal_conv1d import convolve, convolve_backward

_TILE, _STATE_TILE = 32, 64
"""The smallest tiles that an autotuner may choose: rows of a chunk, and numbers of a state."""
_ROWS_OF_A_WARP = 4
"""Warps that a multiprocessor is to have of the norm's backward kernel."""


class Scan(NamedTuple):
    """What a scan is given.

    Attributes:
        x: [B, T, H, P].
        dt: [B, T, H].
        a: [H].
        b: [B, T, G, N].
        c: The same.
        d: [H] or [H, P]; None: none.
        z: As ``x``; None: it is not gated here.
        bias: Of ``dt``, [H]; None: none.
        first: The state to begin with; None: zeros.
        size: Tokens of a chunk.
    """

    x: torch.Tensor
    dt: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    d: torch.Tensor | None
    z: torch.Tensor | None
    bias: torch.Tensor | None
    first: torch.Tensor | None
    size: int

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Return [B, H, C, L]."""
        batch, tokens, heads, _ = self.x.shape
        return batch, heads, num_chunks(tokens, self.size), self.size

    @property
    def states(self) -> tuple[int, ...]:
        """Return [B, C, H, P, N]."""
        batch, heads, chunks, _ = self.steps
        return batch, chunks, heads, self.x.shape[3], self.b.shape[3]

    @property
    def squares(self) -> tuple[int, ...]:
        """Return [B, C, G, L, L]."""
        return self.steps[0], self.steps[2], self.b.shape[2], self.size, self.size

    def flops(self, *, states: int = 0, causal: int = 0, squares: int = 0) -> int:
        """Return FLOPs: of products with states, of causal ones in chunks, of whole squares."""
        of_states = states * 2 * self.size * math.prod(self.states)
        in_chunks = causal * math.prod(self.steps) * self.size * self.x.shape[3]
        in_squares = squares * 2 * math.prod(self.squares) * self.b.shape[3]
        return int(of_states + in_chunks + in_squares)

    def wide(self, *shape: int) -> torch.Tensor:
        """Return room for numbers in fp32."""
        return torch.empty(shape, dtype=torch.float32, device=self.x.device)


def _steps(launch: Launch, scan: Scan, dt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``_chunk_cumsum_fwd``: what decays by each token, and steps."""
    out, decay = scan.wide(*scan.steps), scan.wide(*scan.steps)
    launch("_chunk_cumsum_fwd_kernel", 0, dt, scan.a, scan.bias, out, decay)
    return decay, out


def _states(
    launch: Launch, scan: Scan, dt: torch.Tensor, decay: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return ``_chunk_state_fwd`` and ``_state_passing_fwd``: states that chunks begin with."""
    own = scan.wide(*scan.states)
    launch("_chunk_state_fwd_kernel", scan.flops(states=1), scan.b, scan.x, dt, decay, own)
    batch, chunks, heads, *sizes = scan.states
    passed = own.new_empty(batch, chunks, heads, math.prod(sizes), dtype=dtype)
    last = scan.wide(batch, heads, math.prod(sizes))
    launch("_state_passing_fwd_kernel", 0, own, decay, scan.first, passed, last)
    return passed.unflatten(-1, sizes)


def _squares(launch: Launch, scan: Scan) -> torch.Tensor:
    """Return ``_bmm_chunk_fwd``."""
    cb = scan.wide(*scan.squares)
    launch("_bmm_chunk_fwd_kernel", scan.flops(squares=1), scan.c, scan.b, cb)
    return cb


def scanned(launch: Launch, scan: Scan) -> tuple[torch.Tensor, ...]:
    """Return ``_mamba_chunk_scan_combined_fwd``; the first two are the output, gated and not."""
    decay, dt = _steps(launch, scan, scan.dt)
    states = _states(launch, scan, dt, decay, scan.c.dtype)
    cb = _squares(launch, scan)
    out = scan.x.new_empty(scan.x.shape)
    plain = out if scan.z is None else torch.empty_like(out)
    given = (cb, scan.x, scan.z, dt, decay, scan.c, states, scan.d)
    beside = None if scan.z is None else plain
    launch("_chunk_scan_fwd_kernel", scan.flops(states=1, causal=1), *given, out, beside)
    return out, plain, dt, decay, states


class Given(NamedTuple):
    """Where gradients are to be written; None: they are made."""

    dx: torch.Tensor | None = None
    ddt: torch.Tensor | None = None
    db: torch.Tensor | None = None
    dc: torch.Tensor | None = None
    dz: torch.Tensor | None = None


def scanned_backward(
    launch: Launch, scan: Scan, out: torch.Tensor, dout: torch.Tensor, given: Given,
    *, again: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``_mamba_chunk_scan_combined_bwd``: of x, dt, a, b, c, d, z, bias, and the output.

    ``again``: whether the gated output is computed once more.
    """
    dout = dout.contiguous() if dout.stride(-1) != 1 else dout
    db = torch.empty_like(scan.b) if given.db is None else given.db
    dc = torch.empty_like(scan.c) if given.dc is None else given.dc
    ddt_given = torch.empty_like(scan.dt) if given.ddt is None else given.ddt
    dt_in = scan.dt.clone()
    decay, dt = _steps(launch, scan, dt_in)
    cb = _squares(launch, scan)
    states = _states(launch, scan, dt, decay, torch.float32)
    dz = dd = None
    if scan.z is not None:
        dz, dout, dd, out = _ungated(launch, scan, out, dout, given.dz, again=again)
    dstates = scan.wide(*scan.states)
    flops = scan.flops(states=1)
    launch("_chunk_scan_bwd_dstates_kernel", flops, scan.c, decay, dout, dstates)
    dstates, dpassed, states = _passed_back(launch, scan, states, dstates, decay)
    dx, ddt, dd_of_x = _of_inputs(launch, scan, (dt, decay, cb, dout, dstates), given.dx)
    wide_db, later = _of_keys(launch, scan, "_chunk_state_bwd_db_kernel", (dt, decay, dstates))
    torch.cumsum(later, dim=-1, out=later)
    wide_dc, earlier = _of_keys(launch, scan, "_chunk_scan_bwd_dc_kernel", (states, decay, dout))
    dcb = scan.wide(*scan.squares[:2], 1, *scan.squares[2:])
    launch("_chunk_scan_bwd_dcb_kernel", scan.flops(causal=1), scan.x, dout, dt, decay, dcb)
    dcb = dcb.sum(2)
    for of, keys, beside in ((db, scan.c, wide_db), (dc, scan.b, wide_dc)):
        launch("_bmm_chunk_bwd_kernel", scan.flops(squares=1), keys, dcb, beside, of)
    earlier[..., -1] += dpassed
    earlier = earlier.flip([-1]).cumsum(dim=-1).flip([-1])
    da_steps = _of_decay(launch, scan, (dt, decay, dout, cb))
    da_steps += later + earlier
    dbias = None if scan.bias is None else torch.empty_like(scan.bias, dtype=torch.float32)
    da = torch.empty_like(scan.a, dtype=torch.float32)
    launch("_chunk_cumsum_bwd_kernel", 0, da_steps, ddt, dt_in, ddt_given, da, dbias)
    return dx, ddt_given, da, db, dc, dd_of_x if scan.z is None else dd, dz, dbias, out


def _ungated(
    launch: Launch, scan: Scan, out: torch.Tensor, dout: torch.Tensor, dz: torch.Tensor | None,
    *, again: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """Return ``_chunk_scan_bwd_dz``."""
    assert scan.z is not None
    dd = _skip(scan)
    dz = torch.empty_like(scan.z) if dz is None else dz
    gated = torch.empty_like(scan.x) if again else out
    inner = torch.empty_like(dout)
    launch("_chunk_scan_bwd_dz_kernel", 0, dout, out, scan.z, scan.x, dz, inner, dd)
    return dz, inner, _skip_summed(scan, dd), gated


def _skip(scan: Scan) -> torch.Tensor | None:
    """Return room for the sums of what goes past the scan."""
    if scan.d is None:
        return None
    batch, heads, chunks, size = scan.steps
    width = scan.d.shape[1] if scan.d.dim() == 2 else 1  # noqa: PLR2004
    return scan.wide(num_chunks(size, _TILE), batch, chunks, heads, width)


def _skip_summed(scan: Scan, dd: torch.Tensor | None) -> torch.Tensor | None:
    if scan.d is None or dd is None:
        return None
    return dd.sum(dim=(0, 1, 2)).view(scan.d.shape).to(dtype=scan.d.dtype)


def _passed_back(
    launch: Launch, scan: Scan, states: torch.Tensor, dstates: torch.Tensor, decay: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``_state_passing_bwd``: both in the type of ``x``, and what decays between chunks."""
    dtype = scan.x.dtype
    out = torch.empty_like(dstates, dtype=dtype)
    narrow = states if dtype == states.dtype else torch.empty_like(states, dtype=dtype)
    batch, chunks, heads, *sizes = scan.states
    parts = scan.wide(batch, heads, chunks, num_chunks(math.prod(sizes), _STATE_TILE))
    launch("_state_passing_bwd_kernel", 0, states, dstates, decay, out, narrow, parts)
    return out, parts.sum(dim=-1), narrow


def _of_inputs(
    launch: Launch, scan: Scan, given: tuple[torch.Tensor, ...], dx: torch.Tensor | None
) -> tuple[Any, ...]:
    """Return ``_chunk_scan_chunk_state_bwd_dx``."""
    dd = _skip(scan)
    dx = torch.empty_like(scan.x) if dx is None else dx
    ddt = scan.wide(*scan.steps)
    name = "_chunk_scan_chunk_state_bwd_dx_kernel"
    launch(name, scan.flops(states=1, causal=1), scan.x, scan.b, scan.d, *given, dx, ddt, dd)
    return dx, ddt, _skip_summed(scan, dd)


def _of_keys(
    launch: Launch, scan: Scan, name: str, given: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``_chunk_state_bwd_db`` or ``_chunk_scan_bwd_dC``, in fp32 and one split."""
    decays = scan.wide(*scan.steps)
    batch, tokens, groups, width = scan.b.shape
    out = scan.wide(batch, tokens, 1, groups, width)
    launch(name, scan.flops(states=1), scan.x, scan.b, *given, out, decays)
    return out.sum(2), decays


def _of_decay(launch: Launch, scan: Scan, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return ``_chunk_scan_bwd_ddAcs_stable``."""
    *ahead, size = scan.steps
    parts = scan.wide(*ahead, num_chunks(size, _TILE), size)
    name = "_chunk_scan_bwd_ddAcs_stable_kernel"
    launch(name, scan.flops(causal=1), scan.x, *given, parts)
    return parts.sum(dim=3)


def chunk_scan_of(launch: Launch) -> Any:
    """Return ``mamba_chunk_scan_combined``."""

    class MambaChunkScanCombinedFn(torch.autograd.Function):  # type: ignore[misc]  # untyped
        @staticmethod
        def forward(ctx: Any, final: Any, size: Any, *given: Any) -> Any:
            x, dt, a, b, c, d, z, bias, first = given
            b, c = (each.contiguous() if each.stride(-1) != 1 else each for each in (b, c))
            x = x.contiguous() if x.stride(-1) != 1 and x.stride(1) != 1 else x
            scan = Scan(x, dt, a, b, c, d, z, bias, first, size)
            out, plain, _, decay, states = scanned(launch, scan)
            ctx.save_for_backward(plain, x, dt, decay, a, b, c, d, z, bias, first)
            ctx.size = size
            return (out, states[:, -1].float()) if final else out

        @staticmethod
        def backward(ctx: Any, dout: Any, *_: Any) -> Any:
            out, x, dt, _decay, a, b, c, d, z, bias, first = ctx.saved_tensors
            scan = Scan(x, dt, a, b, c, d, z, bias, first, ctx.size)
            dx, ddt, da, db, dc, dd, dz, dbias, _ = scanned_backward(
                launch, scan, out, dout, Given()
            )
            return None, None, dx, ddt, da, db, dc, dd, dz, dbias, None

    def mamba_chunk_scan_combined(
        x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor,  # noqa: N803
        B: torch.Tensor, C: torch.Tensor, chunk_size: int,  # noqa: N803
        D: torch.Tensor | None = None, z: torch.Tensor | None = None,  # noqa: N803
        dt_bias: torch.Tensor | None = None, initial_states: torch.Tensor | None = None,
        seq_idx: torch.Tensor | None = None, cu_seqlens: torch.Tensor | None = None,  # noqa: ARG001
        dt_softplus: bool = False, dt_limit: Any = None,  # noqa: FBT001, FBT002, ARG001
        return_final_states: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:  # fmt: skip
        return MambaChunkScanCombinedFn.apply(
            return_final_states, chunk_size, x, dt, A, B, C, D, z, dt_bias, initial_states
        )

    return mamba_chunk_scan_combined


def _strided(x: torch.Tensor) -> torch.Tensor:
    """Return ``ensure_stride``."""
    return x if x.stride(1) % 8 == 0 else x.contiguous()


class _Layer(NamedTuple):
    """What the whole layer is given but its input, and its sizes."""

    weight: torch.Tensor
    conv_bias: torch.Tensor | None
    dt_bias: torch.Tensor
    a: torch.Tensor
    d: torch.Tensor
    norm: torch.Tensor | None
    head: torch.Tensor | None
    head_bias: torch.Tensor | None
    size: int
    width: int
    groups: int

    @property
    def sizes(self) -> list[int]:
        """Return how wide the gate, what is convolved, and the steps are."""
        return [self.d.shape[0] * self.width, self.weight.shape[0], self.d.shape[0]]

    def narrowed(self) -> Any:
        """Return it with its output layer as autocast has it."""
        if self.head is None or not torch.is_autocast_enabled(NAME):
            return self
        dtype = torch.get_autocast_dtype(NAME)
        bias = None if self.head_bias is None else self.head_bias.to(dtype)
        return self._replace(head=self.head.to(dtype), head_bias=bias)

    def convolved(self, launch: Launch, xbc: torch.Tensor) -> torch.Tensor:
        """Return what is scanned, beside what it is scanned by."""
        x = _strided(xbc).transpose(1, 2)
        return convolve(launch, x, self.weight, self.conv_bias).transpose(1, 2)

    def parts(self, xbc: torch.Tensor) -> list[torch.Tensor]:
        """Return x, b and c of a tensor, by heads and groups."""
        heads, dim = self.d.shape[0], self.sizes[0]
        rest = (self.weight.shape[0] - dim) // 2
        x, b, c = torch.split(xbc, [dim, rest, rest], dim=-1)
        groups = [each.unflatten(-1, (self.groups, -1)) for each in (b, c)]
        return [x.unflatten(-1, (heads, self.width)), *groups]

    def scan(self, z: torch.Tensor, xbc: torch.Tensor, dt: torch.Tensor) -> Scan:
        """Return what is scanned: gated there where no norm stands between."""
        x, b, c = self.parts(xbc)
        gate = z.unflatten(-1, (self.d.shape[0], self.width)) if self.norm is None else None
        return Scan(x, dt, self.a, b, c, self.d, gate, self.dt_bias, None, self.size)


def _normed(
    launch: Launch, layer: _Layer, x: torch.Tensor, z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``_layer_norm_fwd``."""
    assert layer.norm is not None
    rows = x.flatten(2).flatten(0, 1)
    out = torch.empty_like(rows)
    rstd = rows.new_empty(layer.groups * rows.shape[0], dtype=torch.float32)
    launch("_layer_norm_fwd_1pass_kernel", 0, rows, layer.norm, z, out, rstd)
    return out.view(*x.shape[:2], -1), rstd


def _normed_backward(
    launch: Launch, layer: _Layer, x: torch.Tensor, z: torch.Tensor, given: tuple[Any, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``_layer_norm_bwd``."""
    assert layer.norm is not None
    rows = x.flatten(2).flatten(0, 1)
    dx = torch.empty_like(rows)
    block = min(65536 // rows.element_size(), _power_of_two(rows.shape[1] // layer.groups))
    warps = min(max(block // 256, 1), 8)
    num = kernels.imitated().chip.num_multiprocessors * num_chunks(_ROWS_OF_A_WARP, warps)
    dw = rows.new_empty(num_chunks(num, layer.groups), rows.shape[1], dtype=torch.float32)
    launch("_layer_norm_bwd_kernel", 0, rows, layer.norm, z, *given, dx, dw)
    return dx.view(x.shape), dw.sum(0).to(layer.norm.dtype)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def split_scan_of(launch: Launch) -> Any:
    """Return ``mamba_split_conv1d_scan_combined``."""

    class MambaSplitConv1dScanCombinedFn(torch.autograd.Function):  # type: ignore[misc]  # untyped
        @staticmethod
        @as_forward
        def forward(ctx: Any, zxbcdt: Any, sizes: Any, *given: Any) -> Any:
            layer = _Layer(*given, *sizes)
            z, xbc, dt = torch.split(zxbcdt, layer.sizes, dim=-1)
            convolved = layer.convolved(launch, xbc)
            # The function's names hold what the scan made until it returns.
            out, plain, *_held = scanned(launch, layer.scan(z, convolved, dt))
            rstd = None
            if layer.norm is None:
                out = out.flatten(2)
            else:
                out, rstd = _normed(launch, layer, plain, z)
            if layer.head is not None:
                layer = layer.narrowed()
                out = linear(out.to(layer.head.dtype), layer.head, layer.head_bias)
            ctx.save_for_backward(zxbcdt, plain, rstd, *layer[: len(given)])
            ctx.sizes = sizes
            return out

        @staticmethod
        @as_backward
        def backward(ctx: Any, dout: Any) -> Any:
            zxbcdt, out, rstd, *given = ctx.saved_tensors
            return _split_backward(launch, (zxbcdt, out, rstd), _Layer(*given, *ctx.sizes), dout)

    def mamba_split_conv1d_scan_combined(
        zxbcdt: torch.Tensor, conv1d_weight: torch.Tensor, conv1d_bias: torch.Tensor | None,
        dt_bias: torch.Tensor, A: torch.Tensor, D: torch.Tensor, chunk_size: int,  # noqa: N803
        initial_states: torch.Tensor | None = None,  # noqa: ARG001
        seq_idx: torch.Tensor | None = None, dt_limit: Any = None,  # noqa: ARG001
        return_final_states: bool = False, activation: str = "silu",  # noqa: ARG001, FBT001, FBT002
        rmsnorm_weight: torch.Tensor | None = None, rmsnorm_eps: float = 1e-6,  # noqa: ARG001
        outproj_weight: torch.Tensor | None = None, outproj_bias: torch.Tensor | None = None,
        headdim: int | None = None, ngroups: int = 1,
        norm_before_gate: bool = True,  # noqa: ARG001, FBT001, FBT002
    ) -> Any:  # fmt: skip
        width = D.shape[1] if headdim is None else headdim
        return MambaSplitConv1dScanCombinedFn.apply(
            zxbcdt, (chunk_size, width, ngroups), conv1d_weight, conv1d_bias, dt_bias, A, D,
            rmsnorm_weight, outproj_weight, outproj_bias,
        )  # fmt: skip

    return mamba_split_conv1d_scan_combined


def _split_backward(
    launch: Launch, saved: tuple[torch.Tensor, ...], layer: _Layer, dout: torch.Tensor
) -> tuple[Any, ...]:
    """Return ``MambaSplitConv1dScanCombinedFn.backward``."""
    zxbcdt, out, rstd = saved
    again = layer.head is not None
    gated = torch.empty_like(out) if again else out
    z, xbc, dt = torch.split(zxbcdt, layer.sizes, dim=-1)
    scan = layer.scan(z, layer.convolved(launch, xbc), dt)
    dzxbcdt = torch.empty_like(zxbcdt)
    dz, dxbc_given, ddt = torch.split(dzxbcdt, layer.sizes, dim=-1)
    dxbc = torch.empty_like(xbc)
    dx, db, dc = layer.parts(dxbc)
    dout_og = dout
    if layer.head is not None:
        dout = linear(dout, layer.head.t())
    dnorm = None
    dout = dout.unflatten(-1, (-1, layer.width))
    if layer.norm is None:
        given = Given(dx, ddt, db, dc, dz.unflatten(-1, (-1, layer.width)))
    else:
        dout, dnorm = _normed_backward(launch, layer, out, z, (dout, rstd, dz, gated))
        given = Given(dx, ddt, db, dc)
    _, _, da, _, _, dd, _, dbias, other = scanned_backward(
        launch, scan, out, dout, given, again=again and layer.norm is None
    )
    dhead = dhead_bias = None
    if layer.head is not None:
        used = other if layer.norm is None else gated
        dhead = torch.einsum("bso,bsd->od", dout_og, used.flatten(2).to(dout_og.dtype))
        dhead_bias = None if layer.head_bias is None else dout_og.sum(dim=(0, 1))
    _, dweight, dconv_bias = convolve_backward(
        launch, _strided(xbc).transpose(1, 2), layer.weight, layer.conv_bias,
        _strided(dxbc).transpose(1, 2), _strided(dxbc_given).transpose(1, 2),
    )  # fmt: skip
    return dzxbcdt, None, dweight, dconv_bias, dbias, da, dd, dnorm, dhead, dhead_bias
