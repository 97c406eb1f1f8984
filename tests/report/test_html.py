import html
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from brimful.errors import FileFormatError, RunError
from brimful.report.html import render_report, write_report
from brimful.report.run_folder import read_run_folder
from brimful.report.time_sections import pipeline_section
from brimful.units import MIB
from brimful.values.plan import write_yaml

from .sample import SIZES, make_plan, metric_lines

VOID = {"meta", "br", "wbr", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text; and whether every tag is closed."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self._open):
            self.texts.append(data)

    def count(self, tag, **attributes):
        return sum(t == tag and attributes.items() <= a.items() for t, a in self.elements)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def sections(self):
        return [attrs["id"] for tag, attrs in self.elements if tag == "section"]


@pytest.fixture
def full_page(full_run):
    return render_report(read_run_folder(full_run))


def in_a_row(plan):
    """Return a plan of two stages; only its strategy matters to what is drawn."""
    strategy = msgspec.structs.replace(plan.strategy, pp=2, micro_batch=1)
    return msgspec.structs.replace(plan, strategy=strategy)


def charts(source):
    found = re.findall(
        r'<script type="application/json" data-for="([a-z-]+)">(.*?)</script>', source
    )
    return {key: json.loads(text) for key, text in found}


def test_nothing_is_fetched(full_page):
    page = Page(full_page)
    for tag, attrs in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    assert not re.search(r"@import|url\(", full_page)
    assert "default-src 'none'" in full_page


def test_no_name_becomes_markup(full_page):
    page = Page(full_page)
    # The page's own script, and one block of data per chart.
    assert page.count("script") == 1 + page.count("script", type="application/json")
    assert "<script>alert" not in full_page
    assert "</script><script>alert('x')</script> & [red]" in page.text
    assert page.elements[-1][0] == "script"


def test_every_item_owner_strategy_and_assumption_is_there(full_page, plan):
    page = Page(full_page)
    for name in SIZES:
        assert name in page.text
        assert f"why {name}" in page.text
    for words in (
        "aten. mm. default",
        "short by 512.00 MiB",
        "profiler events, CPU kernels",
        "torch 2.13.0",
        "brimful train 'my plan.yaml'",
        "second = 2 (because)",
        "unigram entropy 6.420",
    ):
        assert words in page.text
    assert all(field.replace("_", "_ ") in page.text for field in plan.job.__struct_fields__)


def test_the_verdict_is_one_sentence_about_the_highest_rung(full_page):
    assert (
        "Fits: measured peak 991.00 MiB of 1.50 GiB, "
        "+0.10 % against simulated and +1.12 % against predicted." in Page(full_page).text
    )


def test_a_plan_that_does_not_fit_says_so(tmp_path):
    run_dir = tmp_path / "run"
    write_yaml(make_plan(usable_bytes=sum(SIZES.values()) - 12 * MIB), run_dir / "plan.yaml")
    page = Page(render_report(read_run_folder(run_dir)))
    assert "Does not fit: predicted peak 980.00 MiB, short by 12.00 MiB of 968.00 MiB." in page.text
    assert page.count("p", **{"class": "verdict short"}) == 1


def test_missing_parts_are_left_out(bare_run):
    page = Page(render_report(read_run_folder(bare_run)))
    assert page.sections == [
        "verdict", "peak", "totals", "breakdown", "step-time", "precision", "inputs", "provenance",
    ]  # fmt: skip
    assert "not measured yet" in page.text
    assert "brimful train" in page.text


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("search.json", {"plans"}),
        ("metrics.jsonl", {"loss", "curves"}),
        ("simulation.json", {"owners"}),
    ],
)
def test_a_part_that_is_missing_takes_only_its_sections_along(full_run, name, sections):
    complete = set(Page(render_report(read_run_folder(full_run))).sections)
    (full_run / name).unlink()
    assert complete - set(Page(render_report(read_run_folder(full_run))).sections) == sections


def test_charts_hold_their_data_and_have_words(full_page):
    page, drawn = Page(full_page), charts(full_page)
    curves = {"loss-chart", "rate-chart", "norm-chart"}
    assert set(drawn) == {"memory-chart", "step-time-chart", *curves}
    for key, chart in drawn.items():
        assert page.count("div", id=key, role="img") == 1
        assert all(len(series["values"]) == len(chart["x"]) for series in chart["series"])
        assert chart["x"] == sorted(set(chart["x"]))
    labels = [series["label"] for series in drawn["loss-chart"]["series"]]
    assert labels == ["train", "held out", "unigram entropy"]
    spoken = [a["aria-label"] for _, a in page.elements if a.get("class") == "chart"]
    assert all(len(words) > 20 for words in spoken)


