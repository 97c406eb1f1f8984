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

    Yields:
        A function: has the run been asked to stop?
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if asked.is_set() and not is_spread():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
