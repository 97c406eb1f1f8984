"""Autocast on the pretend GPU: which ops run in low precision, which in fp32, and the weight cache.

A device that PyTorch does not know has no autocast kernels at all. These follow
``aten/src/ATen/autocast_mode.{h,cpp}``: the lists of CUDA, or of the CPU where its kernels are
imitated. Ops outside the lists run in the type of their inputs, as there.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from brimful.pretend import kernels
from brimful.pretend.libraries import library

LOWER = (
    "_convolution", "conv1d", "conv2d", "conv3d", "addmm", "addbmm", "baddbmm", "bmm", "mm",
    "matmul", "linear", "prelu", "scaled_dot_product_attention", "einsum", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "linalg_vecdot",
    "mkldnn_rnn_layer",
)  # fmt: skip
"""Run in the autocast type on CUDA and on CPU (there by the products inside, for einsum)."""
LOWER_CUDA = (
    "addmv", "addr", "mv", "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
)  # fmt: skip
FP32_CUDA = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "logsumexp", "renorm",
    "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "dist", "pdist",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
)  # fmt: skip
"""Run in fp32 on CUDA, in the type of their inputs on CPU."""
FP32 = (
    "nll_loss", "nll_loss2d", "mse_loss", "binary_cross_entropy_with_logits", "smooth_l1_loss",
    "l1_loss", "huber_loss", "kl_div", "cosine_embedding_loss", "hinge_embedding_loss",
    "margin_ranking_loss", "multi_margin_loss", "soft_margin_loss", "multilabel_margin_loss",
    "triplet_margin_loss", "poisson_nll_loss", "cdist",
)  # fmt: skip
"""Run in fp32 on CUDA and on CPU."""
FP32_CPU = ("cross_entropy_loss", "trace")
"""Run in fp32 on CPU, in the type of their inputs on CUDA."""
FP32_OUTPUT_CUDA = (
    "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum", "cumprod", "prod",
    "prod.dim_int", "linalg_vector_norm",
)  # fmt: skip
"""On CUDA: read low precision and write fp32 without a copy of the input."""

_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # noqa: SLF001
_OWN_KEY = torch._C.DispatchKey.AutogradPrivateUse1  # noqa: SLF001
_cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
on_weight_cast: list[Callable[[torch.Tensor], None]] = []
"""Called with every low-precision copy of a weight that enters the cache."""


def num_cached() -> int:
    """Return how many copies of weights are kept."""
    return len(_cache)


def cached_since(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return weights and their copies from one on, in the order in which they were made."""
    return list(islice(_cache.values(), number, None))


def keep(weight: torch.Tensor, low: torch.Tensor) -> None:
    """Keep a copy of a weight until the cache is cleared."""
    _cache[id(weight)] = (weight, low)


def register() -> None:
    """Install the kernels and the clearing of the weight cache, once per process."""
    library("AutocastPrivateUse1", "_").fallback(torch.library.fallthrough_kernel)
    own = library("AutocastPrivateUse1")
    for name in (*LOWER, *LOWER_CUDA):
        own.impl(name, _lowering(_overload(name), cuda_only=name in LOWER_CUDA))
    for name in FP32:
        own.impl(name, _widening(_overload(name), on=("cuda", "cpu")))
    for name in FP32_CUDA:
        own.impl(name, _widening(_overload(name), on=("cuda",)))
    for name in FP32_CPU:
        own.impl(name, _widening(_overload(name), on=("cpu",)))
    for name in FP32_OUTPUT_CUDA:
        own.impl(name, _wide_output(_overload(name)))
    _clear_with_pytorch()


def _clear_with_pytorch() -> None:
    original = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _cache.clear()
        original()

    torch.clear_autocast_cache = clear_autocast_cache


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def excluded() -> Any:
    """Return a block in which nothing is cast."""
    keys = torch._C.DispatchKeySet(_KEY)  # noqa: SLF001
    return torch._C._ExcludeDispatchKeyGuard(keys)  # noqa: SLF001


def _without_autocast(op: Any, args: Any, kwargs: Any) -> Any:
    with excluded():
        return op(*args, **kwargs)


def _as_it_is(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op that the imitated device's lists leave out; its parts may be on them."""
    has_own = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    if has_own(op.name(), "AutogradPrivateUse1"):
        return op._op_dk(_OWN_KEY, *args, **kwargs)  # noqa: SLF001
    if op._can_decompose():  # noqa: SLF001
        return op.decompose(*args, **kwargs)
    return _without_autocast(op, args, kwargs)


def _lowering(op: Any, *, cuda_only: bool) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if cuda_only and kernels.current() != "cuda":
            return _as_it_is(op, args, kwargs)
        dtype = torch.get_autocast_dtype("gpu")
        args, kwargs = _cast_all(args, kwargs, dtype)
        return _without_autocast(op, args, kwargs)

    return kernel


def _widening(op: Any, *, on: tuple[kernels.Kernels, ...]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if kernels.current() not in on:
            return _as_it_is(op, args, kwargs)
        args, kwargs = _cast_all(args, kwargs, torch.float32)
        return _without_autocast(op, args, kwargs)

    return kernel


def _wide_output(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        low = is_eligible(args[0]) and args[0].dtype != torch.float32
        if low and kwargs.get("dtype") is None and kernels.current() == "cuda":
            args, kwargs = _with_fp32_dtype(op, args, kwargs)
        return _without_autocast(op, args, kwargs)

    return kernel


def _with_fp32_dtype(op: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    names = [a.name for a in op._schema.arguments]  # noqa: SLF001
    if "dtype" in names[: len(args)]:
        place = names.index("dtype")
        if args[place] is not None:
            return args, kwargs
        return (*args[:place], torch.float32, *args[place + 1 :]), kwargs
    return args, {**kwargs, "dtype": torch.float32}


def is_eligible(x: Any) -> bool:
    """Tell whether autocast would change a tensor's type."""
    return (
        isinstance(x, torch.Tensor)
        and torch._C._dispatch_keys(x).has(_KEY)  # noqa: SLF001 - not by its name, which may be cuda
        and x.is_floating_point()
        and x.dtype != torch.float64
    )


def _cast_all(args: Any, kwargs: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    return (
        tuple(cast(x, dtype) for x in args),
        {name: cast(x, dtype) for name, x in kwargs.items()},
    )


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Return tensors in the type given, weights from the cache.

    ``x``: a tensor, a list of them, or anything else, which stays as it is.
    """
    if isinstance(x, (list, tuple)) and x and isinstance(x[0], torch.Tensor):
        return type(x)(cast(y, dtype) for y in x)
    if not is_eligible(x) or x.dtype == dtype:
        return x
    if not _cacheable(x, dtype):
        return x.to(dtype)
    if id(x) not in _cache:
        low = x.to(dtype)
        _cache[id(x)] = (x, low)
        for hook in on_weight_cast:
            hook(low)
    return _cache[id(x)][1]


def _cacheable(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Apex's heuristic, as in ``cached_cast``: fp32 leaves that train are weights."""
    return (
        dtype != torch.float32
        and x.dtype == torch.float32
        and x.requires_grad
        and x.is_leaf
        and not x._is_view()  # noqa: SLF001
        and torch.is_autocast_cache_enabled()
    )
