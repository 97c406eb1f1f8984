"""Which kernel CUDA's ``scaled_dot_product_attention`` takes, and why not each that comes first.

The checks and their order are those of
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` (PyTorch 2.11 to
2.13), for dense tensors. Kernels that the user switched off (``torch.nn.attention.sdpa_kernel``,
``torch.backends.cuda.enable_*_sdp``) and the order that the user set are read from PyTorch itself.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from brimful.pretend import kernels
from brimful.pretend.workspace_call import is_deterministic

Kernel = Literal["flash", "efficient", "cudnn", "math", "cpu-flash"]

FLASH_MAX_HEAD_DIM = 256
HEAD_DIM_MULTIPLE = 8
_HALF = (torch.float16, torch.bfloat16)
_BACKENDS: dict[int, Kernel] = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
_DEFAULT_ORDER = (1, 2, 0, 3)
_CUDNN_FIRST: tuple[Kernel, ...] = ("cudnn", "flash", "efficient", "math")


class Attention(NamedTuple):
    """The arguments of one call, as ``scaled_dot_product_attention`` got them.

    Attributes:
        query: [batch, heads, tokens, head_dim].
        key: [batch, kv_heads, kv_tokens, head_dim].
        value: [batch, kv_heads, kv_tokens, value_dim].
        mask: Additive or boolean mask, or None.
        dropout_p: Dropout probability.
        is_causal: Whether a causal mask is implied.
        scale: Factor on the scores; None means 1 / sqrt(head_dim).
        gqa: Whether kv_heads may be a divisor of heads.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    gqa: bool = False

    @property
    def needs_grad(self) -> bool:
        """Whether a backward pass will follow."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in self[:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The kernel taken.

    Attributes:
        kernel: Its name.
        rejected: The kernels that were tried before, each with the first reason against it.
    """

    kernel: Kernel
    rejected: tuple[tuple[Kernel, str], ...]


def choose(call: Attention) -> Choice:
    """Choose as the imitated device would.

    A CPU has one fused kernel (``use_flash_attention_cpp`` of sdp_utils_cpp.cpp).
    """
    if kernels.current() == "cpu":
        reason = next(_cpu_flash(call), None)
        if reason is not None:
            return Choice(kernel="math", rejected=(("cpu-flash", reason),))
        return Choice(kernel="cpu-flash", rejected=())
    rejected: list[tuple[Kernel, str]] = []
    for kernel in priority():
        reason = next(_CHECKS[kernel](call), None)
        if reason is None:
            return Choice(kernel=kernel, rejected=tuple(rejected))
        rejected.append((kernel, reason))
    reasons = "; ".join(f"{kernel}: {reason}" for kernel, reason in rejected)
    raise RuntimeError(f"no attention kernel is available ({reasons})")


def priority() -> tuple[Kernel, ...]:
    """Return the kernels in the order in which they are tried.

    Source: ``priority_order`` and ``check_prefer_cudnn_attention`` of sdp_utils.cpp; before 2.11
    PyTorch's default wheels carry a cuDNN that is not preferred.
    """
    order = tuple(place for place in torch._C._get_sdp_priority_order() if place in _BACKENDS)  # noqa: SLF001
    if order == _DEFAULT_ORDER and _prefers_cudnn():
        return _CUDNN_FIRST
    return tuple(_BACKENDS[place] for place in order)


def _prefers_cudnn() -> bool:
    card = kernels.imitated()
    return (
        os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
        and card.torch_version >= (2, 11)
        and card.cudnn_version > 91500  # noqa: PLR2004 - 9.15.0, as cuDNN counts
        and card.capability[0] in {9, 10}
    )


