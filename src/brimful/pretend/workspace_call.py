"""What a rule of the workspace table is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

FLOAT_BYTES = 4
MEASURED = (9, 0)
"""Capability of the card on which some rules were measured, an H200; they say nothing of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Bytes that a kernel takes from PyTorch's caching allocator for itself.

    Attributes:
        num_bytes: As requested, before the allocator rounds.
        why: What they are for.
    """

    num_bytes: int
    why: str


Workspaces = tuple[Workspace, ...]


class Call(NamedTuple):
    """One dispatched operation.

    Attributes:
        func: The operator overload.
        args: Positional arguments, as dispatched: defaults may be missing.
        kwargs: Keyword arguments.
        out: What it returned.
        capability: Compute capability of the card.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    capability: tuple[int, int]

    def arg(self, name: str) -> Any:
        """Return the argument of this name, or the schema's default."""
        if name in self.kwargs:
            return self.kwargs[name]
        for place, argument in enumerate(self.func._schema.arguments):  # noqa: SLF001
            if argument.name == name:
                return self.args[place] if place < len(self.args) else argument.default_value
        raise KeyError(name)


Rule = Callable[[Call], Workspaces | None]
"""Returns None where nobody knows."""


def size(num_bytes: int, why: str) -> Workspaces:
    """Return one workspace, or none where it would be empty."""
    return (Workspace(num_bytes=num_bytes, why=why),) if num_bytes > 0 else ()


def copied(x: torch.Tensor | None, why: str) -> Workspaces:
    """Return the copy that ``x.contiguous()`` makes: nothing where x is contiguous already."""
    if x is None or x.is_contiguous():
        return ()
    return size(x.numel() * x.element_size(), why)


def total(parts: Workspaces) -> int:
    """Add up workspaces, in bytes."""
    return sum(part.num_bytes for part in parts)


def largest(*stages: Workspaces) -> Workspaces:
    """Of stages of which each gives back its bytes before the next, return the largest."""
    return max(stages, key=total)


def round_up(value: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-value // multiple) * multiple


def ceil_div(value: int, by: int) -> int:
    """Divide, rounding up."""
    return -(-value // by)


def is_deterministic() -> bool:
    """Tell whether deterministic algorithms are asked for, and not as a warning only."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    )
