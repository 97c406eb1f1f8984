"""A pretend report on the terminal and as a page: everything is there, and nothing runs over."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.pretend.recordings import long_run, small_run

from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.pretend.report import read_report
from brimful.report.pretend import failure_lines, pretend_tables, short_line, short_op
from brimful.report.text import WIDTH, plain_lines
from brimful.units import GIB, MIB

from .sample import HOSTILE


class Card:
    name = f"NVIDIA {HOSTILE}"
    usable_bytes = 80 * GIB


def report_of(recording=None, *, budget=None, unknown_ops=None):
    return read_report(
        small_run() if recording is None else recording,
        small_run(),
        card=Card(),
        settings=PYTORCH_DEFAULTS,
        budget_bytes=budget,
        assumptions=("every token is real",),
        unknown_ops=unknown_ops or {},
    )


def named(recording, name):
    """Let every name in a recording be the same one."""
    count = {
        field: tuple(name for _ in getattr(recording, field))
        for field in ("owners", "ops", "nodes")
    }
    lines = tuple(f"{name}:{i}" for i, _ in enumerate(recording.lines))
    return replace(recording, **count, lines=lines, phases=(name,) * len(recording.phases))


def lines_of(report):
    return plain_lines(pretend_tables(report))


def text_of(report):
    return " ".join(" ".join(lines_of(report)).split())


def test_nothing_is_wider_than_the_terminal():
    for report in (
        report_of(budget=180 * MIB),
        report_of(long_run(4000), unknown_ops={f"aten.op{'x' * i}": i for i in range(200)}),
        report_of(named(small_run(), "m" * 300), budget=180 * MIB),
        report_of(named(small_run(), HOSTILE)),
    ):
        assert max(map(len, lines_of(report))) <= WIDTH


def test_out_of_memory_names_the_request():
    report = report_of(budget=180 * MIB)
    assert list(failure_lines(report.at_capacity.failure)) == [
        "out of memory in step 1 optimizer (event 20 of 23)",
        "with 144.01 MiB allocated and 146.00 MiB reserved",
        "when 48.00 MiB were asked for: optimizer state, [12582912] float32",
        "by model.layers.1.mlp, zeros_like",
        "at train.py:13",
    ]
    assert lines_of(report)[0] == "What fails"
    assert "What fails" not in text_of(report_of())


def test_everything_that_was_asked_for_is_shown():
    text = text_of(report_of(unknown_ops={"aten.foo": 1, "aten.bar": 3}))
    for words in (
        "Alive at the peak, in step 1 optimizer (simulated)",
        "optimizer state 96.00 MiB 50.0 %",
        "kernel workspaces 8.00 KiB",
        "192.00 MiB 100.0 % model.layers.* 2",
        "96.00 MiB 2 optimizer state: [12582912] float32",
        "Kept for backward by step 1 forward: 60.00 MiB",
        "step 1 backward 172.01 MiB",
        "242.00 MiB on the default stream, 80.00 MiB on stream 5",
        "native 322.00 MiB, expandable segments 322.00 MiB",
        "host tensors 192.01 MiB",
        "CUDA context and driver 667.57 MiB to 1.68 GiB",
        "aten.bar (3 calls) aten.foo (1 call)",
        "every token is real",
        "brimful",
    ):
        assert words in text, words


def test_what_is_left_out_is_counted():
    text = text_of(report_of(unknown_ops={f"aten.op{i}": 1 for i in range(20)}))
    assert "12 more" in text
    many = long_run(4000)
    parts = tuple(f"part{i}" for i, _ in enumerate(many.owners))
    assert re.search(r"\d+ more", text_of(report_of(replace(many, owners=parts))))


def test_names_are_shortened_where_they_are_all_alike():
    assert short_op("aten.mm.default") == "mm"
    assert short_op("aten.add.Tensor") == "add.Tensor"
    assert short_op("cuBLAS workspace") == "cuBLAS workspace"
    assert short_line("/a/b/models/llama.py:7") == "models/llama.py:7"
    assert short_line("C:\\a\\train.py:7") == "a/train.py:7"


@pytest.mark.parametrize("module", ["brimful.report.pretend", "brimful.report.answer"])
def test_a_report_is_printed_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
