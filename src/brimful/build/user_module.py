"""A module of the user's: imported by the name that was typed, built on the device it is to be on.

The factory is called anew wherever the model is needed: on ``meta`` for its shapes, on the device
for its weights, so that every parameter is drawn there by the user's own code, and plainly for its
data. It should therefore be cheap but for the model itself: data is best read when a sample is.
"""

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from brimful.errors import InputError
from brimful.models.module import is_factory

_REASON_LENGTH = 160
_NEEDED = ("model", "loss", "sample")


class TrainableModule(Protocol):
    """What a factory returns: anything with these attributes.

    Dropout layers are switched off unless the job says ``dropout=model``. A module that takes
    statistics over its batch (``BatchNorm``) runs in one micro-batch a step only
    (``build.exactness``).

    Attributes:
        model: The module; it is given ``inputs`` alone.
        dataset: Optional: what it is trained on, a map-style dataset of (input, label) pairs.
    """

    model: nn.Module
    dataset: Any

    def loss(self, output: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the *sum* of the losses of a micro-batch, a scalar.

        A mean would weigh micro-batches alike, whatever they hold. What is trained is the sum
        over the step divided by the number of labels that are not ``IGNORE_INDEX``.
        """
        ...

    def sample(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of the largest shapes that training will see, on the CPU.

        ``batch``: samples; the first dimension of both tensors.
        """
        ...


class UserModule(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """The user's module and its loss, as the build path holds it."""

    def __init__(self, name: str, made: TrainableModule) -> None:
        """Keep both.

        ``name``: the factory, ``package.module:function``.
        """
        super().__init__()
        self.name = name
        self.adopt(made)

    def adopt(self, made: TrainableModule) -> None:
        """Hold what the factory returned: the module, and the loss that belongs to it."""
        self.model = made.model
        self.summed = made.loss if not isinstance(made.loss, nn.Module) else made.loss.forward

    def forward(self, inputs: torch.Tensor) -> Any:
        """Run the user's module."""
        return self.model(inputs)


def make(name: str) -> TrainableModule:
    """Call a factory.

    ``name``: ``package.module:function``, looked up in the current folder as well.
    """
    factory = _find(name)
    try:
        made = factory()
    except Exception as error:  # the user's code
        raise InputError(f"{name}() failed ({_reason(error)}); mend it") from error
    lacking = [field for field in _NEEDED if not hasattr(made, field)]
    if lacking:
        raise InputError(
            f"{name}() returned a {type(made).__name__} without {', '.join(lacking)}; return an "
            f"object with {', '.join(_NEEDED)}"
        )
    if not isinstance(made.model, nn.Module):
        raise InputError(
            f"the model of {name}() is a {type(made.model).__name__}; give a torch.nn.Module"
        )
    trainable: TrainableModule = made
    return trainable


@cache
def make_on_meta(name: str) -> TrainableModule:
    """Call a factory with its model on the ``meta`` device: shapes and code, no bytes.

    Raises InputError: as ``make``.
    """
    with torch.device("meta"):
        return make(name)


def user_data(name: str) -> Any:
    """Return the dataset of a factory's, on the CPU; None where it has none.

    Raises InputError: as ``make``.
    """
    return getattr(make(name), "dataset", None)


def take_sample(name: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a factory's sample of inputs and labels, on the CPU."""
    try:
        inputs, labels = make_on_meta(name).sample(batch)
    except Exception as error:  # the user's code, or what it returned is no pair
        raise InputError(
            f"sample({batch}) of {name}() failed ({_reason(error)}); return inputs and labels"
        ) from error
    for part, tensor in (("inputs", inputs), ("labels", labels)):
        shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else None
        if not shape or shape[0] != batch:
            raise InputError(
                f"sample({batch}) of {name}() returned {part} of shape {shape}; the first "
                f"dimension must be {batch}"
            )
        if tensor.device.type != "cpu":
            raise InputError(
                f"sample({batch}) of {name}() returned {part} on {tensor.device}; make them on the "
                f"CPU, and inside of sample"
            )
    return inputs, labels


def _find(name: str) -> Callable[[], Any]:
    if not is_factory(name):
        raise InputError(f"{name!r} names no factory; write package.module:factory")
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as python -m has it; the user's module may import its neighbours
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's code
        raise InputError(
            f"{module_name} of {name} cannot be imported ({_reason(error)}); run where Python "
            f"finds it"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise InputError(f"{module_name} has no {path}; check {name}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"{name} is a {type(found).__name__}; give a function that makes a model")
    factory: Callable[[], Any] = found
    return factory


def _reason(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
    return text[:_REASON_LENGTH]


def without_dropout(model: nn.Module) -> None:
    """Switch off the dropout layers of a module, in place."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001
            module.p = 0.0
