"""What stands for the flash-attn package: its functions, which allocate what its kernels do.

Followed: flash-attn 2.8.3, ``csrc/flash_attn/flash_api.cpp`` (``mha_fwd``, ``mha_varlen_fwd``,
``mha_bwd``, ``mha_varlen_bwd``, ``set_params_splitkv``), ``flash_attn/flash_attn_interface.py`` and
``flash_attn/bert_padding.py``. Attention with a cache of keys, which is not for training, and what
else the package has (rotary embeddings, fused losses, layers) are not there.

Shapes: B batch, M queries, H heads, K head dimension; packed sequences have no B and one M of all.
"""

import inspect
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from brimful.errors import UnsupportedError
from brimful.pretend import device
from brimful.pretend.absent import StandIn
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.workspace_attention import (
    FLASH_SPLIT_ROWS,
    FLASH_TOKENS,
    num_splits,
    rounded_head_dim,
)
from brimful.pretend.workspace_call import ceil_div, round_up

VERSION = "2.8.3"
PACKAGE = "flash_attn"
EXTENSION = "flash_attn_2_cuda"
WORDS = f"flash-attn {VERSION}, by what its kernels allocate (csrc/flash_attn/flash_api.cpp)"
_MULTIPLE = 8
"""Of the head dimension that kernels take; others are padded."""


class How(NamedTuple):
    """What a call is told beside tensors of queries, keys and values.

    Attributes:
        parts: How these come: ``q k v``, ``q kv`` or ``qkv``.
        offsets: Where sequences begin among the queries and among the keys; empty: nothing is
            packed.
        longest: The longest sequence of queries and of keys, of packed ones.
        dropout: The probability.
        deterministic: Whether backward adds up in a fixed order.
        wants_scores: Whether weights are returned, for tests.
    """

    parts: str
    offsets: tuple[torch.Tensor, ...]
    longest: tuple[int, int]
    dropout: float
    deterministic: bool
    wants_scores: bool

    @property
    def num_sequences(self) -> int:
        """Of packed ones."""
        return int(self.offsets[0].numel()) - 1


def _apart(given: tuple[torch.Tensor, ...], parts: str) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values."""
    if parts == "q k v":
        return given
    *first, together = given
    return (*first, *together.unbind(-3))


def _padded(x: torch.Tensor) -> torch.Tensor:
    extra = -x.shape[-1] % _MULTIPLE
    return pad(x, [0, extra]) if extra else x


def dense(x: torch.Tensor) -> torch.Tensor:
    """Return it, or a copy where its last dimension is not dense."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _split_keys(q: torch.Tensor, k: torch.Tensor, how: How) -> list[torch.Tensor]:
    """Partial results where few queries do not fill the card; ``set_params_splitkv``."""
    if how.offsets or how.dropout > 0:
        return []
    batch, queries, heads, head_dim = q.shape
    block = 256 if head_dim <= 64 else 128 if head_dim <= FLASH_TOKENS else 64  # noqa: PLR2004
    splits = num_splits(
        batch * heads * ceil_div(queries, FLASH_SPLIT_ROWS),
        device.card().multi_processor_count * 2,
        ceil_div(k.shape[1], block),
    )
    if splits == 1:
        return []
    rows = (splits, batch, heads, queries)
    return [_fp32(q, *rows), _fp32(q, *rows, rounded_head_dim(head_dim))]


def _fp32(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def kernel_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: How) -> tuple[Any, ...]:
    """Return output, logsumexp, weights and the state of random numbers; ``mha_fwd``."""
    q, k, v = map(dense, (q, k, v))
    out = torch.empty_like(q)
    heads = q.shape[-2]
    lse = _fp32(q, heads, q.shape[0]) if how.offsets else _fp32(q, q.shape[0], heads, q.shape[1])
    scores = torch.empty(0, dtype=q.dtype, device=q.device)
    if how.wants_scores and how.dropout > 0:
        batch = how.num_sequences if how.offsets else q.shape[0]
        longest = how.longest if how.offsets else (q.shape[1], k.shape[1])
        sides = (round_up(each, FLASH_TOKENS) for each in longest)
        scores = torch.empty((batch, heads, *sides), dtype=q.dtype, device=q.device)
    partial = _split_keys(q, k, how)
    del partial
    return out, lse, scores, torch.empty(2, dtype=torch.int64, device=q.device)


