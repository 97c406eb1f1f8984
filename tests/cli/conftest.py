"""Files that the command line is given: sound ones, to be broken by the tests."""

import io
import json
from contextlib import redirect_stdout
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


def write_inputs(path):
    """Write a model and a data file into a folder."""
    (path / "tiny.json").write_text(json.dumps(CONFIG))
    (path / "data.txt").write_text("A line of text, and one more.\n" * 500)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An own working directory with a model and a data file in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    write_inputs(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def plan_text(tmp_path_factory):
    """A sound plan for this machine, made once by the command line; tests get copies."""
    path = tmp_path_factory.mktemp("plan")
    write_inputs(path)
    argv = ["plan", "tiny.json", "--gpus", "local", "--precision", "fp32", "--seq-len", "32"]
    argv += ["--global-batch", "4", "--steps", "3", "-o", "plan.yaml"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        patch.chdir(path)
        patch.setenv("BRIMFUL_CACHE", str(path / "cache"))
        assert main(argv) == 0
    return (path / "plan.yaml").read_text()


@pytest.fixture
def plan(folder, plan_text):
    """A sound plan for this machine, as plain dicts; also written to ``plan.yaml``."""
    (folder / "plan.yaml").write_text(plan_text)
    return yaml.safe_load(plan_text)
