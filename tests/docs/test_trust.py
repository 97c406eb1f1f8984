"""What the trust page and the READMEs say is what the evidence says, and no figure is by hand."""

import re

import msgspec
import pytest

from .test_recipes import ROOT, script

trust = script("generate_trust")
FILES = pytest.mark.parametrize("name", [trust.PAGE, *trust.TEXTS.brief])
HEADINGS = {
    trust.PAGE: "# How far to trust it\n",
    "README.md": "## How far to trust it\n",
    "README.zh-CN.md": "## 可信度\n",
}
NUMBER = re.compile(r"(?<![A-Za-z\d])\d")
"""A digit that is not of a name such as fp32."""


def section_of(name):
    text = (ROOT / name).read_text("utf-8")
    return text.partition(HEADINGS[name])[2].partition("\n## ")[0]


def marked(text):
    return text.partition(trust.BEGIN)[2].partition(trust.END)[0]


@FILES
def test_the_section_is_what_the_evidence_says(name):
    assert marked(section_of(name)) == trust.generated()[name], "run: python docs/generate_trust.py"


@FILES
def test_no_figure_is_written_by_hand(name):
    section = section_of(name)
    assert not NUMBER.findall(section.replace(marked(section), ""))


def test_the_words_hold_no_figure():
    words = msgspec.json.encode(trust.TEXTS).decode()
    assert not NUMBER.findall(re.sub(r'"p90"|_p90|\\.', "", words))


@FILES
def test_what_was_measured_on_a_gpu_comes_first(name):
    first = marked(section_of(name)).splitlines()[0].removeprefix("- ")
    assert first.startswith("**")
    assert "H200" in first


def test_every_published_row_is_counted():
    rows = trust.rows_of("published_predicted")
    kinds = {kind.key: kind for kind in trust.published()}
    assert kinds["allocated"].num_rows == sum("published_allocated_gib" in row for row in rows)
    assert kinds["speed"].num_rows == sum("published_tokens_per_s" in row for row in rows)
    parts = [kinds[f"speed {split}"] for split in ("fit", "validation", "test")]
    assert sum(part.num_rows for part in parts) == kinds["speed"].num_rows
    assert sum(len(part.errors) for part in parts) == len(kinds["speed"].errors)


def test_a_changed_figure_is_seen(monkeypatch):
    """The page follows the evidence: one row that is twice as far off changes it."""
    before = trust.generated()[trust.PAGE]
    rows = trust.rows_of("published_predicted")
    worst = max(
        (row for row in rows if all(trust.speed(row))),
        key=lambda row: row["predicted_tokens_per_s"] / row["published_tokens_per_s"],
    )
    worst["predicted_tokens_per_s"] *= 2
    real = trust.rows_of
    monkeypatch.setattr(
        trust, "rows_of", lambda name: rows if name == "published_predicted" else real(name)
    )
    assert trust.generated()[trust.PAGE] != before
