"""A progress line for anything over two seconds: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from brimful.text.terminal import console, is_silenced, say

PLAIN_EVERY_S = 5.0
"""How often a line says where a task is, where there is no terminal to show it."""


class Progress:
    """Shows how much of one task is done."""

    def __init__(
        self,
        what: str,
        *,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
        every_s: float = PLAIN_EVERY_S,
    ) -> None:
        """Name the task."""
        self._every_s = every_s
        self._clock = clock
        self._said_s = clock()
        self._what = what
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        """Begin."""
        if self._quiet or is_silenced():
            return self
        if not sys.stderr.isatty():
            say(f"{self._what} ...", file=sys.stderr)
            return self
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self._what, total=1.0)
        self._bar.start()
        return self

    def update(self, stage: str, share: float) -> None:
        """Say what is being done and the share of the whole that is behind."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"{self._what}: {stage}", completed=share)

    def report(self, stage: str, share: float) -> None:
        """Do as ``update`` does; where there is no terminal, say it in a line now and then."""
        self.update(stage, share)
        now_s = self._clock()
        if self._bar is None and now_s - self._said_s >= self._every_s:
            self._said_s = now_s
            self.note(f"{self._what}: {stage}")

    def note_stage(self, stage: str, share: float) -> None:
        """Do as ``update`` does; where there is no terminal, say each stage in a line."""
        if self._bar is None:
            self.note(f"{self._what}: {stage}")
        self.update(stage, share)

    def note(self, text: str) -> None:
        """Say a sentence: above the bar on a terminal, as a line of its own elsewhere."""
        if self._bar is not None:
            self._bar.console.print(text)
        elif not self._quiet:
            say(text, file=sys.stderr, flush=True)

    def update_share(self, share: float) -> None:
        """Say the share of the whole that is behind; the name of the task says the rest."""
        if self._bar is not None:
            self._bar.update(self._task, completed=share)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        if self._bar is not None:
            self._bar.stop()