def kernel_backward(
    dout: torch.Tensor,
    saved: tuple[torch.Tensor, ...],
    gradients: tuple[torch.Tensor, ...],
    how: How,
) -> None:
    """Allocate what ``mha_bwd`` and ``mha_varlen_bwd`` do, and add up grouped heads."""
    dout, q, k, v, out = map(dense, (dout, *saved))
    heads, head_dim = q.shape[-2:]
    batch = how.num_sequences if how.offsets else q.shape[0]
    shape: tuple[int, ...]
    if how.offsets:
        rows = q.shape[0] + FLASH_TOKENS * batch
        shape, sums = (rows, heads), _fp32(q, heads, rows)
    else:
        rows = round_up(q.shape[1], FLASH_TOKENS)
        shape, sums = (batch, rows, heads), _fp32(q, batch, heads, rows)
    splits = ceil_div(device.card().multi_processor_count, batch * heads)
    each = (splits,) if how.deterministic else ()
    dq_sum = _fp32(q, *each, *shape, rounded_head_dim(head_dim))
    if k.shape[-2] != heads:
        group = heads // k.shape[-2]
        wide = (*k.shape[:-2], heads, head_dim)
        expanded = [torch.empty(wide, dtype=q.dtype, device=q.device) for _ in "kv"]
        for x, gradient in zip(expanded, gradients[1:], strict=True):
            torch.sum(x.view(*k.shape[:-1], group, head_dim), -2, out=gradient)
    del sums, dq_sum, v, out


def _gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: How) -> Any:
    """Return the gradients as the inputs came, and as queries, keys and values."""
    if how.parts == "q k v":
        apart = tuple(map(torch.empty_like, (q, k, v)))
        return apart, apart
    first = (torch.empty_like(q),) if how.parts == "q kv" else ()
    shape = (*k.shape[:-2], 2 if first else 3, *k.shape[-2:])
    together = (*first, torch.empty(shape, dtype=k.dtype, device=k.device))
    return together, _apart(together, how.parts)


def _function(kernels: OtherKernels, known: KnownValues) -> Any:
    class FlashAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped
        @staticmethod
        def forward(ctx: Any, how: How, *given: torch.Tensor) -> Any:
            q, k, v = map(_padded, _apart(given, how.parts))
            kernels.launch("flash_attn_2_cuda.fwd", (), known)
            out, lse, scores, state = kernel_forward(q, k, v, how)
            ctx.how = how
            ctx.save_for_backward(q, k, v, out, lse, *how.offsets, state)
            shown = out[..., : given[0].shape[-1]]
            return (shown, lse, scores) if how.wants_scores else shown

        @staticmethod
        def backward(ctx: Any, dout: torch.Tensor, *_: Any) -> Any:
            q, k, v, out, *_rest = ctx.saved_tensors
            gradients, apart = _gradients(q, k, v, ctx.how)
            kernels.launch("flash_attn_2_cuda.bwd", (), known)
            kernel_backward(_padded(dout), (q, k, v, out), apart, ctx.how)
            return None, *(x[..., : dout.shape[-1]] for x in gradients)

    return FlashAttention


def _not_alone(*_args: Any, **_kwargs: Any) -> Any:
    raise UnsupportedError(
        f"{EXTENSION} is called past its package, which is not simulated; call flash_attn"
    )


def stand_in(kernels: OtherKernels, known: KnownValues) -> StandIn:
    """Return the package.

    Args:
        kernels: Where launches are noted.
        known: What is known of values.
    """
    from brimful.pretend import flash_attn_parts

    parts = flash_attn_parts.functions(kernels, known)
    functions = {**_functions(_function(kernels, known)), **parts}
    named: dict[str, dict[str, Any]] = {
        PACKAGE: functions,
        f"{PACKAGE}.flash_attn_interface": functions,
        f"{PACKAGE}.bert_padding": _PADDING,
        EXTENSION: {"varlen_bwd": _not_alone},
    }

    def fill(module: ModuleType) -> None:
        vars(module).update(named[module.__name__])

    return StandIn(VERSION, WORDS, fill, named.__contains__)


