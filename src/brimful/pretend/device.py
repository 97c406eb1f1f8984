"""The ``gpu`` device: registered with PyTorch, it has shapes, dtypes and no memory.

Tensors on it are fake (``FakeTensorMode``), so a step costs no bytes and no arithmetic. PyTorch
asks a device's backend module for many small things, some of them from the autograd engine, where
a missing answer ends the process; every method that is asked for in training stands here.
"""

import contextlib
from functools import cache
from typing import Any

import torch
from torch.utils import backend_registration

from brimful.pretend import attention, autocast
from brimful.pretend.libraries import library

NAME = "gpu"


class _Stream:
    """The one stream: work on it is ordered by the program itself."""

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Backend(backend_registration._DummyBackendModule):  # type: ignore[misc]  # noqa: SLF001
    """What ``torch.gpu`` answers."""

    _stream = _Stream()

    def current_stream(self, device: Any = None) -> _Stream:  # noqa: ARG002
        return self._stream

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        # Asked for by torch's checkpoints, of CPU tensors too, once this backend is registered.
        return contextlib.nullcontext()

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        return contextlib.nullcontext()

    def set_device(self, device: Any) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    def is_bf16_supported(self) -> bool:
        return True

    def get_rng_state(self, device: Any = None) -> torch.Tensor:  # noqa: ARG002
        return torch.empty(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass


@cache
def register() -> None:
    """Make ``torch.device("gpu")`` exist, once per process."""
    backend_registration._setup_privateuseone_for_python_backend(  # noqa: SLF001
        NAME, backend_module=_Backend()
    )
    _claim_composite_ops()
    autocast.register()
    attention.register()


def _claim_composite_ops() -> None:
    """Claim a kernel for every op that real devices implement whole though a formula exists.

    Without one, autograd takes such an op (``silu_backward``, ...) apart into others with other
    allocations. The kernel never runs: fake tensors compute shapes before it is reached.
    """
    own = library("PrivateUse1")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        if not name.startswith("aten::"):
            continue
        composite = has_kernel(name, "CompositeImplicitAutograd")
        if composite and has_kernel(name, "CPU") and not has_kernel(name, "PrivateUse1"):
            own.impl(name.removeprefix("aten::"), _never_runs)


def _never_runs(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("the pretend GPU computes nothing; run this under FakeTensorMode")
