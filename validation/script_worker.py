"""A process of its own for one real run of a script: prints the peak of its tensors, in bytes.

``python validation/script_worker.py SCRIPT [ARGUMENT...]`` runs the script as Python would, under
the profiler, and ends its standard output with a line of JSON. It never imports the tape: what is
measured here knows nothing of what was simulated.
"""

import contextlib
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from brimful.process.library_output import quiet_libraries

_TIMEOUT_S = 600


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What the profiler's allocation events say of a script's run."""

    measured_peak_allocated_bytes: int
    num_events: int


def measure(script: Path, arguments: Sequence[str]) -> Run:
    """Run a script in another process.

    Raises:
        subprocess.CalledProcessError: The script failed; its message is on stderr.
    """
    command = [sys.executable, str(Path(__file__)), str(script), *arguments]
    done = subprocess.run(  # noqa: S603 - our own file
        command, stdout=subprocess.PIPE, check=True, timeout=_TIMEOUT_S
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Run)


def serve(program: list[str]) -> None:
    """Run the program and write what was seen."""
    import torch

    from brimful.measure.allocations import collect, lifetimes, live_bytes

    sys.argv = program
    sys.path[0] = str(Path(program[0]).resolve().parent)
    cpu = torch.profiler.ProfilerActivity.CPU
    with (
        contextlib.redirect_stdout(sys.stderr),
        torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler,
    ):
        runpy.run_path(program[0], run_name="__main__")
    results = profiler.profiler.kineto_results
    events = collect(results.experimental_event_tree()).events
    live = live_bytes(lifetimes(events), len(events.time_ns))
    run = Run(measured_peak_allocated_bytes=int(live.max()), num_events=len(live))
    print(msgspec.json.encode(run).decode())


if __name__ == "__main__":
    quiet_libraries()
    serve(sys.argv[1:])
