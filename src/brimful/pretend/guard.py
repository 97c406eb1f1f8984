"""Errors that the program raises in a backward pass, in hooks of its own.

PyTorch lets such an error pass through its engine while it is still Python's pending one, and on
the way out the engine asks the device's guard, a Python object here, for its type. Python calls
nothing with success while an error is pending; the guard would fail in a destructor, and that ends
the process. So the guard takes the error away, and whoever started the engine raises it again.

Source: ``_call_hooks`` in ``torch/csrc/autograd/python_hook.cpp``; ``evaluate_function`` in
``torch/csrc/autograd/engine.cpp``; ``PythonDeviceGuard`` in ``torch/csrc/acc/Module.cpp``.
"""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import backend_registration

_TYPE = torch._C._autograd.DeviceType.PrivateUse1  # noqa: SLF001
_kind, _value, _traceback = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
# Made beforehand: with an error pending, the first call must be the one that takes it.
_PLACES = tuple(ctypes.byref(x) for x in (_kind, _value, _traceback))
_take = ctypes.PyDLL(None).PyErr_Fetch
_take.restype = None  # and no argtypes: checking arguments would call something
_put_back = ctypes.PyDLL(None).PyErr_Restore
_put_back.argtypes = [ctypes.c_void_p] * 3
_put_back.restype = None


class _State:
    """The error that was taken, for the whole process."""

    error: BaseException | None = None


class Guard(backend_registration._DummyDeviceGuard):  # type: ignore[misc]  # noqa: SLF001
    """Answers PyTorch's questions about the device from below Python."""

    def type_(self, take: Any = _take, places: Any = _PLACES, kind: Any = _kind) -> Any:
        """Say which device it guards."""
        take(*places)
        if kind.value is not None:
            _State.error = _as_exception()
        return _TYPE


def _as_exception() -> BaseException:
    """Return the error that was taken, by raising it here."""
    try:
        _put_back(_kind, _value, _traceback)
    except BaseException as error:  # noqa: BLE001 - whatever the program raised
        return error
    raise AssertionError("no error was pending")


@contextlib.contextmanager
def errors_come_through() -> Iterator[None]:
    """Raise what the program raised in the engine, if the engine lost it."""
    _State.error = None
    try:
        yield
    except SystemError:
        if _State.error is None:
            raise
    error, _State.error = _State.error, None
    if error is not None:
        raise error
