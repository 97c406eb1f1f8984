"""Processes that answer, lent to one question at a time; ending one is how a question is cancelled.

Knows nothing of questions: requests and events are JSON. Whoever waits is served in the order of
urgency, then of arrival.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

Request = dict[str, Any]
Event = dict[str, Any]
_LINE_BYTES = 64 * 2**20
"""The longest line that a worker writes: a report with its timeline."""
_PAUSE_S = 1.0
MOST_WAITING = 100
"""Questions that wait for one pool; more are told that the page is busy."""


class BusyError(Exception):
    """Too many wait already."""


class Kept(NamedTuple):
    """How the processes of a pool are kept.

    Attributes:
        size: How many.
        limit_s: Seconds that a question may take; then its process is ended.
        most_questions: After which a process is replaced, so that what it remembers stays bounded.
        nice: How much it stands back behind others.
        ends_late: Whether a process whose asker has gone is ended, or answers to nobody.
    """

    size: int
    limit_s: float
    most_questions: int
    nice: int
    ends_late: bool


class Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Take a process that has begun."""
        self._process = process
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self.num_asked = 0
        self.is_heavy = False

    @classmethod
    async def start(cls, nice: int, own: Mapping[str, str]) -> "Worker":
        """Begin a process; it answers when it is ready.

        ``own``: variables of its environment beside those of this process.
        """
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **own}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _NICE.format(nice), limit=_LINE_BYTES, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        return cls(process)

    async def ready(self) -> None:
        """Wait until it is."""
        await self._read()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, as far as is known."""
        return self._process.returncode is None

    async def send(self, request: Request, limit_s: float, late: Callable[[], None]) -> None:
        """Ask it; when the time is over it is ended, whether or not somebody reads what it says.

        Raises ConnectionError: it has ended. Raises TimeoutError: it was ended.
        """
        self.num_asked += 1
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._end_late, late)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            self._say_late()
            raise

    def _end_late(self, late: Callable[[], None]) -> None:
        self._is_late = True
        self.end()
        late()

    def _say_late(self) -> None:
        if self._is_late:
            raise TimeoutError("a question took longer than it may")

    async def read(self) -> Event | None:
        """Return the next that it says; None: that was all.

        Raises ConnectionError: it has ended, or says what is no event. Raises TimeoutError: it was
        ended, as the question took too long.
        """
        event = await self._read()
        if event["event"] != "end":
            return event
        self.is_heavy = bool(event.get("is_heavy"))
        if self._timer is not None:
            self._timer.cancel()
        return None

    async def _read(self) -> Event:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            event = json.loads(line) if line else None
        except ValueError as error:  # a line without an end, or no JSON
            raise ConnectionError("a process that answers says what is no event") from error
        if not line:
            self._say_late()
            raise ConnectionError("a process that answers has ended")
        if not isinstance(event, dict) or "event" not in event:
            raise ConnectionError("a process that answers says what is no event")
        return event

    def end(self) -> None:
        """End it at once, and whatever it has begun."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
        # What it said and nobody took would keep its pipe open, and with it this record of it.
        pipe = self._process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]  # noqa: SLF001
        if pipe is not None:
            pipe.close()

    async def gone(self) -> None:
        """Wait until it has ended."""
        await self._process.wait()


_NICE = "import os; os.nice({}); from brimful.web.worker import main; main()"