def _flash(call: Attention) -> Iterator[str]:
    """Reasons against FlashAttention-2, in PyTorch's order."""
    capability = kernels.imitated().capability
    if not torch._C._get_flash_sdp_enabled():  # noqa: SLF001
        yield "switched off"
    yield from _not_4d(call)
    if call.mask is not None:
        yield "it takes no mask"
    head_dim = call.query.shape[-1]
    if not _have_equal(call, -1) or head_dim > FLASH_MAX_HEAD_DIM:
        yield f"head dimensions must be equal and at most {FLASH_MAX_HEAD_DIM}, not {head_dim}"
    if not (8, 0) <= capability <= (12, 1) and not kernels.is_amd(capability):
        yield f"it needs compute capability 8.0 to 12.1, not {_dotted(capability)}"
    small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    if call.needs_grad and small and _too_wide_to_train(head_dim, call.dropout_p):
        yield f"no backward for head dimension {head_dim} on {_dotted(capability)}"
    if call.is_causal and call.query.shape[-2] != call.key.shape[-2]:
        yield "causal and not square"
    yield from _wrong_dtype(call, _HALF)
    yield from _wrong_heads(call, grouped=True)
    yield from _not_dense(call, ignore_singleton=True)


def _too_wide_to_train(head_dim: int, dropout_p: float) -> bool:
    return 192 < head_dim <= 224 or (head_dim > 224 and dropout_p > 0)  # noqa: PLR2004


def _efficient(call: Attention) -> Iterator[str]:
    """Reasons against the memory-efficient kernel."""
    capability = kernels.imitated().capability
    if not torch._C._get_mem_efficient_sdp_enabled():  # noqa: SLF001
        yield "switched off"
    if not (5, 0) <= capability <= (12, 1) and not kernels.is_amd(capability):
        yield f"it needs compute capability 5.0 to 12.1, not {_dotted(capability)}"
    yield from _not_4d(call)
    alignment = gemm_alignment(call.query.dtype, capability)
    query, key, value = (x.shape[-1] for x in call[:3])
    if query != key or not query or not value or query % alignment or value % alignment:
        yield f"head dimensions {query} and {value} must be multiples of {alignment}"
    yield from _not_dense(call, ignore_singleton=False)
    yield from _wrong_heads(call, grouped=False)
    old = (torch.float16, torch.float32)
    yield from _wrong_dtype(call, (*_HALF, torch.float32) if capability >= (8, 0) else old)


