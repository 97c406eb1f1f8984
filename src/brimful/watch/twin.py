"""A copy of a model and an optimizer that takes no memory, for the pretend GPU.

Every tensor becomes one of the same shape and type on the device that is pretended; everything else
of the objects is copied as Python copies it, so that adapters, hooks, tied and frozen parameters
and settings are there as they are in the run.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.errors import UnsupportedError

DEVICE = "cuda"
"""As programs call the pretend GPU."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Pair(NamedTuple):
    """The copies."""

    model: torch.nn.Module
    optimizer: Any


def twins(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Pair:
    """Copy a model and its optimizer as they were before the first step.

    Args:
        model: On any device.
        optimizer: Of its parameters; what state it has is left out.

    Raises:
        UnsupportedError: A tensor is of a class of its own, such as a quantised weight.
    """
    # Say for every tensor of a model what stands for it.
    memo: dict[int, Any] = {}
    for name, tensor in _tensors(model):
        if type(tensor) not in _PLAIN:
            raise UnsupportedError(
                f"{name} is a {type(tensor).__name__}, which this version does not copy to the "
                f"pretend GPU; only plain tensors are"
            )
        memo[id(tensor)] = _like(tensor)
        if tensor.grad is not None:
            memo[id(tensor.grad)] = None
    state, optimizer.state = optimizer.state, type(optimizer.state)(dict)
    try:
        return Pair(*copy.deepcopy((model, optimizer), memo))
    finally:
        optimizer.state = state


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _like(tensor: torch.Tensor) -> torch.Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


class Noted(NamedTuple):
    """A tensor of a batch, without memory of PyTorch's.

    Attributes:
        shape: Of any number of dimensions.
        dtype: Its type.
        values: Integers and booleans, by which programs decide; None: other numbers decide nothing.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: NDArray[Any] | None


def note(value: Any) -> Any:
    """Remember a batch: tensors as ``Noted``, containers by their parts, anything else as it is."""
    if isinstance(value, torch.Tensor):
        is_whole = not (value.is_floating_point() or value.is_complex())
        values = np.array(value.detach().cpu().numpy()) if is_whole else None
        return Noted(tuple(value.shape), value.dtype, values)
    return _mapped(note, value)


def recall(value: Any) -> Any:
    """Make a batch again, on the host of the pretend GPU."""
    if isinstance(value, Noted):
        if value.values is not None:
            return torch.from_numpy(value.values.copy())
        return torch.empty(value.shape, dtype=value.dtype)
    return _mapped(recall, value)


def _mapped(function: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: function(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [function(part) for part in value]
    return value
