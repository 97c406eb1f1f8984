"""The page of an answer: what the terminal says, memory over time, every table, nothing fetched."""

from dataclasses import replace

import pytest
from rich.console import Group
from rich.text import Text
from tests.pretend.recordings import small_run

from brimful.report.answer import answer_page, laid_out
from brimful.report.pretend import pretend_tables
from brimful.report.tables import bullets, filled_table, pairs_table
from brimful.show.answer import Answer
from brimful.show.card import card
from brimful.show.pretend import pretend_summary
from brimful.show.summary import Fact, Meter, Summary
from brimful.units import GIB, MIB

from .sample import HOSTILE
from .test_html import Page, charts
from .test_pretend import named, report_of

COMMAND = "brimful pretend -- train.py"


def answer_of(report):
    return Answer(
        pretend_summary(report, ["train.py"]),
        (Fact("next", "look"),),
        (pretend_tables(report),),
        report.timeline,
    )


def page_of(report):
    return answer_page(answer_of(report), command=COMMAND)


def test_the_page_holds_the_answer_and_fetches_nothing():
    source = page_of(report_of(budget=180 * MIB))
    page = Page(source)
    assert page.sections == ["timeline", "details"]
    for tag, attrs in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    for words in ("short by 14.00 MiB", f"$ {COMMAND}", "Kept for backward", "look"):
        assert words in page.text
    assert page.count("p", **{"class": "verdict short"}) == 1
    assert page.count("meta", property="og:title") == 1


def test_the_chart_is_the_timeline():
    report = report_of()
    (chart,) = charts(page_of(report)).values()
    assert tuple(chart["x"]) == report.timeline.event
    assert tuple(chart["series"][0]["values"]) == report.timeline.live_bytes
    assert [phase["name"] for phase in chart["phases"]] == list(report.timeline.phases)


def test_no_name_becomes_markup():
    report = report_of(named(small_run(), HOSTILE), budget=180 * MIB)
    source = answer_page(answer_of(report), command=HOSTILE)
    page = Page(source)
    assert page.count("script") == 1 + page.count("script", type="application/json")
    assert "<script>alert" not in source
    assert "<script>alert" not in card(answer_of(report).summary, command=HOSTILE)


def test_a_run_without_a_forward_has_a_page():
    recording = replace(small_run(), phases=("load", "a", "b", "c"))
    assert "Kept for backward" not in Page(page_of(report_of(recording))).text


def test_tables_are_set_cell_by_cell():
    table = filled_table("What", ("name", "bytes"), [("a <b>", "1"), ("c", "2")])
    said = Group(Text("Head", style="bold"), table, bullets("Why", ["so"]), Text(""))
    source = "".join(laid_out([said, "one\ntwo", pairs_table([("k", "v")], title="Pairs")]))
    page = Page(source)
    assert "<h3>Head</h3>" in source
    assert source.count("<tr>") == 3
    assert 'class="n">2</td>' in source
    assert "a &lt;b&gt;" in source
    assert "<pre>one\ntwo</pre>" in source
    assert page.text.endswith("Pairs k v")


def test_what_has_no_markup_is_refused():
    with pytest.raises(TypeError, match="int has no markup"):
        list(laid_out([3]))


@pytest.mark.parametrize(("used", "over"), [(10 * GIB, 0), (20 * GIB, 0), (40 * GIB, 1), (0, 0)])
def test_the_bar_goes_beyond_what_there_is_only_where_it_does(used, over):
    meter = Meter(used, 20 * GIB, "predicted")
    summary = Summary("NO" if over else "FITS", "a job", meter, ())
    source = answer_page(Answer(summary, (), ()), command="brimful plan x")
    assert Page(source).count("span", **{"class": "over"}) == 0 or over
    assert source.count('class="over"') == over
    assert Page(source).sections == []


def test_the_card_shows_the_limit_and_the_phases():
    report = report_of(budget=180 * MIB)
    answer = answer_of(report)
    drawn = card(answer.summary, command=COMMAND, timeline=answer.timeline)
    assert drawn.count("<polygon") == 1
    assert "what the card has for it" in drawn
    assert "step 1 forward" in drawn
    far = report_of()
    assert "what the card has" not in card(
        answer_of(far).summary, command=COMMAND, timeline=far.timeline
    )
    assert "<polygon" not in card(answer.summary, command=COMMAND)
