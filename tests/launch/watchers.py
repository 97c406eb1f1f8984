"""Observers that a worker can import by name."""

import os
import signal
from pathlib import Path

from brimful.train.observers import PlainObserver

LOST = Path(os.environ.get("BRIMFUL_TEST_LOST", "/nonexistent"))
"""A file that says that the worker was lost already."""


class Lost(PlainObserver):
    """Loses its process after the third step, once."""

    def on_step(self, report):
        super().on_step(report)
        if report.row.step == 3 and not LOST.exists():
            LOST.write_text("lost")
            os.kill(os.getpid(), signal.SIGKILL)


def lost_once():
    return Lost()


def plain():
    return PlainObserver()
