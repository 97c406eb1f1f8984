"""Environments of the targets' own, made for one proof, and processes in them.

Brimful's pins do not hold there: each target has the newest version that pip takes with this torch.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from brimful.errors import RunError

SITE = "BRIMFUL_EXPORTER_SITES"
"""A variable that may name a folder where environments are kept from one proof to the next."""
PEERS, TITAN, AXOLOTL, FACTORY = "peers", "torchtitan", "axolotl", "llama-factory"
_PACKAGES = {
    PEERS: ("deepspeed", "accelerate", "transformers", "setuptools", "pyyaml", "trl", "peft"),
    # torchtitan imports triton, which torch has along on machines with a GPU only.
    TITAN: ("torchtitan", "triton"),
    AXOLOTL: (
        "accelerate==1.13.0", "transformers==5.16.1", "pydantic==2.12.5", "nvidia-ml-py",
        "zstandard", "pillow", "pyyaml",
    ),
    FACTORY: (
        "transformers==5.6.0", "accelerate==1.11.0", "peft==0.18.1", "trl==0.24.0",
        "datasets==4.0.0", "deepspeed", "setuptools", "omegaconf", "pyyaml",
    ),
}  # fmt: skip
_ALONE = {AXOLOTL: "axolotl", FACTORY: "llamafactory"}
"""What is installed without what it asks for, of which its parser needs only the packages above:
among the rest are packages of CUDA, and pages that are served."""
_SITE_OF = {"torchtitan": TITAN, "axolotl": AXOLOTL, "llama-factory": FACTORY}
_HERE = Path(__file__).parent
_TIMEOUT_S = 900


@contextlib.contextmanager
def sites() -> Iterator[Path]:
    """Yield the folder of the environments, with all of them made.

    Raises:
        subprocess.CalledProcessError: One cannot be installed; pip says why.
    """
    with contextlib.ExitStack() as stack:
        kept = os.environ.get(SITE)
        folder = Path(kept or stack.enter_context(tempfile.TemporaryDirectory()))
        for name, packages in _PACKAGES.items():
            if not (folder / name / "bin" / "python").is_file():
                make_environment(folder / name, packages, alone=_ALONE.get(name, ""))
        yield folder


def make_environment(folder: Path, packages: Sequence[str], *, alone: str = "") -> None:
    """Make an environment with this torch.

    Args:
        folder: Where.
        packages: As pip takes them.
        alone: A package that is installed without what it asks for; empty: there is none.

    Raises:
        subprocess.CalledProcessError: One cannot be installed; pip says why.
    """
    version = torch.__version__.split("+")[0]
    environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q"]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)  # noqa: S603 - fixed
    command = [*pip, f"torch=={version}", *packages]
    subprocess.run(command, check=True, env=environment)  # noqa: S603 - fixed
    if alone:
        command = [*pip, "--no-deps", alone]
        subprocess.run(command, check=True, env=environment)  # noqa: S603 - fixed


def parse(site: Path, target: str, folder: Path, asks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hand files to a target's parser.

    Args:
        site: Of ``sites``.
        target: As ``--to`` has it.
        folder: Holds the files.
        asks: Each names a ``file`` and the ``world`` of its plan.

    Returns:
        ``versions``, and ``told``: what was read of each file, and what was said against it.

    Raises:
        RunError: The process itself failed.
    """
    (folder / "ask.json").write_text(json.dumps(list(asks)))
    _run([*_python(site, target), str(_HERE / "exporters_worker.py"), target, str(folder)], site)
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return told


def execute(site: Path, target: str, export: Path, folder: Path, num_processes: int) -> list[float]:
    """Run an export on CPU processes, by the target's own launcher where it has one.

    Args:
        site: Of ``sites``.
        target: As ``--to`` has it.
        export: The exported file.
        folder: Weights and rows of ``peer_site``.
        num_processes: That the plan has.

    Returns:
        The loss of every step.

    Raises:
        RunError: It failed; what it said is in the error.
    """
    out = folder / f"{target}.losses.json"
    out.unlink(missing_ok=True)
    what = [str(_HERE / "exporters_runner.py"), target, str(export), str(folder), str(out)]
    spread = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(export)]
    launchers = {"accelerate": launcher, "deepspeed": spread, "hf-trainer": []}
    command = [*_python(site, target), *launchers[target], *what]
    if target == "accelerate" and num_processes > 1:
        _run_each(command, site, num_processes)
    else:
        _run(command, site)
    losses: list[float] = json.loads(out.read_text())
    return losses


def _python(site: Path, target: str) -> list[str]:
    return [str(site / _SITE_OF.get(target, PEERS) / "bin" / "python")]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    fixed = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
    return {**kept, **fixed}


def _run(command: list[str], site: Path) -> None:
    done = subprocess.run(  # noqa: S603 - our own files
        command, env=_environment(), capture_output=True, text=True, check=False,
        timeout=_TIMEOUT_S,
    )  # fmt: skip
    _check(done.returncode, done.stdout + done.stderr, command, site)


def _run_each(command: list[str], site: Path, num_processes: int) -> None:
    """Start one launcher for each rank, as MPI would: without it Accelerate's starts one process.

    Raises:
        RunError: One of them failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sizes = {"WORLD_SIZE": str(num_processes), "LOCAL_WORLD_SIZE": str(num_processes)}
    started = []
    for rank in map(str, range(num_processes)):
        own = {**_environment(), **meeting, **sizes, "RANK": rank, "LOCAL_RANK": rank}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=own, **pipes))  # type: ignore[call-overload]  # noqa: S603
    told = [process.communicate(timeout=_TIMEOUT_S)[0] for process in started]
    for process, said in zip(started, told, strict=True):
        _check(process.returncode, said, command, site)


def _check(code: int, said: str, command: list[str], site: Path) -> None:
    if code:
        last = "\n".join(said.strip().splitlines()[-200:])
        raise RunError(f"{' '.join(command[1:4])} in {site.name} ended with {code}:\n{last}")