_OPTIONS = {
    "dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1),
    "softcap": 0.0, "alibi_slopes": None, "deterministic": False, "return_attn_probs": False,
}  # fmt: skip
"""Parameters behind tensors and lengths, which programs look for by name, and their defaults."""
_OF_TWO = (("cu_seqlens_q", "cu_seqlens_k"), ("max_seqlen_q", "max_seqlen_k"))
_OF_ONE = (("cu_seqlens",), ("max_seqlen",))
_CALLS = {
    "flash_attn_func": ("q k v", ((), ())),
    "flash_attn_kvpacked_func": ("q kv", ((), ())),
    "flash_attn_qkvpacked_func": ("qkv", ((), ())),
    "flash_attn_varlen_func": ("q k v", _OF_TWO),
    "flash_attn_varlen_kvpacked_func": ("q kv", _OF_TWO),
    "flash_attn_varlen_qkvpacked_func": ("qkv", _OF_ONE),
}
"""What programs call: how tensors come, and the names of where sequences begin and how long the
longest is."""


def _functions(function: Any) -> dict[str, Any]:
    calls = {name: _call(function, name, *how) for name, how in _CALLS.items()}
    return {**calls, "flash_attn_with_kvcache": _no_cache}


def _call(
    function: Any, name: str, parts: str, packing: tuple[tuple[str, ...], tuple[str, ...]]
) -> Any:
    """Return a function with the package's own signature."""
    offsets, longest = packing
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    tensors = parts.split()
    needed = [inspect.Parameter(each, kind) for each in (*tensors, *offsets, *longest)]
    options = {**_OPTIONS, **({"block_table": None} if name == "flash_attn_varlen_func" else {})}
    optional = [inspect.Parameter(k, kind, default=v) for k, v in options.items()]
    signature = inspect.Signature([*needed, *optional])

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        told = bound.arguments
        if told.get("block_table") is not None:
            _no_cache()
        lengths = [told[each] for each in longest] or [0]
        how = How(
            parts=parts,
            offsets=tuple(told[each] for each in offsets),
            longest=(lengths[0], lengths[-1]),
            dropout=told["dropout_p"],
            deterministic=told["deterministic"],
            wants_scores=told["return_attn_probs"],
        )
        return function.apply(how, *(told[each] for each in tensors))

    call.__name__ = name
    vars(call)["__signature__"] = signature
    return call


def _no_cache(*_args: Any, **_kwargs: Any) -> Any:
    raise UnsupportedError(
        "flash-attn with a cache of keys is for inference and not stood in for; train without one"
    )


# -- bert_padding.py --


class _Gather(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """``index_first_axis``: rows by number, gathered from a matrix."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.num_rows = x.shape[0]
        flat = x.reshape(x.shape[0], -1)
        wide = rows[:, None].expand(-1, flat.shape[1])
        return torch.gather(flat, 0, wide).reshape(-1, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        flat = gradient.reshape(gradient.shape[0], -1)
        made = torch.zeros(
            (ctx.num_rows, flat.shape[1]), dtype=gradient.dtype, device=gradient.device
        )
        made.scatter_(0, rows[:, None].expand(-1, flat.shape[1]), flat)
        return made.reshape(ctx.num_rows, *gradient.shape[1:]), None


class _Put(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """``index_put_first_axis``: rows put into a tensor of zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor, num_rows: int) -> torch.Tensor:
        ctx.save_for_backward(rows)
        made = torch.zeros((num_rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
        made[rows] = x
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient[ctx.saved_tensors[0]], None, None


def _unpad(x: torch.Tensor, mask: torch.Tensor, unused: torch.Tensor | None = None) -> Any:
    wanted = mask if unused is None else mask + unused
    lengths = wanted.sum(-1, dtype=torch.int32)
    used = mask.sum(-1, dtype=torch.int32)
    rows = torch.nonzero(wanted.flatten()).flatten()
    longest = lengths.max().item()
    offsets = pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return _Gather.apply(x.flatten(0, 1), rows), rows, offsets, longest, used


def _pad(x: torch.Tensor, rows: torch.Tensor, batch: int, seqlen: int) -> Any:
    return _Put.apply(x, rows, batch * seqlen).unflatten(0, (batch, seqlen))


_PADDING = {
    "index_first_axis": _Gather.apply,
    "index_put_first_axis": _Put.apply,
    "unpad_input": _unpad,
    "pad_input": _pad,
}
