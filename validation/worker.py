"""A process of its own for one real run: reads a request on stdin, writes what it saw to stdout.

It never imports the tape: what is measured here knows nothing of what was simulated.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from evidence import Case
from median_interval import half_width

from brimful.process.library_output import quiet_libraries
from brimful.values.plan import MemoryItem

NUM_WARM_STEPS = 2
"""The first makes the optimizer state, the second is the first with it."""
_TIMEOUT_S = 900


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        case: The job and its strategy.
        num_timed_steps: Steps to time at least after the first two; 0 meters these instead.
        max_timed_steps: At most, while their median is not known as well as it should be.
        known_to: How well: half of its interval, relative to it.
    """

    case: Case
    num_timed_steps: int
    max_timed_steps: int = 0
    known_to: float = 0.0


class Metered(msgspec.Struct, frozen=True, kw_only=True):
    """What the meter read."""

    measured_peak_allocated_bytes: int
    items: tuple[MemoryItem, ...]
    measured_peak_host_bytes: int | None = None


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of every timed step."""

    measured_steps_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Their median."""
        return statistics.median(self.measured_steps_s)


def meter(case: Case) -> Metered:
    """Meter the first two steps of a case in another process."""
    return msgspec.json.decode(_answer(Request(case=case, num_timed_steps=0)), type=Metered)


def clock(case: Case, *, least: int, most: int, known_to: float) -> Timed:
    """Time steps of a case in another process, until their median is known.

    Args:
        case: What to run.
        least: Steps.
        most: Steps.
        known_to: How well the median should be known, relative to it.
    """
    asked = Request(case=case, num_timed_steps=least, max_timed_steps=most, known_to=known_to)
    return msgspec.json.decode(_answer(asked), type=Timed)


def _answer(request: Request) -> bytes:
    """Run this very file.

    Raises:
        subprocess.CalledProcessError: The run failed; its message is on stderr.
    """
    command = [sys.executable, str(Path(__file__))]
    done = subprocess.run(  # noqa: S603 - our own file
        command,
        input=msgspec.json.encode(request),
        stdout=subprocess.PIPE,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return done.stdout


def serve() -> None:
    """Answer the request on stdin."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    answer = _timed(request) if request.num_timed_steps else _metered(request.case)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


def _metered(case: Case) -> Metered:
    """Meter two steps, in the order in which ``train`` does."""
    from brimful.measure.meter import CpuMeter

    instrument = CpuMeter()
    instrument.start()
    program = _build(case)
    for _ in range(NUM_WARM_STEPS):
        _step(program, case)
    instrument.stop(program)
    reading = instrument.reading
    assert reading is not None
    return Metered(
        measured_peak_allocated_bytes=reading.measured_peak_allocated_bytes,
        items=reading.items,
        measured_peak_host_bytes=reading.measured_peak_host_bytes,
    )


def _timed(request: Request) -> Timed:
    program = _build(request.case)
    for _ in range(NUM_WARM_STEPS):
        _step(program, request.case)
    steps_s: list[float] = []
    while len(steps_s) < request.num_timed_steps or (
        len(steps_s) < request.max_timed_steps
        and half_width(steps_s, statistics.median(steps_s)) > request.known_to
    ):
        start_s = time.perf_counter()
        _step(program, request.case)
        steps_s.append(time.perf_counter() - start_s)
    return Timed(measured_steps_s=tuple(steps_s))


def _build(case: Case):  # type: ignore[no-untyped-def]  # noqa: ANN202 - torch is not imported yet
    import torch

    from brimful.build.assemble import build_program

    return build_program(case.job, case.strategy, torch.device("cpu"))


def _step(program, case: Case) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001 - as above
    """Take one optimizer step on random tokens and wait for its loss."""
    import torch

    from brimful.build.batch import Batch, count_targets
    from brimful.build.step import train_step

    ids = torch.randint(0, case.job.model.vocab_size, (case.job.global_batch, case.job.seq_len))
    batches = [Batch(rows, rows) for rows in ids.split(case.strategy.micro_batch)]
    num_targets = count_targets(batches)
    rate = case.job.learning_rate
    return float(train_step(program, batches, num_targets=num_targets, learning_rate=rate).loss)


if __name__ == "__main__":
    quiet_libraries()
    serve()
