"""Running processes of a program on pretend GPUs, each in a process of its own."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from brimful.allocator.config import settings_in
from brimful.cost.outside import middle_outside
from brimful.errors import BrimfulError, RunError
from brimful.hardware.gpus import device_named
from brimful.hardware.names import find_gpu
from brimful.process.child import run_in_child
from brimful.programs.base import FOLDER, Program, Rank, RankPeak

if TYPE_CHECKING:
    from brimful.pretend.session import Run

T = TypeVar("T")
_LINES = 3
"""Of what a program said last, that are shown where it failed."""


class Asked(NamedTuple):
    """What a process is to run.

    Attributes:
        program: The program.
        rank: Which process of it.
        gpu: A card of ``brimful gpus``.
        allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them.
    """

    program: Program
    rank: Rank
    gpu: str
    allocator: str


def run_program(
    program: Program,
    *,
    gpu: str,
    allocator: str,
    done: Callable[[RankPeak], None] = lambda _: None,
) -> tuple[RankPeak, ...]:
    """Run every rank that the program names, as many at once as there are cores.

    ``gpu``: a card of ``brimful gpus``. ``allocator``: settings of the allocator; empty: what the
    program sets for itself. Raises RunError: the program ended with an error.
    """
    told = allocator or settings_in(program.environment)
    asked = [Asked(program, rank, gpu, told) for rank in program.ranks]
    return run_each(_run_rank, asked, done)


def run_each(
    run_one: Callable[[Asked], T],
    asked: Sequence[Asked],
    done: Callable[[T], None] = lambda _: None,
) -> tuple[T, ...]:
    """Run processes of one program, each in a child, as many at once as there are cores.

    ``run_one``: what is done in a child, importable by name. Raises RunError: the program ended
    with an error.
    """

    def run(one: Asked) -> T:
        found = run_in_child(run_one, one)
        done(found)
        return found

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as threads:
        begun = [threads.submit(run, one) for one in asked]
    # What the first process makes for all (compiled helpers, indices) others wait for at a barrier,
    # and here nobody waits: who failed beside it is run once more, behind it.
    first = begun[0].result()
    others = (
        each.result() if each.exception() is None else run(one)
        for one, each in zip(asked[1:], begun[1:], strict=True)
    )
    return (first, *others)


def _run_rank(asked: Asked) -> RankPeak:
    """Run one process; called in a child, which ends with it."""
    report = ran(asked).report(allocator=asked.allocator)
    held = report.reserved.simulated_peak_reserved_bytes
    device, groups = device_named(find_gpu(asked.gpu)), int(asked.program.world_size > 1)
    return RankPeak(
        rank=asked.rank.rank,
        words=asked.rank.words,
        simulated_peak_allocated_bytes=report.simulated_peak_block_bytes,
        simulated_peak_reserved_bytes=held,
        simulated_process_bytes=held + middle_outside(device, num_groups=groups),
        fits=report.at_capacity.failure is None,
        capacity_bytes=report.at_capacity.capacity_bytes,
        unknown_ops=tuple(each.op for each in report.unknown_ops),
        assumptions=(*report.assumptions, *report.beside_torch.stood_in),
    )


def ran(asked: Asked) -> "Run":
    """Run one process on the pretend GPU in this one, which does nothing else afterwards."""
    from brimful.pretend import gpu
    from brimful.pretend.scripts import run_program as run

    program = asked.program
    os.environ.update(program.environment)
    # Programs call compilers by the name of this interpreter (make, pip).
    own = str(Path(sys.executable).parent)
    os.environ["PATH"] = f"{own}{os.pathsep}{os.environ.get('PATH', '')}"
    pretended = gpu(
        asked.gpu, world_size=program.world_size, rank=asked.rank.rank, assume=program.assume
    )
    with (
        tempfile.TemporaryDirectory(prefix="brimful-program-") as folder,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
    ):
        for name, text in program.files:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(FOLDER, folder), "utf-8")
        try:
            with _speaking_into(said.fileno()), pretended:
                run([word.replace(FOLDER, folder) for word in program.argv])
        except BrimfulError:
            raise
        except (Exception, SystemExit) as error:
            said.seek(0)
            raise RunError(_why(asked, error, said.read().splitlines())) from error
    return pretended


@contextlib.contextmanager
def _speaking_into(descriptor: int) -> Iterator[None]:
    """Send what a program and its children say into a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    for stream, _ in kept:
        os.dup2(descriptor, stream)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, saved in kept:
            os.dup2(saved, stream)
            os.close(saved)


def _why(asked: Asked, error: BaseException, said: Sequence[str]) -> str:
    told = [line.strip() for line in said if line.strip()][-_LINES:]
    what = f"exit code {error.code}" if isinstance(error, SystemExit) else type(error).__name__
    words = " | ".join(told) if isinstance(error, SystemExit) else str(error).strip()
    first = words.splitlines()[0] if words and not isinstance(error, SystemExit) else words
    return f"rank {asked.rank.rank} of {asked.program.name} ended with {what}: {first}"
