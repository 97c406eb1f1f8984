"""One table of strings, whole in every language; and the accuracy that is carried is the page's."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from brimful.errors import UnknownNameError
from brimful.web.accuracy import accuracy
from brimful.web.page import asset
from brimful.web.words import tables, words_of

ROOT = Path(__file__).parents[2]


def test_languages_have_the_same_strings():
    english, chinese = tables()["en"], tables()["zh"]
    assert english.keys() == {key for key in chinese if not key.startswith("fact.")}
    assert all(text.strip() for text in [*english.values(), *chinese.values()])


def test_places_in_strings_are_the_same():
    english, chinese = tables()["en"], tables()["zh"]
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", chinese[key])), key


def test_what_the_script_says_is_in_the_table():
    script = asset("web.js").decode("utf-8")
    asked = set(re.findall(r"words\.(\w+)", script))
    assert asked == set(words_of("en").for_script)


def test_another_language_is_refused():
    with pytest.raises(UnknownNameError):
        words_of("xx")


def test_the_accuracy_beside_numbers_is_that_of_the_evidence():
    spec = importlib.util.spec_from_file_location("trust", ROOT / "docs" / "generate_trust.py")
    trust = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trust)
    assert json.loads(trust.carried()) == json.loads(
        (ROOT / "src" / "brimful" / "web" / "accuracy.json").read_text("utf-8")
    )
    assert {kind.key for kind in accuracy().published} >= {"allocated", "speed", "simulated"}
