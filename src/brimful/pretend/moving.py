"""Modules that are moved: ``module.to("gpu")`` of a model that was built on the host.

PyTorch moves a fake parameter by swapping two tensors, and refuses where anything refers to one of
them weakly; the fake mode's own memory of what it converted does.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def modules_move(mode: FakeTensorMode) -> Iterator[None]:
    """Let modules made under ``mode`` be moved inside the block."""
    original = torch.utils.swap_tensors
    memo = mode.fake_tensor_converter.tensor_memo

    def swap_tensors(one: Any, other: Any) -> None:
        for tensor in (one, other):
            _forget(memo, tensor)
        original(one, other)

    torch.utils.swap_tensors = swap_tensors
    try:
        yield
    finally:
        torch.utils.swap_tensors = original


def _forget(memo: Any, tensor: Any) -> None:
    for reference in weakref.getweakrefs(tensor):
        if isinstance(reference, weakref.KeyedRef):
            memo.pop(reference.key, None)
