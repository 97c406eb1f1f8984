"""What single operations took on a real GPU, against the pretend one: to the byte, or unknown.

The calls are those of ``benchmarks/gpu/kernel_calls.py``; the figures were measured on an H200.
"""

import importlib.util
import json
import sys
from itertools import islice
from pathlib import Path

import pytest

from brimful import pretend

pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "validation/gpu/kernels-nvidia-h200-2026-11.jsonl"
KNOWN = 620
"""So many calls at least are of operators that are known, 220 convolutions of them by a bound."""
NOT_OURS = {
    "attention/efficient/forward": "16 bytes for a seed that a real call leaves on the host",
    "attention/flash/forward/batch=2,heads=16,groups=16,tokens=1024,dim=64,dtype=bf16,causal=True,"
    "dropout=0.1": "16 bytes for a moment",
    "one hot": "a fake tensor's is made another way",
}
"""Calls that are known to differ, by how their names begin, and why."""


@pytest.fixture(scope="module")
def calls():
    """The module of calls, whose folder is no package."""
    spec = importlib.util.spec_from_file_location(
        "kernel_calls", ROOT / "benchmarks/gpu/kernel_calls.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel_calls"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["kernel_calls"]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_every_call_that_is_known_takes_what_it_took_and_no_bound_is_passed(calls, step):
    """Of each kind every so manieth call: kinds follow one another, each with calls like these."""
    measured = {row["call"]: row for row in map(json.loads, MEASURED.read_text().splitlines())}
    wrong, num_known = [], 0
    with pretend.gpu("h200") as run:
        bounds = run.tape._kernels.bounded  # of one call at a time
        for name, make in islice(calls.all_calls(), 0, None, step):
            if "failed" in measured.get(name, {"failed": ""}) or name.startswith(tuple(NOT_OURS)):
                continue
            bounds.clear()
            before = run.tape.unknown_ops
            said = calls.ask(name, make)
            if "failed" in said or run.tape.unknown_ops != before:
                continue
            num_known += 1
            took, guessed = measured[name]["second"]["peak"], said["second"]["peak"]
            if not guessed <= took <= guessed + sum(bounds.values()):
                wrong.append(f"{name}: took {took}, said to take {guessed}")
    assert not wrong
    assert num_known >= (KNOWN if step == 1 else 0.9 * KNOWN / step)