def test_tables_have_captions_and_scroll_inside_their_box(full_page):
    page = Page(full_page)
    num_tables = page.count("table")
    assert num_tables >= 5
    assert page.count("caption") == num_tables
    assert page.count("div", **{"class": "scroll", "tabindex": "0"}) == num_tables
    assert page.count("h1") == 1


def test_the_bars_add_up_to_the_peak(full_page):
    every = re.findall(r'<div class="bar".*?</div>', full_page, flags=re.DOTALL)
    bars = [bar for bar in every if "time-" not in bar]
    assert len(bars) == 3
    limit = 3 * 512 * MIB
    for bar, peak in zip(bars, (980, 990, 991), strict=True):
        widths = [float(w) for w in re.findall(r"width:([\d.]+)%", bar)]
        assert sum(widths) == pytest.approx(100 * peak * MIB / limit, abs=0.01)
        assert "left:100.000%" in bar


def test_the_parts_of_a_step_add_up_to_it(full_page):
    (bar,) = [
        bar
        for bar in re.findall(r'<div class="bar".*?</div>', full_page, flags=re.DOTALL)
        if "time-" in bar
    ]
    assert sum(float(w) for w in re.findall(r"width:([\d.]+)%", bar)) == pytest.approx(
        100, abs=0.01
    )


def test_phases_of_the_chart_say_whose_their_bytes_are(full_run):
    simulation = json.loads((full_run / "simulation.json").read_text())
    phase = simulation["timeline"]["phases"][1]
    owners = [["model.layers.*.mlp: saved activations", 7 * MIB]]
    simulation["timeline"]["owners"] = [{"phase": phase, "num_bytes": 9 * MIB, "owners": owners}]
    (full_run / "simulation.json").write_text(json.dumps(simulation))
    drawn = charts(render_report(read_run_folder(full_run)))["memory-chart"]
    assert {p["name"]: p["owners"] for p in drawn["phases"]}[phase] == owners


def test_a_pipeline_is_drawn_in_units_of_a_forward(full_run):
    plan = (full_run / "plan.yaml").read_text()
    assert "pp: 1" in plan
    assert "pipeline" not in Page(render_report(read_run_folder(full_run))).sections
    section = pipeline_section(in_a_row(read_run_folder(full_run).plan))
    assert "1f1b, 2 devices" in section
    assert "<svg" in section
    assert " s</text>" not in section


def test_a_long_run_makes_a_small_page(full_run):
    lines = "".join(json.dumps(row) + "\n" for row in metric_lines(30_000))
    (full_run / "metrics.jsonl").write_text(lines)
    source = render_report(read_run_folder(full_run))
    assert len(source) < 1_000_000


def test_the_licence_of_the_charts_is_in_the_page(full_page):
    assert "Copyright (c)" in full_page
    assert "The MIT License (MIT)" in full_page


def test_the_page_is_written_into_the_folder(full_run):
    path = write_report(full_run)
    assert path == full_run / "report.html"
    assert path.read_text("utf-8") == render_report(read_run_folder(full_run))
    assert html.escape("</script>") in path.read_text("utf-8")


def test_a_broken_part_leaves_the_old_page_alone(full_run):
    path = write_report(full_run)
    before = path.read_bytes()
    (full_run / "verdict.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"verdict\.json"):
        write_report(full_run)
    assert path.read_bytes() == before


def test_a_page_that_cannot_be_written_is_an_answer(full_run):
    (full_run / "report.html").mkdir()
    with pytest.raises(RunError, match=r"report\.html"):
        write_report(full_run)


def test_a_verdict_is_judged_where_none_was_written(full_run):
    with_file = Page(render_report(read_run_folder(full_run))).text
    (full_run / "verdict.json").unlink()
    assert Page(render_report(read_run_folder(full_run))).text == with_file


def test_unknown_names_are_shown_too(full_run, plan):
    item = msgspec.structs.replace(plan.estimate.items[0], name="moon dust", num_bytes=5 * MIB)
    estimate = msgspec.structs.replace(plan.estimate, items=(*plan.estimate.items, item))
    write_yaml(msgspec.structs.replace(plan, estimate=estimate), full_run / "plan.yaml")
    assert "moon dust" in Page(render_report(read_run_folder(full_run))).text
