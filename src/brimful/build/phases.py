"""Names for the parts of a training step, told to whoever listens.

The tape, the meter and the trainer need to know where a forward pass ends. The step announces it;
listeners are installed from outside, so that ``build`` knows none of them.
"""

import contextlib
from collections.abc import Callable, Iterator

Listener = Callable[[str, bool], None]
"""Called with a phase's name and whether it begins (True) or has ended (False)."""

_listeners: list[Listener] = []


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call ``listener`` at the beginning and end of every phase inside the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Announce a phase of the step."""
    for listener in _listeners:
        listener(name, True)
    yield
    for listener in _listeners:
        listener(name, False)
