"""Kernels that are not PyTorch's: launched without computing, missed, and stood in for."""

import importlib.metadata
import importlib.util
import sys

import pytest
import torch

from brimful import pretend
from brimful.errors import UnsupportedError
from brimful.pretend import when_imported
from brimful.pretend.triton_kernels import benchmark
from brimful.report.pretend import note_lines
from brimful.show.pretend import pretend_summary

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is not None, reason="of a machine without triton"
    ),
]

KIB, MIB = 2**10, 2**20
PROGRAM = """\
import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

@triton.jit
def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, rsqrt(tl.load(x_ptr + at, mask=at < n)), mask=at < n)

@triton.autotune([triton.Config({"BLOCK": b}) for b in (64, 128)], ["n"], restore_value=["y_ptr"])
@triton.heuristics({"EVEN": lambda named: named["n"] % 2 == 0})
@triton.jit
def tuned(x_ptr, y_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    pass
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Make a module that defines kernels, to be imported on the pretend GPU."""
    (tmp_path / "kernels_of_a_test.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    yield "kernels_of_a_test"
    sys.modules.pop("kernels_of_a_test", None)


@pytest.fixture
def run(program):
    with pretend.gpu("a100-40gb", assume=["triton"]) as run:
        run.module = importlib.import_module(program)
        torch.zeros(1, device="cuda")
        yield run


def test_what_a_kernel_wrote_is_known_no_more(run):
    counts, other = torch.arange(4, device="cuda"), torch.arange(4, device="cuda")
    row = counts[1:]
    assert row.tolist() == [1, 2, 3]
    run.module.scale[(1,)](torch.ones(4, device="cuda"), y_ptr=counts, n=4, BLOCK=4)
    assert counts.sum().item() == 1, "an integer that is not known"
    assert isinstance(row, torch._subclasses.FakeTensor), "as libraries ask, before they look"
    with pytest.raises(UnsupportedError, match="hangs on values"):
        row.nonzero()
    assert other.sum().item() == 6
    assert run.other_kernels.launched == {"scale": 1}
    assert run.tape.num_allocations()


def test_a_launch_takes_no_memory(run):
    x = torch.ones(MIB, device="cuda")
    before = torch.cuda.memory_allocated(), run.tape.num_allocations()
    run.module.scale[lambda meta: (MIB // meta["BLOCK"],)](x, x, MIB, BLOCK=64)
    assert (torch.cuda.memory_allocated(), run.tape.num_allocations()) == before


def test_an_autotuner_flushes_the_cache_once_for_each_kind_of_call(run):
    x, y = torch.ones(KIB, device="cuda"), torch.ones(KIB, device="cuda")
    for n in (KIB, KIB, 8):
        run.module.tuned[(1,)](x, y, n)
    flushed = [b for b in run.recording().num_bytes if b == 256 * MIB]
    copies = [b for b in run.recording().num_bytes if b == 4 * KIB]
    assert len(flushed) == 2 * 2, "two kinds of calls, two configurations"
    assert len(copies) == 2 + 2 * 2 * 2, "x, y, and what y is restored from at each trial"
    assert run.other_kernels.launched["tuned"] == 3 + 2 * 2 * 2
    run.module.tuned[(1,)](x, None, 16)
    assert torch.cuda.memory_allocated() < MIB


def test_a_benchmark_takes_no_time(run):
    calls = []
    assert benchmark(lambda: calls.append(1), quantiles=[0.5, 0.2]) == [0.0, 0.0]
    assert benchmark(lambda: calls.append(1)) == 0.0
    assert len(calls) == 4
    assert run.tape.num_allocations()


def test_the_driver_answers_as_the_card(run):
    driver = sys.modules["triton"].runtime.driver.active
    assert driver.get_current_target()[:2] == ("cuda", 80)
    properties = driver.utils.get_device_properties(driver.get_current_device())
    assert properties["multiprocessor_count"] == 108
    assert properties["max_shared_mem"] == 163 * KIB
    assert run.tape.num_allocations()


def test_the_stand_in_has_a_version_and_goes_away(program):
    with pretend.gpu(assume=["triton"]) as run:
        importlib.import_module(program)
        assert importlib.metadata.version("triton") == sys.modules["triton"].__version__
        torch.ones(1, device="cuda")
    assert "triton" not in sys.modules
    assert importlib.util.find_spec("triton") is None
    report = run.report()
    assert "triton is not installed; in its place stands triton" in report.beside_torch.stood_in[0]
    facts = pretend_summary(report, ("script.py",)).facts
    assert [f.text for f in facts if f.label == "assumes"] == list(report.beside_torch.stood_in)


def test_what_is_missed_is_said(tmp_path, monkeypatch):
    (tmp_path / "library_of_a_test.py").write_text(
        "import importlib.util\ndef is_there(name):\n    return importlib.util.find_spec(name)\n"
    )
    (tmp_path / "asks_of_a_test.py").write_text(
        "from library_of_a_test import is_there\n"
        "fast = is_there('triton') is not None\n"
        "try:\n    import xformers\nexcept ImportError:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pretend.gpu() as run:
        module = importlib.import_module("asks_of_a_test")
        torch.ones(1, device="cuda")
    for name in ("asks_of_a_test", "library_of_a_test"):
        del sys.modules[name]
    assert not module.fast
    missed = {m.package: m for m in run.report().beside_torch.missed}
    assert missed["triton"].lines[0].endswith("asks_of_a_test.py:2"), "on whose behalf it asked"
    assert missed["xformers"].lines[0].endswith("asks_of_a_test.py:4")
    facts = [f.text for f in pretend_summary(run.report(), ("s.py",)).facts if f.label == "kernels"]
    assert len(facts) == 1
    assert facts[0].startswith("asks_of_a_test would find triton")
    assert "install it, or --assume triton" in facts[0]
    notes = dict(note_lines(run.report()))
    assert len(notes["Looked for and not installed here; with them other kernels may run"]) == 2


def test_what_nobody_can_stand_in_for_is_refused():
    with pytest.raises(UnsupportedError, match=r"xformers cannot be assumed.*triton"):
        pretend.gpu(assume=["xformers"])


def test_a_module_is_changed_when_it_comes_and_as_it_was_afterwards(tmp_path, monkeypatch):
    (tmp_path / "changed_of_a_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"changed_of_a_test": lambda module: [(module, "value", module.value + 1)]}
    with when_imported.when_imported(changes):
        module = importlib.import_module("changed_of_a_test")
        assert module.value == 2
    assert module.value == 1
    with when_imported.when_imported(changes):
        assert module.value == 2
    del sys.modules["changed_of_a_test"]
    assert not any(isinstance(x, when_imported._Finder) for x in sys.meta_path)
