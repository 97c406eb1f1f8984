"""What stands for the flash-attn package: its functions, which allocate what its kernels do.

Followed: flash-attn 2.8.3, ``csrc/flash_attn/flash_api.cpp`` (``mha_fwd``, ``mha_varlen_fwd``,
``mha_bwd``, ``mha_varlen_bwd``, ``set_params_splitkv``), ``flash_attn/flash_attn_interface.py`` and
``flash_attn/bert_padding.py``. Attention with a cache of keys, which is not for training, and what
else the package has (rotary embeddings, fused losses, layers) are not there.

Shapes: B batch, M queries, H heads, K head dimension; packed sequences have no B and one M of all.
"""

import inspect
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import pad

from brimful.errors import UnsupportedError
from brimful.pretend import flash_attn_parts
from brimful.pretend.absent import StandIn
from brimful.pretend.flash_attn_kernels import How, apart, kernel_backward, kernel_forward, padded
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels

VERSION = "2.8.3"
PACKAGE = "flash_attn"
EXTENSION = "flash_attn_2_cuda"
WORDS = f"flash-attn {VERSION}, by what its kernels allocate (csrc/flash_attn/flash_api.cpp)"


def _gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: How) -> Any:
    """Return the gradients as the inputs came, and as queries, keys and values."""
    if how.parts == "q k v":
        each = tuple(map(torch.empty_like, (q, k, v)))
        return each, each
    first = (torch.empty_like(q),) if how.parts == "q kv" else ()
    shape = (*k.shape[:-2], 2 if first else 3, *k.shape[-2:])
    together = (*first, torch.empty(shape, dtype=k.dtype, device=k.device))
    return together, apart(together, how.parts)


def _function(kernels: OtherKernels, known: KnownValues) -> Any:
    class FlashAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped
        @staticmethod
        def forward(ctx: Any, how: How, *given: torch.Tensor) -> Any:
            q, k, v = map(padded, apart(given, how.parts))
            kernels.launch("flash_attn_2_cuda.fwd", {}, known)
            out, lse, scores, state = kernel_forward(q, k, v, how)
            ctx.how = how
            ctx.save_for_backward(q, k, v, out, lse, *how.offsets, state)
            shown = out[..., : given[0].shape[-1]]
            return (shown, lse, scores) if how.wants_scores else shown

        @staticmethod
        def backward(ctx: Any, dout: torch.Tensor, *_: Any) -> Any:
            q, k, v, out, *_rest = ctx.saved_tensors
            gradients, each = _gradients(q, k, v, ctx.how)
            kernels.launch("flash_attn_2_cuda.bwd", {}, known)
            kernel_backward(padded(dout), (q, k, v, out), each, ctx.how)
            return None, *(x[..., : dout.shape[-1]] for x in gradients)

    return FlashAttention


def _not_alone(*_args: Any, **_kwargs: Any) -> Any:
    raise UnsupportedError(
        f"{EXTENSION} is called past its package, which is not simulated; call flash_attn"
    )


def stand_in(kernels: OtherKernels, known: KnownValues) -> StandIn:
    """Return the package."""
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
