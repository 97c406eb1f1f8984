"""Whose kernels the pretend GPU imitates: a CUDA card's, or this machine's CPU's.

The two differ in which ops autocast lowers and in what attention saves for backward. A simulation
that is to be compared with a run on CPU must imitate the CPU's.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal

Kernels = Literal["cuda", "cpu"]
_current: ContextVar[Kernels] = ContextVar("kernels", default="cuda")


def current() -> Kernels:
    """Return whose kernels are imitated now."""
    return _current.get()


@contextlib.contextmanager
def imitate(kernels: Kernels) -> Iterator[None]:
    """Imitate the kernels of ``cuda`` or ``cpu`` inside the block."""
    token = _current.set(kernels)
    try:
        yield
    finally:
        _current.reset(token)
