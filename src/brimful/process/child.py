"""Processes that this program starts: quiet from their first import, and gone with their parent."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from brimful.process.library_output import quiet_libraries
from brimful.text.terminal import say

A = TypeVar("A")
R = TypeVar("R")
START_METHOD = "spawn"
"""How a process starts. A fork of a process that has asked for a GPU cannot use one; where there is
none, as in the suite, "forkserver" saves each process the seconds that imports take."""
_POLL_S = 0.5
GRACE_S = 15.0
"""What a process may take, once its parent has gone, to end its step and save."""


def run_in_child(run: Callable[[A], R], given: A) -> R:
    """Run something in a process of its own: what is measured in this one never saw the tape.

    Returns what it returned; what it raised is raised.
    """
    context = multiprocessing.get_context(START_METHOD)
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin) as process:
        result: R = process.submit(call_packed, packed(run, given)).result()
        return result


def packed(*called: Any) -> bytes:
    """Pack a function and its arguments, for ``call_packed``."""
    return pickle.dumps(called)


def call_packed(call: bytes) -> Any:
    """Call what ``packed`` packed.

    Unpickling imports the function's module, and all that it needs: only here are the libraries
    told before that to be quiet.
    """
    quiet_libraries()
    run, *given = pickle.loads(call)  # noqa: S301 - packed by this program, for this process
    return run(*given)


def _begin() -> None:
    _follow(_Watched(grace_s=0.0))


class _Watched:
    """A parent that is watched, and how long its child may go on without it."""

    def __init__(self, *, grace_s: float) -> None:
        self.grace_s = grace_s
        self.done = threading.Event()
        self._parent = os.getppid()

    @property
    def has_gone(self) -> bool:
        """Whether the process that started this one, forked it from a server too, has ended."""
        started_by = multiprocessing.parent_process()
        return os.getppid() != self._parent or not (started_by is None or started_by.is_alive())


@contextmanager
def ending_with_parent(*, grace_s: float = GRACE_S) -> Iterator[None]:
    """End this process soon after the one that started it has gone, however that ended.

    What runs inside the block is asked to stop, by SIGTERM, and given a while; from the block's end
    on there is nothing to wait for. Whoever started a group serves its store and collects its
    results, so that its processes would wait for it for ever. Linux can tell a process itself that
    its parent ended, but at most one signal, and no other system can.
    """
    watched = _Watched(grace_s=grace_s)
    _follow(watched)
    try:
        yield
    finally:
        watched.done.set()


def _follow(watched: _Watched) -> None:
    threading.Thread(target=_watch, args=(watched,), name="parent-watch", daemon=True).start()


def _watch(watched: _Watched) -> None:
    while not watched.has_gone:
        time.sleep(_POLL_S)
    if watched.grace_s and not watched.done.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        if not watched.done.wait(watched.grace_s):
            say(
                f"process {os.getpid()} ends in the middle of its step: whoever started it has "
                f"gone, and {watched.grace_s:.0f} s were not enough to save",
                file=sys.stderr,
                flush=True,
            )
    os._exit(1)
