"""Names for the parts of a training step, told to whoever listens.

The tape, the meter and the trainer need to know where a forward pass ends. The step announces it;
listeners are installed from outside, so that ``build`` knows none of them.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Listener = Callable[[str, bool, Any], None]
"""Called with a phase's name, whether it begins (True) or has ended (False), and its program."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` at the beginning and end of every phase inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def in_backward() -> bool:
    """Whether autograd is at work: a forward pass that runs now is run once more."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - as FSDP2 asks


@contextlib.contextmanager
def phase(name: str, program: Any = None) -> Iterator[None]:
    """Announce a phase of the step, and which program is in it (None: a part that knows none)."""
    for listener in _listeners:
        listener(name, True, program)
    try:
        yield
    finally:
        for listener in _listeners:
            listener(name, False, program)
