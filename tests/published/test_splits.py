"""What was fitted to, what chose, and what nobody looked at: declared by source, and kept apart."""

import re
import statistics
import sys
from pathlib import Path
from typing import get_args

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "validation"))

import efficiency_fit

from brimful.cost.efficiency import generations
from brimful.published.rows import Split, published_runs, runs_of, split_of, splits

SPLITS = get_args(Split)


def publisher(source):
    """Return the repository or page of a source, without file and commit."""
    return re.split(r"[:@ ]", source.removeprefix("https://"), maxsplit=1)[0]


def test_every_source_is_declared_and_no_other():
    assert {run.source for run in published_runs()} == set(splits())


def test_runs_of_splits_are_all_runs_each_once():
    found = [run.id for split in SPLITS for run in runs_of(split)]
    assert sorted(found) == sorted(run.id for run in published_runs())
    assert all(runs_of(split) for split in SPLITS)


def test_nobody_who_is_tested_on_was_fitted_to_or_looked_at():
    seen = {publisher(s) for s, split in splits().items() if split != "test"}
    tested = {publisher(s) for s, split in splits().items() if split == "test"}
    assert tested
    assert not tested & seen


def test_runs_of_a_users_own_were_never_seen():
    assert split_of("my own cluster") == "test"


@pytest.mark.parametrize("generation", ["ampere", "hopper"])
def test_fitting_reads_no_test_source(generation, monkeypatch):
    asked = []

    def watched(split):
        asked.append(split)
        return [run for run in runs_of(split) if run.tokens_per_s][::9]

    monkeypatch.setattr(efficiency_fit, "runs_of", watched)
    monkeypatch.setattr(efficiency_fit, "SHARES", (0.0,))
    monkeypatch.setattr(efficiency_fit, "TOKENS", (2.5,))
    assert list(efficiency_fit.tried(generation))
    assert set(asked) == {"fit", "validation"}


def test_the_tables_say_how_near_they_were_fitted():
    """The errors that each table's source names are those of its parameters today."""
    near = {
        "ampere": [r for r in efficiency_fit.timed_runs("ampere", "fit")
                   if (r.num_devices, r.gpu) == (8, "a100-80gb")],
        "hopper": efficiency_fit.timed_runs("hopper", "fit"),
    }  # fmt: skip
    for generation, runs in near.items():
        source = generations()[generation].source
        number, error = re.search(r"fitted to (\d+) runs.*?mean error ([\d.]+) %", source).groups()
        errors = efficiency_fit.errors(runs)
        assert len(errors) == int(number)
        assert 100 * statistics.fmean(errors) == pytest.approx(float(error), abs=0.06)


def test_a_table_says_how_near_its_rate_of_fp8_was_fitted():
    source = generations()["hopper"].source
    number, error = re.search(r"fp8: fitted to (\d+) more.*?mean error ([\d.]+) %", source).groups()
    errors = efficiency_fit.errors_in_fp8("hopper")
    assert len(errors) == int(number)
    assert 100 * statistics.fmean(errors) == pytest.approx(float(error), abs=0.06)
    tried = dict(efficiency_fit.tried_in_fp8("hopper"))
    assert generations()["hopper"].matrix_shares["fp8"] == min(tried, key=tried.get)


@pytest.mark.parametrize(
    ("generation", "what"), [("hopper", "Engine's fp8"), ("blackwell", "Engine's NVFP4")]
)
def test_a_table_says_how_near_the_rate_of_transformer_engine_was_fitted(generation, what):
    found = re.search(
        rf"{what}: fitted to (\d+) runs.*?mean error ([\d.]+) %", generations()[generation].source
    )
    number, error = found.groups()
    field, is_fitted, _ = efficiency_fit.OF_ENGINE[generation]
    errors = efficiency_fit.errors_in_engine(is_fitted)
    assert len(errors) == int(number)
    assert 100 * statistics.fmean(errors) == pytest.approx(float(error), abs=0.06)
    tried = dict(efficiency_fit.tried_in_engine(generation))
    assert getattr(generations()[generation], field) == min(tried, key=tried.get)


def test_another_table_is_used_and_given_back():
    runs = efficiency_fit.timed_runs("hopper", "fit")[:1]
    before = efficiency_fit.errors(runs)
    table = generations()["ampere"]
    with efficiency_fit.instead("hopper", table):
        assert efficiency_fit.errors(runs) != before
    assert efficiency_fit.errors(runs) == before
