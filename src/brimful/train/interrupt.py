"""Stopping between two steps: a signal in the middle of an update would tear it apart."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from brimful.train.world import is_spread

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def catch_interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM into a question that the loop asks after each step.

    A second signal raises KeyboardInterrupt at once; in a group of processes it changes nothing,
    because the terminal and whoever started them both pass the first one on. In another thread than
    the main one signals are not ours to handle, and the answer is always no.

    Yields a function: has the run been asked to stop?
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    is_asked = False  # no Event, whose lock a handler would wait for that interrupts another

    def handle(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked and not is_spread():
            raise KeyboardInterrupt
        is_asked = True

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield lambda: is_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