def gemm_alignment(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """Elements that rows must be a multiple of: ``minimum_gemm_alignment`` of sdp_utils.cpp."""
    half = dtype in _HALF
    tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and half)
    at_least = 4 if capability >= (8, 0) else 1
    return max(at_least, 128 // (16 if half else 32)) if tensor_cores else at_least


def _cudnn(call: Attention) -> Iterator[str]:
    """Reasons against cuDNN's kernel."""
    card = kernels.imitated()
    if call.dropout_p > 0 and 91100 < card.cudnn_version < 91400:  # noqa: PLR2004
        yield "its dropout is broken in this cuDNN"
    if not torch._C._get_cudnn_sdp_enabled():  # noqa: SLF001
        yield "switched off"
    yield from _not_4d(call)
    if is_deterministic():
        yield "it is not deterministic"
    yield from _wrong_dtype(call, _HALF if card.capability >= (8, 0) else _HALF[:1])
    yield from _wrong_mask(call)
    if not (8, 0) <= card.capability <= (12, 1):
        yield f"it needs compute capability 8.0 to 12.1, not {_dotted(card.capability)}"
    yield from _not_dense(call, ignore_singleton=True)
    yield from _wrong_heads(call, grouped=True, same_kv=False)
    query, value = call.query.shape[-1], call.value.shape[-1]
    limit = _cudnn_head_dim(query, value)
    if max(query, value) > limit:
        yield f"head dimensions {query} and {value} are over {limit}"
    if query % HEAD_DIM_MULTIPLE or value % HEAD_DIM_MULTIPLE:
        yield f"head dimensions {query} and {value} must be multiples of {HEAD_DIM_MULTIPLE}"
    if call.key.shape[2] == 1 or (call.query.shape[2] == 1 and call.dropout_p):
        yield "one key, or one query with dropout"


def _cudnn_head_dim(query: int, value: int) -> int:
    """``check_cudnn_tensor_shapes`` of sdp_utils.cpp."""
    card = kernels.imitated()
    if card.capability == (9, 0) and card.cudnn_version >= 91000:  # noqa: PLR2004
        return 256
    deepseek = (query, value) == (192, 128) and card.cudnn_version >= 91100  # noqa: PLR2004
    return 192 if deepseek and card.capability[0] == 10 else 128  # noqa: PLR2004


def _cpu_flash(call: Attention) -> Iterator[str]:
    """Reasons against the CPU's fused kernel."""
    if call.dropout_p > 0:
        yield "it has no dropout"
    yield from _not_4d(call)
    if call.mask is not None and (call.mask.requires_grad or call.mask.dim() not in {2, 4}):
        yield f"a mask of {list(call.mask.shape)}, or one that needs a gradient"
    if not _have_equal(call, -1):
        yield "head dimensions must be equal"
    yield from _wrong_heads(call, grouped=True)
    yield from _not_dense(call._replace(mask=None), ignore_singleton=True)


def _math(_call: Attention) -> Iterator[str]:
    if not torch._C._get_math_sdp_enabled():  # noqa: SLF001
        yield "switched off"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(str(part) for part in capability)


def _have_equal(call: Attention, dim: int) -> bool:
    """Whether query, key and value are equal in a dimension; symbols of a compiler have no hash."""
    query, key, value = (x.shape[dim] for x in call[:3])
    return bool(query == key == value)


def _not_4d(call: Attention) -> Iterator[str]:
    dims = {x.dim() for x in call[:3]}
    if dims != {4}:
        yield f"query, key and value must have 4 dimensions, not {sorted(dims)}"


def _wrong_dtype(call: Attention, allowed: tuple[torch.dtype, ...]) -> Iterator[str]:
    dtypes = {x.dtype for x in call[:3]}
    if len(dtypes) != 1 or call.query.dtype not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        yield f"it takes {names}, not {call.query.dtype}".replace("torch.", "")


def _wrong_heads(call: Attention, *, grouped: bool, same_kv: bool = True) -> Iterator[str]:
    query, key, value = (x.shape[-3] for x in call[:3])
    if not _have_equal(call, 0):
        yield "batch sizes differ"
    if grouped and call.gqa:
        if (same_kv and key != value) or query % key or query % value:
            yield f"{key} and {value} key and value heads do not divide {query}"
    elif not query == key == value:
        yield f"it has no grouped heads ({query} and {key})" if call.gqa else "heads differ"


def _not_dense(call: Attention, *, ignore_singleton: bool) -> Iterator[str]:
    if not call.query.shape[-2] or not call.key.shape[-2]:
        yield "no tokens"
    neighbours = all(x.stride(-1) == 1 for x in call[:3])
    single = ignore_singleton and call.query.shape[-1] == 1
    if not (neighbours or single) or (call.mask is not None and call.mask.stride(-1) != 1):
        yield "the last dimension is not contiguous"


def _wrong_mask(call: Attention) -> Iterator[str]:
    if call.mask is None:
        return
    mask, query, key = call.mask, call.query.shape, call.key.shape
    full = (query[0], query[1], query[2], key[2])
    fits = all(m in (1, n) for m, n in zip(mask.shape[::-1], full[::-1], strict=False))
    if mask.requires_grad or mask.dim() not in {2, 4} or not fits:
        yield f"a mask of {list(mask.shape)}, or one that needs a gradient"


_CHECKS: dict[Kernel, Callable[[Attention], Iterator[str]]] = {
    "flash": _flash, "efficient": _efficient, "cudnn": _cudnn, "math": _math,
}  # fmt: skip
