"""A pretend report on the terminal and as a page: everything is there, and nothing runs over."""

import re
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
from tests.pretend.recordings import long_run, small_run

from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.pretend.report import read_report
from brimful.report.pretend import fit_lines, pretend_tables, short_line, short_op
from brimful.report.pretend_html import render_pretend_report, write_pretend_report
from brimful.report.text import WIDTH, plain_lines
from brimful.units import GIB, MIB

from .sample import HOSTILE
from .test_html import Page, charts


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


def test_the_last_line_says_that_it_fits():
    assert lines_of(report_of())[-1] == "fits: 322.00 MiB reserved of 79.35 GiB"


def test_retries_are_said_to_be_slow():
    (line,) = fit_lines(report_of(budget=200 * MIB))
    assert re.fullmatch(
        r"fits with \d+ cache flushes: [\d.]+ MiB reserved of 200\.00 MiB; "
        "each flush makes the step slow",
        line,
    )


def test_one_retry_is_one_flush():
    recording = small_run()
    report = report_of(recording, budget=200 * MIB)
    once = msgspec.structs.replace(report.at_capacity, num_retries=1)
    (line,) = fit_lines(msgspec.structs.replace(report, at_capacity=once))
    assert line.startswith("fits with 1 cache flush: ")


def test_out_of_memory_names_the_request():
    assert fit_lines(report_of(budget=180 * MIB)) == [
        "does not fit: short by 14.00 MiB of 180.00 MiB",
        "  out of memory in step 1 optimizer (event 20 of 23)",
        "  with 144.01 MiB allocated and 146.00 MiB reserved",
        "  when 48.00 MiB were asked for: optimizer state, [12582912] float32",
        "  by model.layers.1.mlp, zeros_like",
        "  at train.py:13",
    ]


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


@pytest.mark.parametrize("module", ["brimful.report.pretend", "brimful.report.pretend_html"])
def test_a_report_is_printed_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the page --


def test_the_page_holds_every_section_and_fetches_nothing():
    source = render_pretend_report(report_of(budget=180 * MIB))
    page = Page(source)
    assert page.sections == ["timeline", "peak", "owners", "tensors", "kept", "totals", "notes"]
    for tag, attrs in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    assert "short by 14.00 MiB" in page.text
    assert "model.layers.*.mlp" in "".join(page.texts)
    assert page.count("p", **{"class": "verdict short"}) == 1


def test_the_chart_is_the_timeline():
    report = report_of()
    (chart,) = charts(render_pretend_report(report)).values()
    assert tuple(chart["x"]) == report.timeline.event
    assert tuple(chart["series"][0]["values"]) == report.timeline.live_bytes
    assert [phase["name"] for phase in chart["phases"]] == list(report.timeline.phases)


def test_no_name_becomes_markup():
    source = render_pretend_report(report_of(named(small_run(), HOSTILE), budget=180 * MIB))
    page = Page(source)
    assert page.count("script") == 1 + page.count("script", type="application/json")
    assert "<script>alert" not in source


def test_a_run_without_a_forward_has_a_page():
    recording = replace(small_run(), phases=("load", "a", "b", "c"))
    assert "kept" not in Page(render_pretend_report(report_of(recording))).sections


def test_the_page_is_written(tmp_path):
    write_pretend_report(report_of(), tmp_path / "new" / "report.html")
    assert "<!doctype html>" in (tmp_path / "new" / "report.html").read_text()
