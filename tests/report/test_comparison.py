"""Recipes side by side, on paper: widths, words, and a plot that is one."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from brimful.compare.record import COMPARISON_SCHEMA, Comparison, RecipeRow, RecipeRun, row_of
from brimful.doctor.findings import Finding
from brimful.report.comparison import chance_words, comparison_tables, describe_run
from brimful.report.comparison_plot import comparison_svg
from brimful.report.text import plain_lines
from samples import make_cluster, make_job, make_strategy

FINDING = Finding(
    fault="epsilon", name="w", kind="update", step=1, ranks=(0,), text="all of it is 0"
)


def make_runs(*losses, **changes):
    return [
        RecipeRun(
            seed=seed,
            heldout_loss=loss,
            accuracy=None,
            num_steps=5,
            num_skipped=0,
            failed_step=2 if loss is None else None,
            reason="the loss became nan" if loss is None else None,
            measured_step_s=0.123,
            measured_peak_allocated_bytes=2**33 if seed == 0 else None,
            **changes,
        )
        for seed, loss in enumerate(losses)
    ]


def make_comparison():
    plain = make_runs(4.0, 4.1, 4.2)
    pairs = (
        ("fp32", plain),
        ("bf16", make_runs(4.01, 4.11, 4.3)),
        ("fp16", make_runs(11.25, 12.5, None)),
        ("fp16-master", make_runs(None, None, None)),
    )
    found = [row_of(recipe, runs, plain) for recipe, runs in pairs]
    found[2] = msgspec.structs.replace(found[2], finding=FINDING)
    return Comparison(
        schema=COMPARISON_SCHEMA,
        versions=(),
        job=make_job(),
        cluster=make_cluster(),
        strategy=make_strategy(),
        seeds=(0, 1, 2),
        rows=(*found, RecipeRow(recipe="tf32", why_not="no units for it")),
    )


def test_a_table_of_a_hundred_columns_says_what_and_why():
    lines = plain_lines(comparison_tables(make_comparison()), width=100)
    assert max(map(len, lines)) <= 100
    said = " ".join(line.strip() for line in lines)
    assert "4.1000 ± 0.1000" in said
    assert "11.8750 ± 0.8839, 1 failed" in said
    assert "failed, step 2" in said
    assert "tf32: not run: no units for it" in said
    assert "fp16: 1 of 3 runs failed: the loss became nan; its held-out loss is +193.06" in said
    assert "The doctor: epsilon: all of it is 0" in said
    assert "fp16-master: 3 of 3 runs failed" in said
    assert "The doctor: nothing in the steps that it watched" in said
    assert not any(line.startswith("  fp32:") for line in lines)
    assert "accuracy" not in said


def test_what_is_more_than_chance_is_told_seed_by_seed():
    plain = make_runs(4.0, 4.1, 4.2)
    pairs = (
        ("fp32", plain),
        ("bf16", make_runs(4.02, 4.12, 4.2201)),  # 0.02 each time, beside a spread of 0.1
        ("fp16", make_runs(4.02, 4.08, 4.21)),
    )
    rows = tuple(row_of(recipe, runs, plain) for recipe, runs in pairs)
    made = msgspec.structs.replace(make_comparison(), rows=rows)
    words = [*chance_words(made)]
    assert words == [
        "more than chance, seed by seed (paired t-test, 95 %): bf16 (a loss 0.49% more)",
        "no more than chance may be: fp16",
    ]
    said = " ".join(plain_lines(comparison_tables(made), width=100))
    assert "Why" not in said, "nothing failed"


def test_one_seed_does_not_tell_chance():
    plain = make_runs(4.0)
    rows = tuple(row_of(recipe, make_runs(4.4), plain) for recipe in ("fp32", "bf16"))
    made = msgspec.structs.replace(make_comparison(), rows=rows)
    assert [*chance_words(made)] == ["one seed does not tell chance: bf16; give --seeds 3"]


def test_a_share_of_right_answers_has_a_column():
    made = make_comparison()
    runs = [msgspec.structs.replace(run, accuracy=0.5) for run in make_runs(1.0, 1.1, 1.2)]
    row = row_of("fp32", runs, runs)
    lines = plain_lines(comparison_tables(msgspec.structs.replace(made, rows=(row,))), width=100)
    assert "accuracy" in lines[1]
    assert "50.0%" in lines[2]


def test_a_run_in_a_line():
    whole, failed = make_runs(4.0, None)
    assert describe_run("bf16", whole) == "bf16, seed 0: held-out loss 4.0000"
    assert describe_run("fp16", failed) == "fp16, seed 1: failed in step 2"


def test_a_plot_holds_every_recipe_and_what_is_far_lies_at_the_edge():
    root = ET.fromstring(comparison_svg(make_comparison()))  # noqa: S314 - our own text
    texts = [e.text for e in root if e.tag.endswith("text")]
    assert {"fp32", "bf16", "fp16", "fp16-master", "tf32"} <= set(texts)
    assert "11.8750 ± 0.8839, 1 failed (+193%)" in texts
    assert sum(e.tag.endswith("circle") for e in root) == 2  # fp32 and bf16
    assert sum(e.tag.endswith("polygon") for e in root) == 1
    width = float(root.get("width"))
    for element in root:
        x = element.get("x") or element.get("cx") or element.get("x2")
        assert x is None or 0 <= float(x) <= width


@pytest.mark.parametrize("losses", [(), (None,), (4.0,)])
def test_a_plot_of_little_is_drawn_all_the_same(losses):
    rows = (row_of("fp32", make_runs(*losses), []),) if losses else ()
    made = msgspec.structs.replace(make_comparison(), rows=rows)
    assert ET.fromstring(comparison_svg(made)).tag.endswith("svg")  # noqa: S314 - our own text
