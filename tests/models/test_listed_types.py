"""The list of transformers' model types that spares importing it."""

import json
from importlib import metadata, resources

import pytest

from brimful.models import generic


@pytest.mark.torch  # transformers imports it
def test_the_list_is_what_the_installed_transformers_says():
    text = resources.files("brimful").joinpath("data", "transformers_types.json").read_text("utf-8")
    listed = json.loads(text)
    if listed["made_by"] != f"transformers {metadata.version('transformers')}":
        pytest.skip("another version of transformers than the list was made by")
    assert set(listed["types"]["known"]) == generic.known_types()
    assert set(listed["types"]["encoders"]) == generic.encoder_types()


def test_what_is_listed_is_told_without_transformers(monkeypatch):
    monkeypatch.setattr(generic, "known_types", None)
    monkeypatch.setattr(generic, "encoder_types", None)
    assert generic.is_known("gemma3_text")
    assert not generic.is_encoder("gemma3_text")
    assert generic.is_encoder("modernbert")


def test_what_is_not_listed_is_asked_for(monkeypatch):
    monkeypatch.setattr(generic, "known_types", lambda: {"of-next-year"})
    monkeypatch.setattr(generic, "encoder_types", lambda: {"of-next-year"})
    assert generic.is_known("of-next-year")
    assert generic.is_encoder("of-next-year")
    assert not generic.is_known("of-no-year")
