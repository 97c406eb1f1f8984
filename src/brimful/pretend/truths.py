"""What checks of numbers say where all numbers are ordinary: nothing is NaN or infinite.

Programs look at what they compute before they go on: ``torch.isfinite(loss)``,
``torch.isnan(grads).any()``, the ranges of a distribution's parameters. On pretend tensors these
have no values, but where training goes well all of them pass. So an answer goes with a tensor
through the operations that checks are made of, as PyTorch writes them (``isfinite`` is
``(x == x) * (x.abs() != inf)``), until somebody asks for it.

Sources: ``aten/src/ATen/native/TensorCompare.cpp``; ``torch/distributions/distribution.py`` asks
``torch._is_all_true``, and nothing else does where it would decide what runs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

_NAME = "_brimful_truth"
_aten = torch.ops.aten
Rule = Callable[[Any], bool | None]
"""From an operation's arguments to what its result says in each of its values; None: unknown."""


def truth_of(tensor: Any) -> bool | None:
    """Return what all values of a tensor say; None: nobody knows."""
    return getattr(tensor, _NAME, None)


def follow(func: Any, args: Any, out: Any) -> None:
    """Note what an operation's result says, if it is one of those that checks are made of.

    Args:
        func: The operation.
        args: Its arguments.
        out: Its result.
    """
    rule = _RULES.get(func)
    if rule is not None and isinstance(out, torch.Tensor) and (told := rule(args)) is not None:
        setattr(out, _NAME, told)


def _equal(args: Any) -> bool | None:
    """``x == x`` holds of all that is no NaN; nothing is infinite."""
    if args[0] is args[1]:
        return True
    return False if _is_infinite(args[1]) else None


def _unequal(args: Any) -> bool | None:
    told = _equal(args)
    return None if told is None else not told


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _same(args: Any) -> bool | None:
    return truth_of(args[0])


def _none(args: Any) -> bool | None:
    """A count of what holds nowhere is 0; of the others it is unknown."""
    return False if truth_of(args[0]) is False else None


def _opposite(args: Any) -> bool | None:
    told = truth_of(args[0])
    return None if told is None else not told


def _both(args: Any) -> bool | None:
    told = [truth_of(args[0]), truth_of(args[1])]
    return False if False in told else None if None in told else True


def _either(args: Any) -> bool | None:
    told = [truth_of(args[0]), truth_of(args[1])]
    return True if True in told else None if None in told else False


def _above(args: Any) -> bool | None:
    """A count of 0 is not above 0."""
    return False if truth_of(args[0]) is False and args[1] == 0 else None


def _every(args: Any) -> bool:
    """What is asked of all values of a distribution's parameters holds."""
    return truth_of(args[0]) is not False


_RULES: Mapping[Any, Rule] = {
    **dict.fromkeys(
        (_aten.isnan.default, _aten.isinf.default, _aten.isposinf.default, _aten.isneginf.default),
        lambda _args: False,
    ),
    **dict.fromkeys((_aten.eq.Tensor, _aten.eq.Scalar), _equal),
    **dict.fromkeys((_aten.ne.Tensor, _aten.ne.Scalar), _unequal),
    **dict.fromkeys((_aten.logical_not.default, _aten.bitwise_not.default), _opposite),
    **dict.fromkeys(
        (_aten.mul.Tensor, _aten.bitwise_and.Tensor, _aten.logical_and.default), _both
    ),
    **dict.fromkeys(
        (_aten.add.Tensor, _aten.bitwise_or.Tensor, _aten.logical_or.default), _either
    ),
    **dict.fromkeys(
        (
            _aten.all.default, _aten.all.dim, _aten.any.default, _aten.any.dim, _aten.view.default,
            _aten._unsafe_view.default, _aten.select.int, _aten.detach.default,  # noqa: SLF001
            _aten.alias.default, _aten.squeeze.default, _aten.clone.default,
            _aten._is_any_true.default,  # noqa: SLF001
        ),
        _same,
    ),
    **dict.fromkeys(
        (_aten.sum.default, _aten.sum.dim_IntList, _aten.count_nonzero.default), _none
    ),
    _aten._to_copy.default: _same,  # noqa: SLF001
    _aten.gt.Scalar: _above,
    _aten._is_all_true.default: _every,  # noqa: SLF001
}  # fmt: skip
