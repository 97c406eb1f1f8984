"""Modules and tensors that are moved in place.

``module.to("gpu")`` of a model that was built on the host: PyTorch moves a fake parameter by
swapping two tensors, and refuses where anything refers to one of them weakly: the fake mode's own
memory of what it converted, and of the values that it knows, or a program that watches parameters
(DeepSpeed does). A real parameter gets other data, and whoever refers to it still does.
``tensor.data = tensor.to("gpu")``: PyTorch finds the device's tensors of another kind than the
host's, as CUDA's are not.
"""

import contextlib
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from brimful.pretend.known_values import TWIN
from brimful.pretend.libraries import library

_SAME_KIND = "_has_compatible_shallow_copy_type"


class _State:
    """Whether a tensor may become one of another device."""

    of_other_devices = False


@cache
def register() -> None:
    """Answer for the device whether a tensor may become another one."""
    library("AutogradPrivateUse1").impl(_SAME_KIND, _may_become)


def _may_become(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return _State.of_other_devices or tensor.device.type == other.device.type


@contextlib.contextmanager
def tensors_of_other_devices() -> Iterator[None]:
    """Let ``tensor.data`` be set to a tensor of any device inside the block."""
    _State.of_other_devices = True
    try:
        yield
    finally:
        _State.of_other_devices = False


@contextlib.contextmanager
def modules_move(mode: FakeTensorMode) -> Iterator[None]:
    """Let modules made under ``mode`` be moved inside the block."""
    original, converter = torch.utils.swap_tensors, mode.fake_tensor_converter

    def swap_tensors(one: Any, other: Any) -> None:
        for tensor in (one, other):
            _forget(converter.tensor_memo, tensor)
            constant = getattr(tensor, "constant", None)
            if constant is not None:  # as of torch.tensor(2.66); by its storage its like are known
                converter.invalidate_constant_aliases(constant)
        # A real parameter stays the same tensor as its module moves, with a program's attributes.
        own = {name: x for name, x in vars(one).items() if name not in vars(other)}
        own.pop(TWIN, None)
        with _weakly_referred():
            original(one, other)
        vars(one).update(own)

    torch.utils.swap_tensors = swap_tensors
    try:
        yield
    finally:
        torch.utils.swap_tensors = original


class _NoReferences:
    """Answers for the module ``weakref`` where PyTorch asks who refers to what it swaps."""

    @staticmethod
    def getweakrefs(_: Any) -> list[Any]:
        return []


@contextlib.contextmanager
def _weakly_referred() -> Iterator[None]:
    """Let tensors be swapped that are referred to weakly."""
    torch.utils.weakref = _NoReferences
    try:
        yield
    finally:
        torch.utils.weakref = weakref


def _forget(memo: Any, tensor: Any) -> None:
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, weakref.KeyedRef):
            memo.pop(reference.key, None)
