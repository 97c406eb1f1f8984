"""bitsandbytes' optimizer kernels on the pretend GPU: in place on CUDA, in several steps on a CPU.

Its CUDA kernel works on blocks in registers. Its CPU kernel is written in PyTorch: it widens both
moments, the gradient and the parameter, and makes the 8-bit ones anew. Where a CPU is imitated that
very kernel runs, on fake tensors. State that is paged lies in CUDA's managed memory, which no
allocator of PyTorch knows: it is counted on the host, where it goes when the device is full.
Source: ``bitsandbytes/backends/{cpu,cuda}/ops.py``, ``get_paged`` in ``functional.py``.
"""

from collections.abc import Iterator
from typing import Any

import torch

from brimful.pretend import kernels
from brimful.pretend.libraries import library

_NAMESPACE = "bitsandbytes"
_OPS = ("optimizer_update_8bit_blockwise", "optimizer_update_32bit")
_CPU = torch._C.DispatchKey.CPU  # noqa: SLF001


def register() -> None:
    """Install them; bitsandbytes need not have been imported, or be there at all."""
    own = library("AutogradPrivateUse1", _NAMESPACE)
    for name in _OPS:
        own.impl(name, _kernel(name))


def _kernel(name: str) -> Any:
    def run(*args: Any, **kwargs: Any) -> None:
        op = getattr(getattr(torch.ops, _NAMESPACE), name).default
        if kernels.current() == "cpu":
            op._op_dk(_CPU, *args, **kwargs)  # noqa: SLF001
            return
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
            op(*args, **kwargs)

    return run


def state_is_paged(functional: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what stands for managed memory, which bitsandbytes' CUDA library gives."""
    yield functional, "get_paged", _get_paged
    yield functional, "prefetch_tensor", _nothing
    # It fills and compares paged tensors, whose values nobody has.
    yield functional, "elementwise_func", _nothing


def _get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    out = torch.empty(shape, dtype=dtype, device="cpu")
    out.is_paged, out.page_deviceid = True, torch.device(device or "cuda").index or 0
    return out


def _nothing(*_args: object, **_kwargs: object) -> None:
    """Do what changes no memory of ours."""