class Pool:
    """Processes of one kind."""

    def __init__(self, kept: Kept) -> None:
        """Say how they are kept; none is begun yet."""
        self._kept = kept
        self._free: list[Worker] = []
        self._every: set[Worker] = set()
        self._waiting: list[tuple[int, int, asyncio.Future[Worker]]] = []
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._own: Mapping[str, str] = {}
        self._is_open = True

    def begin(self, own: Mapping[str, str]) -> None:
        """Begin the processes, and do not wait for them."""
        self._own = own
        for _ in range(self._kept.size):
            self._later(self._add())

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _add(self) -> None:
        """Begin a process, and another after a pause where it ends before it is ready."""
        worker: Worker | None = None
        try:
            worker = await Worker.start(self._kept.nice, self._own)
            self._every.add(worker)
            await worker.ready()
        except OSError:  # none could be begun, or it has ended
            if worker is not None:
                self._drop(worker)
            await asyncio.sleep(_PAUSE_S)
            if self._is_open:
                self._later(self._add())
            return
        self._later(self._watch(worker))
        self._give(worker)

    async def _watch(self, worker: Worker) -> None:
        """Replace a process as soon as it has ended, whoever was waiting for it."""
        await worker.gone()
        self._replace(worker)

    def _give(self, worker: Worker) -> None:
        """Hand a free process to the most urgent that waits; one that has ended to nobody."""
        if not worker.is_alive or worker not in self._every:
            self._replace(worker)
            return
        while self._waiting:
            *_, waiting = heapq.heappop(self._waiting)
            if not waiting.done():
                waiting.set_result(worker)
                return
        self._free.append(worker)

    def _drop(self, worker: Worker) -> None:
        worker.end()
        self._every.discard(worker)
        self._later(worker.gone())

    async def _take(self, urgency: int) -> Worker:
        while self._free:
            # Who has answered most answers again: what the others would remember stays small.
            worker = max(self._free, key=lambda free: free.num_asked)
            self._free.remove(worker)
            if worker.is_alive:
                return worker
            self._replace(worker)
        if len(self._waiting) >= MOST_WAITING:
            self._waiting = [each for each in self._waiting if not each[2].done()]
            heapq.heapify(self._waiting)
        if len(self._waiting) >= MOST_WAITING:
            raise BusyError
        waiting: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (urgency, next(self._numbers), waiting))
        try:
            return await asyncio.wait_for(waiting, self._kept.limit_s)
        except (asyncio.CancelledError, TimeoutError):
            # It may have been handed over in the same moment.
            if waiting.done() and not waiting.cancelled():
                self._give(waiting.result())
            raise

    async def ask(self, request: Request, *, urgency: int = 0) -> AsyncIterator[Event]:
        """Yield what a process says to a request.

        ``urgency``: whoever has less is served first. Raises BusyError: too many wait. Raises
        TimeoutError: it took longer than a question may; its process was ended, whether or not
        somebody took what it said. Raises ConnectionError: the process ended by itself, or said
        what is no event.
        """
        worker = await self._take(urgency)
        is_whole = False
        try:
            await worker.send(request, self._kept.limit_s, lambda: self._replace(worker))
            while (event := await worker.read()) is not None:
                yield event
            is_whole = True
        except (TimeoutError, ConnectionError):
            self._replace(worker)
            raise
        finally:
            if is_whole:
                self._return(worker)
            elif worker in self._every:
                self._leave(worker)

    def _return(self, worker: Worker) -> None:
        if worker.is_heavy or worker.num_asked >= self._kept.most_questions:
            self._replace(worker)
        else:
            self._give(worker)

    def _replace(self, worker: Worker) -> None:
        """End a process and begin another, once."""
        if worker not in self._every:
            return
        if worker in self._free:
            self._free.remove(worker)
        self._drop(worker)
        if self._is_open:
            self._later(self._add())

    def refresh(self) -> None:
        """Replace every process, those that answer when they have: what is known has changed."""
        for worker in self._every:
            worker.num_asked = self._kept.most_questions
        free, self._free = self._free, []
        for worker in free:
            self._replace(worker)

    def _leave(self, worker: Worker) -> None:
        """Leave a question whose asker has gone: end it, or let it answer to nobody."""
        if self._kept.ends_late:
            self._replace(worker)
        else:
            self._later(self._drain(worker))

    async def _drain(self, worker: Worker) -> None:
        try:
            while await worker.read() is not None:
                pass
        except (TimeoutError, ConnectionError):
            self._replace(worker)
        else:
            self._return(worker)

    async def close(self) -> None:
        """End every process."""
        self._is_open = False
        for worker in [*self._every]:
            self._drop(worker)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=5)
            for task in late:
                task.cancel()
