"""What the kernels of a run take from the allocator beside their results, call by call.

``workspaces`` says what one call takes. This keeps what outlives calls: the workspaces of cuBLAS
and cuBLASLt, made at the first product of each thread and stream. PyTorch's engine runs backward
on a thread of its own, so a training run has two of each.
"""

from enum import Enum, auto
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch

from brimful.pretend import (
    cpu_collectives,
    cpu_convolutions,
    cpu_kernels,
    cpu_promotion,
    cpu_recurrent,
    kernels,
    workspaces,
)
from brimful.pretend.workspace_call import Call, Rule
from brimful.pretend.workspace_data import OUTPUTS_ONLY

BLAS = "cuBLAS workspace"
BLAS_LT = "cuBLASLt workspace"

_HANDLE_BYTES = {
    BLAS: workspaces.blas_workspace_bytes,
    BLAS_LT: workspaces.blas_lt_workspace_bytes,
}


class Taken(NamedTuple):
    """Bytes that a call takes.

    Attributes:
        num_bytes: As requested.
        name: Which kernel's, or what for.
        stays: Whether they outlive the call.
    """

    num_bytes: int
    name: str
    stays: bool


class _Kind(Enum):
    """What has to be asked at every call of an operator."""

    NOTHING = auto()
    UNKNOWN = auto()
    WORKSPACE = auto()
    BOUND = auto()
    PRODUCT = auto()


class KernelMemory:
    """Answers for one run, call after call.

    Attributes:
        unknown: How often each operator was called of which nobody knows what its kernel takes.
        bounded: The most that a call may have taken of each operator of which only that is known.
    """

    def __init__(self) -> None:
        """Begin with no handle made."""
        self.unknown: dict[str, int] = {}
        self.bounded: dict[str, int] = {}
        self._kinds: dict[Any, _Kind] = {}
        self._handles: set[tuple[str, Any, bool, int]] = set()

    def forget_handles(self) -> None:
        """Let libraries make their workspaces once more, as in a process of their own."""
        self._handles.clear()

    def concerns(self, func: Any) -> bool:
        """Whether calls of an operator are to be shown to ``of_call``."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        return kind is not _Kind.NOTHING

    def of_call(
        self, func: Any, args: Any, kwargs: Any, out: Any, *, thread: tuple[Any, bool, int]
    ) -> tuple[Taken, ...]:
        """Return what a call takes.

        ``thread``: the device, whether autograd's own thread runs it, and the current stream.
        """
        if self._kinds[func] is _Kind.UNKNOWN:
            self.unknown[str(func)] = self.unknown.get(str(func), 0) + 1
            return ()
        capability = kernels.imitated().capability
        if self._kinds[func] is _Kind.BOUND:
            most = workspaces.bound_bytes(func, args, kwargs, out, capability=capability)
            if most is None:
                self.unknown[str(func)] = self.unknown.get(str(func), 0) + 1
            else:
                self.bounded[str(func)] = max(most, self.bounded.get(str(func), 0))
            return ()
        found = workspaces.workspaces(func, args, kwargs, out, capability=capability)
        if found is None:
            self.unknown[str(func)] = self.unknown.get(str(func), 0) + 1
        taken = tuple(Taken(w.num_bytes, w.why, stays=False) for w in found or ())
        if self._kinds[func] is _Kind.WORKSPACE:
            return taken
        return (*chain(*(self.handle(n, thread) for n in self.handles_of(func, args))), *taken)

    def handles_of(self, func: Any, args: Any) -> tuple[str, ...]:
        """Name the workspaces of libraries that a call needs, whether they are there or not."""
        if self._kinds[func] is not _Kind.PRODUCT:
            return ()
        return (BLAS, BLAS_LT) if workspaces.uses_blas_lt(func, args) else (BLAS,)

    def handle(self, name: str, thread: tuple[Any, bool, int]) -> tuple[Taken, ...]:
        """Make a library's workspace where a thread has none yet."""
        if (name, *thread) in self._handles:
            return ()
        self._handles.add((name, *thread))
        num_bytes = _HANDLE_BYTES[name](kernels.imitated().capability)
        return (Taken(num_bytes, name, stays=True),) if num_bytes else ()


class CpuKernelMemory(KernelMemory):
    """The same of a CPU's kernels: of convolutions, of gloo, and where types are mixed."""

    def concerns(self, func: Any) -> bool:
        """Whether calls of an operator are to be shown to ``of_call``."""
        return _cpu_rule(func) is not None

    def handles_of(self, func: Any, args: Any) -> tuple[str, ...]:  # noqa: ARG002
        """Name none: nothing outlives a call."""
        return ()

    def of_call(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        out: Any,
        *,
        thread: tuple[Any, bool, int],  # noqa: ARG002 - nothing outlives a call
    ) -> tuple[Taken, ...]:
        """Return what a call takes."""
        rule = _cpu_rule(func)
        assert rule is not None
        found = rule(Call(func, args, kwargs, out, kernels.imitated().capability))
        if found is None:
            self.unknown[str(func)] = self.unknown.get(str(func), 0) + 1
            return ()
        return tuple(Taken(w.num_bytes, w.why, stays=False) for w in found)


@cache
def _cpu_rule(func: Any) -> Rule | None:
    if cpu_promotion.is_promoting(func):
        return cpu_promotion.promotion
    modules = (cpu_convolutions, cpu_collectives, cpu_recurrent, cpu_kernels)
    tables = [module.RULES for module in modules]
    return next((table[func] for table in tables if func in table), None)


def _kind(func: Any) -> _Kind:
    if workspaces.uses_blas(func):
        return _Kind.PRODUCT
    if not workspaces.is_known(func):
        return _Kind.UNKNOWN
    row = workspaces.row_of(func)
    if row is None or row.rule == OUTPUTS_ONLY:
        return _Kind.NOTHING
    return _Kind.BOUND if row.is_bound else _Kind.WORKSPACE


def first_tensor(out: Any, args: Any) -> torch.Tensor | None:
    """Return a tensor that tells on which device a call ran; None if there is none."""
    for x in (out, *args):
        if isinstance(x, torch.Tensor):
            return x
        if isinstance(x, (list, tuple)) and x and isinstance(x[0], torch.Tensor):
            return x[0]
    return None
