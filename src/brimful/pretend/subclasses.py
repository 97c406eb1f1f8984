"""Tensors of classes that programs bring, such as bitsandbytes' packed weights, made of fakes.

PyTorch gives a tensor the class of a program's by an alias of it in C++, which a fake tensor does
not allow. Here the alias is a fake tensor, of a class that is both.

Source: ``THPVariable_make_subclass`` of ``torch/csrc/autograd/python_variable.cpp``.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from brimful.pretend.known_values import KNOWN, KnownValues

_original = torch.Tensor._make_subclass  # noqa: SLF001 - what classes of tensors call
_new_fake = FakeTensor.__new__
_dispatch = FakeTensor.__torch_dispatch__.__func__


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield what stands for PyTorch's own while tensors are fake."""
    yield torch.Tensor, "_make_subclass", staticmethod(_make_subclass)
    yield FakeTensor, "__new__", staticmethod(_new)
    yield FakeTensor, "__deepcopy__", _copied
    yield FakeTensor, "__torch_dispatch__", classmethod(_dispatched)


def _copied(tensor: Any, memo: Any) -> Any:
    """Copy a fake tensor, and what is known of its values apart: they are real tensors."""
    modes = (mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, KnownValues))
    mode = next(modes, None)
    copies = mode.copies_of(tensor) if mode else {}
    known = {name: x for name in KNOWN if (x := vars(tensor).pop(name, None)) is not None}
    try:
        made = torch.Tensor.__deepcopy__(tensor, memo)
    finally:
        vars(tensor).update(known)
    vars(made).update(copies)
    return made


def _dispatched(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run an operation that a class of a program's hands on to the tensor that it is made of.

    It says of which classes the arguments were; those that are here are of none of these.
    """
    others = {x for x in types if not issubclass(x, FakeTensor) and x is not torch.Tensor}
    if others and others.isdisjoint(map(type, pytree.arg_tree_leaves(*args, **(kwargs or {})))):
        return func(*args, **(kwargs or {}))
    return _dispatch(cls, func, types, args, kwargs or {})


def _make_subclass(cls: Any, data: Any, require_grad: bool = False, **more: Any) -> Any:  # noqa: FBT001, FBT002 - PyTorch's
    if not isinstance(data, FakeTensor) or issubclass(cls, FakeTensor):
        return _original(cls, data, require_grad, **more)
    with torch.no_grad():
        made = data.detach()
    made.__class__ = _both(cls)
    return made.requires_grad_(require_grad)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a parameter where a program calls the class of one, as ``type(old)(data)``.

    What such a call hands on of ``vars(old)`` is the fake tensor's own.
    """
    if cls is FakeTensor and args and isinstance(args[0], torch.Tensor):
        return nn.Parameter(*args, **{k: x for k, x in kwargs.items() if k == "requires_grad"})
    return _new_fake(cls, *args, **kwargs)


@cache
def _both(cls: type) -> type:
    """Return a class of a program's that is one of fake tensors too."""
    own = {"__module__": cls.__module__, "detach": _detached}
    return type(cls.__name__, (cls, FakeTensor), own)


def _detached(tensor: Any) -> Any:
    """Stay of a class, as ``nn.Parameter`` wants of what it is given: modules move by that."""
    made = FakeTensor.detach(tensor)
    made.__class__ = type(tensor)
    return made
