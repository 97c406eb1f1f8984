"""Which operation made the first Inf or NaN: every operation is looked at, which is slow."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from brimful.build.own import own_memory
from brimful.build.phases import in_backward
from brimful.doctor.records import GRADIENTS, FirstBad

_FILLS = ("empty", "full", "fill", "where", "scalar_tensor", "resize", "add")
"""Operations that make memory without values, or masks: their minus infinities are meant."""
_UNSET = ("empty", "resize")


class _Made(NamedTuple):
    op: str
    module: str
    is_backward: bool


class BadOps(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Notes the first operations that turn finite numbers into Inf or NaN."""

    def __init__(self, inside: Callable[[], str]) -> None:
        """Look along."""
        super().__init__()
        self._inside = inside
        self._made: list[_Made] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and look at what goes in and what comes out."""
        del types
        given = kwargs or {}
        was_finite = all(map(_is_finite, tree_leaves((args, given))))
        out = func(*args, **given)
        name = func.__name__.partition(".")[0]
        if was_finite and name not in _UNSET and not name.startswith(_UNSET):
            is_mask = any(part in name for part in _FILLS)
            if any(_is_bad(x, is_mask=is_mask) for x in tree_leaves(out)):
                self._made.append(_Made(f"aten.{name}", self._inside(), in_backward()))
        return out

    def op_of(self, bad: FirstBad) -> str | None:
        """Name the operation behind a first Inf or NaN; None where none was seen there."""
        backward = bad.kind in GRADIENTS
        for made in self._made:
            if made.is_backward == backward and (backward or made.module.startswith(bad.name)):
                return made.op
        return next((made.op for made in self._made if made.is_backward == backward), None)


def _is_finite(value: Any) -> bool:
    return not _is_bad(value, is_mask=False)


def _is_bad(value: Any, *, is_mask: bool) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    piece = own_memory(value).detach()
    if not piece.numel() or piece.dtype not in _SEEN:
        return False
    low, high = torch.stack(torch.aminmax(piece)).tolist()
    return not (high < float("inf") and (is_mask or low > float("-inf")))


_SEEN = frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
