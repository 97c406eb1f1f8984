"""Programs that say ``cuda``: inside the block, ``cuda`` is the pretend GPU.

What such a program sees is ``cuda``: ``x.device``, ``x.is_cuda``, ``torch.cuda``. Below PyTorch's
Python functions it is the ``gpu`` device. Devices are translated where a call enters a function and
where it returns, so it works on a PyTorch that was built with CUDA and on one that was not.

Limits: a device that no function is asked for keeps its own name (``storage.device``, the repr of a
tensor, ``stream.device``); ``torch.cuda.FloatTensor`` and the like, CUDA graphs, custom CUDA or
Triton kernels and ``torch.compile`` are not served; data workers run in the main process.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
import torch.utils._device
from torch import autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from brimful.errors import UnsupportedError
from brimful.pretend import cuda_names
from brimful.pretend.cuda_names import replaced
from brimful.pretend.device import NAME
from brimful.pretend.known_values import KnownValues

_CUDA = re.compile(r"cuda(:\d+)?")
_Tensor = torch.Tensor


class _State:
    """Whether PyTorch itself is running, which calls the device by its own name."""

    inside = False


@contextlib.contextmanager
def _inside(*, now: bool) -> Iterator[None]:
    before, _State.inside = _State.inside, now
    try:
        yield
    finally:
        _State.inside = before


def inward(x: Any) -> Any:
    """Return the pretend GPU for a device, or a device's name, that says ``cuda``."""
    if isinstance(x, torch.device):
        return _device(NAME, x.index) if x.type == "cuda" else x
    if isinstance(x, str) and _CUDA.fullmatch(x):
        return x.replace("cuda", NAME)
    return x


def outward(x: Any) -> Any:
    """Return ``cuda`` for the pretend GPU."""
    if isinstance(x, torch.device) and x.type == NAME:
        return _device("cuda", x.index)
    return x


def _device(kind: str, index: int | None) -> torch.device:
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return torch.device(kind) if index is None else torch.device(kind, index)


class SaysCuda(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Translates devices where a call enters PyTorch and where it returns."""

    def __init__(self, known: KnownValues) -> None:
        """Keep what is known of values, for those who ask for them."""
        super().__init__()
        self.known = known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        """Run a function with ``cuda`` translated."""
        kwargs = kwargs or {}
        answer = _ANSWERS.get(func)
        with _inside(now=True):
            if answer is not None:
                return answer(self, *args, **kwargs)
            args = tuple(inward(x) for x in args)
            if kwargs:
                kwargs = {name: inward(x) for name, x in kwargs.items()}
                if isinstance(kwargs.get("generator"), _CudaGenerator):
                    kwargs["generator"] = None
            return outward(func(*args, **kwargs))


class _Below(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Notes that what runs now is PyTorch itself, where the engine calls it from below."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG002
        before, _State.inside = _State.inside, True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            _State.inside = before


# -- functions that need more than a translation --


def _make_device(_mode: SaysCuda, *args: Any, **kwargs: Any) -> torch.device:
    made = torch.device(*args, **kwargs)
    # A program's own "cuda" stays; a bare index means the accelerator.
    return outward(made) if args and isinstance(args[0], int) else made


def _cuda(_mode: SaysCuda, x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    where = f"{NAME}:{device}" if isinstance(device, int) else inward(device or "cuda")
    non_blocking = kwargs.pop("non_blocking", args[0] if args else False)
    return x.to(where, non_blocking=non_blocking, **kwargs)


def _tensor(_mode: SaysCuda, data: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a tensor of Python's values on the host and copy it, as PyTorch does."""
    where = inward(kwargs.pop("device", None))
    grad = kwargs.pop("requires_grad", False)
    made = torch.tensor(data, *args, **kwargs)
    made = made if where is None else made.to(where)
    return made.requires_grad_(grad) if grad else made


def _as_tensor(mode: SaysCuda, data: Any, dtype: Any = None, device: Any = None) -> Any:
    if not isinstance(data, torch.Tensor):
        return torch.as_tensor(data, dtype=dtype).to(inward(device or "cpu"))
    del mode
    return data.to(device=inward(device or data.device), dtype=dtype or data.dtype)


def _new_tensor(mode: SaysCuda, x: Any, data: Any, **kwargs: Any) -> Any:
    kwargs.setdefault("dtype", x.dtype)
    kwargs["device"] = kwargs.get("device") or x.device
    return _tensor(mode, data, **kwargs)


def _pin(_mode: SaysCuda, x: Any, *_args: Any, **_kwargs: Any) -> Any:
    return x.clone()


def _type(_mode: SaysCuda, x: Any, *args: Any, **kwargs: Any) -> Any:
    args = tuple(a.replace(".cuda.", f".{NAME}.") if isinstance(a, str) else a for a in args)
    out = _Tensor.type(x, *args, **kwargs)
    return out.replace(f".{NAME}.", ".cuda.") if isinstance(out, str) else out


def _get_device(_mode: SaysCuda, x: Any) -> int:
    where = x.fake_device if isinstance(x, FakeTensor) else x.device
    return -1 if where.type == "cpu" else where.index


def _data_ptr(_mode: SaysCuda, x: Any) -> int:
    if not isinstance(x, FakeTensor):
        return int(_Tensor.data_ptr(x))
    # No two fake storages are one, which is what addresses are compared for.
    begin: int = x.untyped_storage()._cdata  # noqa: SLF001
    return begin + x.storage_offset() * x.element_size()


def _numpy(mode: SaysCuda, x: Any, **kwargs: Any) -> Any:
    if not isinstance(x, FakeTensor):
        return _Tensor.numpy(x, **kwargs)
    value = mode.known.value(x)
    with torch._C._DisableTorchDispatch():  # noqa: SLF001
        if value is None:
            # The same stand-ins as for item().
            value = torch.full(x.shape, 0 if x.is_floating_point() or x.dtype == torch.bool else 1,
                               dtype=x.dtype)  # fmt: skip
        return _Tensor.numpy(value, **kwargs)


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.device: _make_device,
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    _Tensor.new_tensor: _new_tensor,
    _Tensor.cuda: _cuda,
    _Tensor.pin_memory: _pin,
    _Tensor.is_pinned: lambda *_, **__: False,
    _Tensor.type: _type,
    _Tensor.get_device: _get_device,
    _Tensor.data_ptr: _data_ptr,
    _Tensor.numpy: _numpy,
}


# -- names that no function mode sees --


class _GeneratorKind(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, _Generator)


_Generator = torch.Generator


class _CudaGenerator(_Generator, metaclass=_GeneratorKind):  # type: ignore[misc]
    """A generator of a GPU on which nothing is drawn."""


def _generator(device: Any = "cpu") -> torch.Generator:
    return _Generator()


def _translated(function: Any) -> Any:
    """Return a function whose arguments may say ``cuda`` and whose answer does."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(inward(x) for x in args)
        kwargs = {name: inward(x) for name, x in kwargs.items()}
        return outward(function(*args, **kwargs))

    return call
