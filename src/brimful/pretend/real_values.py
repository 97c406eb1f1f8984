"""What a program gets when it asks a pretend tensor for a value, or for a size that values decide.

A number is served where the step's memory does not hang on it: 0.0 for a float (a loss that is
logged, GradScaler's count of infinities), 1 for an integer (a count that is divided by), False for
a boolean (``if loss < best``); ``known_values.py`` knows some. A *size* that values decide cannot
be known: it ends the run with one sentence, unless everything may be taken as selected, the largest
size it can be.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from brimful.errors import UnsupportedError
from brimful.pretend.ctc import FORWARD as CTC
from brimful.pretend.ctc import of_longest


class UnknownValueError(UnsupportedError):
    """A size hangs on values that a pretend tensor does not have."""


_SELECTING = frozenset({
    torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default,
    torch.ops.aten.index.Tensor, *CTC,
})  # fmt: skip
"""Operations whose largest result is known."""
UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException)
_aten = torch.ops.aten
_EQUAL = _aten.equal.default
NUMBERS = frozenset({_aten._local_scalar_dense.default, _EQUAL})  # noqa: SLF001
"""Operations whose result is a number: ``item`` and ``torch.equal``."""


def scalar(func: Any, args: Any, stand_ins: list[Any]) -> Any:
    """Return what ``tensor.item()`` is answered: its value where known, else a stand-in.

    ``func``: one of ``NUMBERS``. ``stand_ins``: takes what stands for what the GPU would compute.
    """
    try:
        return func(*args)
    except DataDependentOutputException:
        stand_ins.append(_stand_in(func, args[0]))
        return stand_ins[-1]


def _stand_in(func: Any, tensor: torch.Tensor) -> float | int | bool:
    if func is _EQUAL:
        return False
    if tensor.dtype.is_floating_point:
        return 0.0
    return False if tensor.dtype == torch.bool else 1


def everything_selected(func: Any, args: Any) -> Any:
    """Return what ``func`` would if its mask selected everything; None: it is no such function."""
    if func is _aten.nonzero.default:
        return args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
    if func is _aten.masked_select.default:
        return args[0].new_empty((torch.broadcast_shapes(args[0].shape, args[1].shape).numel(),))
    if func is _aten.index.Tensor:
        return func(args[0], [place for index in args[1] for place in _places(index)])
    return of_longest(func, args)


def _places(index: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Return what a mask stands for that selects everything: a position in each dimension."""
    if index is None or index.dtype not in {torch.bool, torch.uint8}:
        return [index]
    return [index.new_empty(index.numel(), dtype=torch.int64) for _ in range(index.dim())]


def refusal(func: Any, line: str) -> UnknownValueError:
    """Return the one sentence for an operation that needs values nobody has.

    ``line``: where it was called, ``file:line``.
    """
    words = (
        f"{line or 'the program'} calls {func}, whose result hangs on values that a pretend tensor "
        "does not have; use a fixed size there (torch.where, a padded mask)"
    )
    if func not in _SELECTING:
        return UnknownValueError(words)
    return UnknownValueError(
        f"{words}, or pass --assume-all-selected to count the largest result it can have",
        nearest={"assume_all_selected": True},
    )
