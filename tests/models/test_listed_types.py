"""The list of transformers' model types that spares importing it."""

from importlib import metadata

import pytest

from brimful.models import generic
from brimful.models.cut_plans import cut_types, is_cut


@pytest.mark.torch  # transformers imports it
def test_the_list_is_what_the_installed_transformers_says():
    listed = generic.listed()
    if listed.made_by != f"transformers {metadata.version('transformers')}":
        pytest.skip("another version of transformers than the list was made by")
    assert set(listed.modules) == generic.known_types()
    assert listed.encoders == generic.encoder_types()
    assert listed.cut == cut_types()
    assert listed.masked == generic.masked_types() & generic.known_types()
    for model_type, module in listed.modules.items():
        assert module == generic.installed_module_of(model_type)


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


def test_what_is_cut_is_told_by_the_plan_of_its_class(monkeypatch):
    """No list of ours: SmolLM3's class plans its layers as Llama's does, Phi-3's holds several."""
    monkeypatch.setattr(generic, "known_types", None)
    assert is_cut("smollm3")
    assert is_cut("gemma3_text")
    assert not any(map(is_cut, ("phi3", "olmo_hybrid", "qwen3_next", "gpt_oss", "eurobert")))
