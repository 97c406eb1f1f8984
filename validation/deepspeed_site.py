"""A folder that DeepSpeed can be imported from, made for one proof, and processes that use it."""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from deepspeed_asks import Ask, Told

from brimful.errors import RunError

VERSION = "0.19.8"
PACKAGES = (
    f"deepspeed=={VERSION}", "hjson==3.1.0", "ninja", "py-cpuinfo==9.0.0", "msgpack", "einops",
)  # fmt: skip
"""What DeepSpeed needs beside what Brimful has."""
SITE = "BRIMFUL_DEEPSPEED_SITE"
"""A variable that may name a folder which has it already."""
_WORKER = Path(__file__).parent / "deepspeed_worker.py"
_TIMEOUT_S = 3600.0
_POLL_S = 0.2


def has_deepspeed() -> bool:
    """Whether a process of ours can import DeepSpeed without a throwaway folder."""
    return SITE in os.environ or importlib.util.find_spec("deepspeed") is not None


def version_at(site: str) -> str:
    """Return the version of the DeepSpeed that a site has; empty: the installed one."""
    found = metadata.distributions(path=[site] if site else sys.path)
    return next(d.version for d in found if d.name == "deepspeed")


@contextlib.contextmanager
def deepspeed_site() -> Iterator[str]:
    """Yield what ``PYTHONPATH`` must be for DeepSpeed to be found; empty where it is installed.

    Raises:
        subprocess.CalledProcessError: It cannot be installed; pip says why.
    """
    if has_deepspeed():
        yield os.environ.get(SITE, "")
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        command.append("--no-build-isolation")  # its setup wants torch, which is here
        environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        subprocess.run([*command, *PACKAGES], check=True, env=environment)  # noqa: S603 - fixed
        yield folder


def run_group(ask: Ask, site: str, *, num_processes: int) -> list[list[Told]]:
    """Run cases in a group of processes that this one starts, with the variables of ``torchrun``.

    Args:
        ask: The cases.
        site: Of ``deepspeed_site``.
        num_processes: One is told of no group.

    Returns:
        What each process saw of each case, by rank.

    Raises:
        RunError: One failed; what it said is on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder, "ask.json")
        request.write_bytes(msgspec.json.encode(ask))
        run_processes([str(_WORKER), str(request), folder], site, num_processes=num_processes)
        answers = [Path(folder, f"{rank}.json").read_bytes() for rank in range(num_processes)]
    return [msgspec.json.decode(answer, type=list[Told]) for answer in answers]


def run_processes(command: Sequence[str], site: str, *, num_processes: int) -> None:
    """Run a script in processes with the variables of ``torchrun``, and wait for all.

    Args:
        command: The script and its arguments.
        site: Of ``deepspeed_site``.
        num_processes: One is told of no group.

    Raises:
        RunError: One failed; what it said is on stderr.
    """
    port = _free_port()
    _wait_for(
        [
            subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, *command],
                env={**_environment(site), **_place(rank, num_processes, port)},
            )
            for rank in range(num_processes)
        ]
    )


def _environment(site: str) -> dict[str, str]:
    paths = [site, os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


def _place(rank: int, num_processes: int, port: int) -> dict[str, str]:
    if num_processes == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def _wait_for(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all; where one fails, end the others: they would wait for it."""
    end_s = time.monotonic() + _TIMEOUT_S
    try:
        while any(process.poll() is None for process in started):
            time.sleep(_POLL_S)
            if time.monotonic() > end_s or any(process.poll() for process in started):
                break
    finally:
        for process in started:
            process.kill()
            process.wait()
    codes = [process.returncode for process in started]
    if any(codes):
        raise RunError(f"processes of DeepSpeed's proof ended with exit codes {codes}")
