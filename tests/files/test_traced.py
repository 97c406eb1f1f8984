"""Traces that are kept, shipped, and of other versions."""

import msgspec
import pytest

from brimful.cost.profiles import Profile, load_profile
from brimful.files import traced as traced_files
from brimful.files.traced import (
    digest,
    is_of_these_libraries,
    keep_traced,
    read_traced,
    ship,
    shipped_folder,
)
from brimful.models.config import load_model
from brimful.models.traced import find_built


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of what is shipped, and an empty cache."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(traced_files, "shipped_folder", lambda: tmp_path / "shipped")
    return tmp_path / "shipped"


def test_what_is_packed_is_read_where_nothing_was_traced_here(shipped, tmp_path, monkeypatch):
    keep_traced("model-a", {"a": 1})
    keep_traced("b.refused", "no formula")
    assert [packed.name for packed in ship(shipped)] == ["model-a.json.gz"]
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "another"))
    assert read_traced("model-a", dict[str, int]) == {"a": 1}
    assert read_traced("b.refused", str) is None
    keep_traced("model-a", {"a": 2})
    assert read_traced("model-a", dict[str, int]) == {"a": 2}


def test_packing_twice_gives_the_same_bytes(shipped):
    keep_traced("model-a", {"a": 1})
    first = ship(shipped)[0].read_bytes()
    assert ship(shipped)[0].read_bytes() == first


@pytest.mark.usefixtures("shipped")
def test_what_other_sources_traced_is_not_read(monkeypatch):
    keep_traced("model-a", {"a": 1})
    monkeypatch.setattr(traced_files, "_versions_folder", lambda: digest("others"))
    assert read_traced("model-a", dict[str, int]) is None


def test_python_and_brimful_are_no_libraries_that_run_a_step():
    own = traced_files.all_versions()
    other = [v for v in own if v.split()[0] not in {"python", "brimful"}]
    assert is_of_these_libraries([*other, "python 3.13.1", "brimful 9"])
    assert not is_of_these_libraries([*other[1:], "peft 0.1"])


def test_all_that_is_shipped_can_be_read():
    files = sorted(shipped_folder().glob("*.json.gz"))
    assert files
    for file in files:
        name = file.name.removesuffix(".json.gz")
        assert not name.endswith(traced_files.REFUSED)
        if not name.startswith("model-"):
            profile = traced_files._shipped(name, Profile)
            assert profile.key == name
            assert profile.variants


@pytest.mark.torch
def test_a_shipped_trace_is_what_is_traced_today(tmp_path, monkeypatch):
    """Bytes of every event, and what runs in which order: of a model with windows."""
    from brimful.cli.main import main

    asked = ["estimate", "gemma-3-270m", "--gpus", "h200", "--seq-len", "2048", "--json"]
    spec = load_model("gemma-3-270m")
    files = {file.name: file for file in shipped_folder().glob("gemma3_text@*")}
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path))
    monkeypatch.setattr(traced_files, "shipped_folder", lambda: tmp_path / "none")
    monkeypatch.setattr("brimful.models.traced._known", {})
    monkeypatch.setattr("brimful.cost.profiles._own", {})
    main(asked)
    traced = [file for file in tmp_path.rglob("gemma3_text@*.json") if "refused" not in file.name]
    assert traced
    assert find_built(spec) is not None
    for file in traced:
        now = msgspec.json.decode(file.read_bytes(), type=Profile)
        before = msgspec.json.decode(
            traced_files.gzip.decompress(files[f"{file.name}.gz"].read_bytes()), type=Profile
        )
        for name, variant in now.variants.items():
            assert _told(now, variant) == _told(before, before.variants[name])
    assert load_profile(now.key) == now


def _told(profile, variant):
    """Return a variant with its kinds and works in place of their numbers.

    Which of several tensors of one kind goes first is left out: of the tables of cosines and sines
    it differs from run to run.
    """
    return [
        (
            run.phase,
            run.group,
            run.role,
            [
                msgspec.structs.replace(profile.kinds[event], newer=0)
                for event in profile.works[run.work].events
            ],
            msgspec.structs.replace(profile.works[run.work], events=()),
        )
        for run in (*variant.first, *variant.later)
    ]
