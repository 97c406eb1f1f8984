"""An environment of the calculators' own, and a process in it; Brimful's is never touched."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from peer_asks import CALLED, why_not
from peer_rows import Ask

from brimful.errors import RunError

SITE = "BRIMFUL_CALCULATORS_SITE"
"""A variable that may name a folder where the environment is kept from one run to the next."""
PACKAGES = ("deepspeed", "accelerate", "transformers", "setuptools", "pyyaml")
ALONE = ("llm-analysis==0.2.2",)
"""Installed without what it asks for: it pins transformers below 5, of which it uses AutoConfig."""
AFTER = ("fire>=0.5,<0.6",)
_HERE = Path(__file__).parent
_TIMEOUT_S = 600


@contextlib.contextmanager
def site() -> Iterator[Path]:
    """Yield the Python of the environment, made where it is not kept.

    Raises:
        subprocess.CalledProcessError: It cannot be installed; pip says why.
    """
    with contextlib.ExitStack() as stack:
        kept = os.environ.get(SITE)
        folder = Path(kept or stack.enter_context(tempfile.TemporaryDirectory()))
        python = folder / "bin" / "python"
        if not python.is_file():
            _make(folder, python)
        yield python


def _make(folder: Path, python: Path) -> None:
    pip = [str(python), "-m", "pip", "install", "-q"]
    environment = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    same_torch = f"torch=={version('torch').split('+')[0]}"
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, same_torch, *PACKAGES],
        [*pip, "--no-deps", *ALONE],
        [*pip, *AFTER],
    )
    for command in commands:
        subprocess.run(command, check=True, env=environment)  # noqa: S603 - fixed


def ask_all(python: Path, asks: Sequence[Ask]) -> dict[str, Any]:
    """Ask every peer that is a program of every run that it can be told of.

    Args:
        python: Of ``site``.
        asks: The runs.

    Returns:
        ``answers`` by peer, ``imports_s`` by peer, and ``versions``.

    Raises:
        RunError: The process itself failed.
    """
    questions = [
        {"peer": peer, "ask": msgspec.to_builtins(ask)}
        for peer in CALLED
        for ask in asks
        if not why_not(peer, ask)
    ]
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "asks.json", Path(folder) / "answers.json"
        asked.write_text(json.dumps(questions))
        command = [str(python), str(_HERE / "peer_answers.py"), str(asked), str(told)]
        _run(command)
        answers: dict[str, Any] = json.loads(told.read_text())
    return answers


def _run(command: Sequence[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    fixed = {"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(  # noqa: S603 - our own file
        command, env={**kept, **fixed}, capture_output=True, text=True, check=False,
        timeout=_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise RunError(f"peer_answers.py ended with {done.returncode}:\n{done.stderr[-2000:]}")
