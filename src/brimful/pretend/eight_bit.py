"""bitsandbytes' optimizer kernels on the pretend GPU: in place on CUDA, in several steps on a CPU.

Its CUDA kernel works on blocks in registers. Its CPU kernel is written in PyTorch: it widens both
moments, the gradient and the parameter, and makes the 8-bit ones anew. Where a CPU is imitated that
very kernel runs, on fake tensors.
Source: ``bitsandbytes/backends/{cpu,cuda}/ops.py``.
"""

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
