"""What is carried: every row has its source, its figures and a program; nothing stands twice."""

import collections
from importlib import resources

import msgspec
import pytest

from brimful.errors import UnknownNameError
from brimful.hardware.datasheets import datasheets
from brimful.models.config import read_config
from brimful.models.registry import registry
from brimful.published.rows import families, published_models, published_runs
from each_case import each

FIGURES = ("allocated_gib", "active_gib", "reserved_gib", "process_gib", "tokens_per_s")


@pytest.fixture(params=families())
def runs(request):
    return published_runs(request.param)


def test_a_run_says_what_was_measured_and_where(runs):
    for run in runs:
        assert run.source
        assert run.versions
        figures = [getattr(run, name) for name in FIGURES]
        assert any(figures), run.id
        assert all(figure is None or figure > 0 for figure in figures), run.id


def test_a_run_is_of_a_known_model_and_gpu(runs):
    assert {run.model for run in runs} <= {*registry(), *published_models()}
    assert {run.gpu for run in runs} <= set(datasheets())


def test_its_devices_are_those_of_its_strategy(runs):
    for run in runs:
        world = run.dp_replicate * run.dp_shard * run.tp * run.pp
        assert run.beyond or world == run.num_devices, run.id


def test_adapters_stand_where_there_are_some(runs):
    for run in runs:
        assert (run.adapter is not None) == (run.method != "full"), run.id


def test_more_is_held_by_each_next_measure(runs):
    for run in runs:
        held = [run.allocated_gib, run.active_gib, run.reserved_gib, run.process_gib]
        there = [gib for gib in held if gib is not None]
        assert there == sorted(there), run.id


def test_no_run_stands_twice():
    counts = collections.Counter(run.id for run in published_runs())
    assert max(counts.values()) == 1
    assert len(counts) >= 300


def test_a_family_is_a_file_of_its_own():
    for family in families():
        assert {run.family for run in published_runs(family)} == {family}
    assert sum(len(published_runs(f)) for f in families()) == len(published_runs())


def test_what_is_stored_is_what_is_read():
    """No field is misspelt, fields are in order, and defaults are not written."""
    folder = resources.files("brimful").joinpath("data/published")
    for family in families():
        lines = folder.joinpath(f"{family}.jsonl").read_bytes().splitlines()
        assert [msgspec.json.encode(run) for run in published_runs(family)] == lines


def test_an_unknown_family_is_said():
    with pytest.raises(UnknownNameError, match=r"unknown family .*'fsm'.*fms"):
        published_runs("fsm")


@each("name", [n for n, m in published_models().items() if m.config])
def test_the_models_are_described(name):
    model = published_models()[name]
    spec = read_config(name, {"model_type": model.model_type, **model.config})
    assert spec.num_layers > 0
    assert name not in registry()
