"""Files that the command line is given: sound ones, to be broken by the tests."""

import json
from typing import NamedTuple

import pytest
import yaml
from tests.samples import TINY_LLAMA

from brimful.cli.main import main

CONFIG = {**TINY_LLAMA, "vocab_size": 300}
TINY = ("tiny.json", "--gpus", "a100-40gb", "--precision", "fp32")


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def brimful(capsys):
    """Run a command line in this process."""

    def run(*argv):
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An own working directory with a model and a data file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    (tmp_path / "data.txt").write_text("A line of text, and one more.\n" * 500)
    return tmp_path


@pytest.fixture
def plan(folder, brimful):
    """A sound plan for this machine, as plain dicts; also written to ``plan.yaml``."""
    argv = ("--gpus", "local", "--precision", "fp32", "--seq-len", 32, "--global-batch", 4)
    said = brimful("plan", "tiny.json", *argv, "--steps", 3, "-o", "plan.yaml")
    assert said.code == 0, said.err
    return yaml.safe_load((folder / "plan.yaml").read_text())
