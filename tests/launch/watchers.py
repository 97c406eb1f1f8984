"""Observers that a worker can import by name."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import msgspec

from brimful.process.child import ending_with_parent
from brimful.train.observers import PlainObserver

PATIENCE_S = 600.0


class Lost(PlainObserver):
    """Loses its process after the third step, once: a file says that it was lost already."""

    def __init__(self, lost):
        super().__init__()
        self._lost = lost

    def on_message(self, text):
        super().on_message(text)
        if text.startswith("a process was lost"):
            self._lost.with_name("told").write_text(text)

    def on_step(self, report):
        super().on_step(report)
        if report.row.step == 3 and not self._lost.exists():
            self._lost.write_text("lost")
            os.kill(os.getpid(), signal.SIGKILL)


def plain():
    return PlainObserver()


def doubled(number):
    return 2 * number


def launch_endlessly(folder):
    """Train a tiny model in two processes for more steps than anybody waits for."""
    from tests.launch.test_local import plan_of, settings_of

    from brimful.launch.local import Group, launch

    folder = Path(folder)
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    plan = plan_of()
    job = msgspec.structs.replace(plan.job, num_steps=100_000)
    settings = settings_of(folder / "run", folder / "text.txt", checkpoint_every_steps=100_000)
    launch(msgspec.structs.replace(plan, job=job), settings, Group(), observer=plain)


def stuck_child(folder):
    """Start a process that hears no signal, as one that waits for others in a collective."""
    process = multiprocessing.get_context("spawn").Process(target=stuck, args=(folder,))
    process.start()
    process.join()


def stuck(folder):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with ending_with_parent(grace_s=0.5):
        Path(folder, "begun").write_text("yes")
        time.sleep(PATIENCE_S)
