"""What the READMEs say of themselves is what the evidence says, and nothing else is a figure."""

import re

import msgspec
import pytest

from .test_recipes import ROOT, script

trust = script("generate_trust")
WORDS = pytest.mark.parametrize("name", trust.PAGES)
HEADINGS = {"README.md": "## How far to trust it\n", "README.zh-CN.md": "## 可信度\n"}
NUMBER = re.compile(r"(?<![A-Za-z\d])\d")
"""A digit that is not of a name such as fp32."""


def section_of(name):
    text = (ROOT / name).read_text("utf-8")
    return text.partition(HEADINGS[name])[2].partition("\n## ")[0]


def generated(text):
    return text.partition(trust.BEGIN)[2].partition(trust.END)[0]


@WORDS
def test_the_section_is_what_the_evidence_says(name):
    assert generated(section_of(name)) == trust.section(trust.PAGES[name]), (
        "run: python docs/generate_trust.py"
    )


@WORDS
def test_no_figure_is_written_by_hand(name):
    section = section_of(name)
    by_hand = section.replace(generated(section), "")
    assert not NUMBER.findall(by_hand)
    words = msgspec.json.encode(trust.PAGES[name]).decode()
    assert not NUMBER.findall(re.sub(r'"p90"|\\.', "", words))


@WORDS
def test_what_was_not_done_comes_first(name):
    first = generated(section_of(name)).splitlines()[0]
    assert first.startswith("**")
    assert "[benchmarks/gpu]" in first


def test_every_published_row_is_counted():
    rows = trust.rows_of("published_predicted")
    kinds = {kind.key: kind for kind in trust.published()}
    assert kinds["allocated"].num_rows == sum("published_allocated_gib" in row for row in rows)
    assert kinds["speed"].num_rows == sum("published_tokens_per_s" in row for row in rows)
    parts = [kinds[f"speed {split}"] for split in ("fit", "validation", "test")]
    assert sum(part.num_rows for part in parts) == kinds["speed"].num_rows
    assert sum(len(part.errors) for part in parts) == len(kinds["speed"].errors)


def test_a_changed_figure_is_seen(monkeypatch):
    """The section follows the evidence: one row that is twice as far off changes it."""
    before = trust.section(trust.PAGES["README.md"])
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
    assert trust.section(trust.PAGES["README.md"]) != before
