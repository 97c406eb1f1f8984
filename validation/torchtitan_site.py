"""torchtitan's code as it was at a commit, and the packages that it imports, for one proof."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

SITE = "BRIMFUL_TORCHTITAN_SITE"
"""A variable that may name a folder where packages and code are kept from one proof to the next."""
REPOSITORY = "BRIMFUL_TORCHTITAN_REPOSITORY"
"""A variable that may name a git directory with torchtitan's history."""
_REMOTE = "https://github.com/pytorch/torchtitan"
_PACKAGES = (
    "torchdata==0.11.0", "torch_checkpointing==0.1.1", "tyro==1.0.17",
    "tomli==2.5.0", "tiktoken==0.14.0", "blobfile==3.3.0", "pycryptodomex==3.24.2", "lxml==6.1.3",
    "einops==0.8.2", "spmd_types==0.2.3", "torch_remat==0.2.2", "typeguard==4.6.1",
    "docstring_parser==0.18.0", "shtab==1.13.0",
)  # fmt: skip
"""Beside what Brimful's extras have; Triton is stood in for."""
_LEFT_OUT = frozenset({"tests", "assets", ".github", ".ci"})
"""Of a commit: what nothing of it imports."""


class Site(NamedTuple):
    """Where things are.

    Attributes:
        packages: A folder to be imported from.
        code: Has a folder of each commit that was asked for.
        repository: A git directory.
    """

    packages: Path
    code: Path
    repository: Path

    def checkout(self, commit: str) -> Path:
        """Return a folder that has the code of a commit.

        Raises:
            subprocess.CalledProcessError: There is no such commit; git says why.
        """
        folder = self.code / commit
        if not folder.is_dir():
            git = ["git", "-C", str(self.repository)]
            listed = _output([*git, "ls-tree", "--name-only", commit]).decode().split()
            parts = [name for name in listed if name not in _LEFT_OUT]
            packed = _output([*git, "archive", commit, *parts])
            folder.mkdir(parents=True)
            subprocess.run(["tar", "x", "-C", str(folder)], input=packed, check=True)  # noqa: S603, S607 - fixed
        return folder

    def environment(self, commit: str) -> dict[str, str]:
        """Return the variables with which a process imports a commit's code."""
        paths = [str(self.checkout(commit)), os.environ.get("PYTHONPATH", ""), str(self.packages)]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout  # noqa: S603 - git


@contextlib.contextmanager
def torchtitan_site() -> Iterator[Site]:
    """Yield a site; what it lacks is downloaded.

    Raises:
        subprocess.CalledProcessError: Something cannot be downloaded; pip or git says why.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(os.environ.get(SITE) or made)
        site = Site(folder / "site", folder / "src", _repository(folder))
        if not site.packages.is_dir():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
            subprocess.run([*pip, "--target", str(site.packages), *_PACKAGES], check=True)  # noqa: S603 - fixed
        yield site


def _repository(folder: Path) -> Path:
    if os.environ.get(REPOSITORY):
        return Path(os.environ[REPOSITORY])
    found = folder / "torchtitan.git"
    if not found.is_dir():
        clone = ["git", "clone", "-q", "--bare", _REMOTE, str(found)]
        subprocess.run(clone, check=True)  # noqa: S603 - fixed
    return found


def packages() -> tuple[str, ...]:
    """Return what a proof rests on: this torch and the packages."""
    return (f"torch {torch.__version__}", *_PACKAGES)
