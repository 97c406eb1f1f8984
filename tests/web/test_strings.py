"""One table of strings, whole in every language; and the accuracy that is carried is the page's."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from brimful.errors import UnknownNameError
from brimful.web import page
from brimful.web.accuracy import accuracy
from brimful.web.page import asset
from brimful.web.words import tables, words_of

ROOT = Path(__file__).parents[2]


def test_languages_have_the_same_strings():
    english, chinese = tables()["en"], tables()["zh"]
    assert english.keys() == {key for key in chinese if not key.startswith("fact.")}
    assert all(text.strip() for text in [*english.values(), *chinese.values()])


def test_every_label_of_a_fact_is_translated():
    package = ROOT / "src" / "brimful"
    labels = {
        label
        for file in package.rglob("*.py")
        for label in re.findall(r'\bFact\(\s*"([^"]+)"', file.read_text("utf-8"))
    }
    assert len(labels) > 50
    assert not {f"fact.{label}" for label in labels} - tables()["zh"].keys()


def test_places_in_strings_are_the_same():
    english, chinese = tables()["en"], tables()["zh"]
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", chinese[key])), key


def test_what_the_script_says_is_in_the_table():
    script = asset("web.js").decode("utf-8")
    asked = set(re.findall(r"words\.(\w+)", script))
    assert asked == set(words_of("en").for_script)


def test_every_string_is_said_somewhere():
    folder = ROOT / "src" / "brimful" / "web"
    files = [file for file in folder.rglob("*") if file.suffix in {".py", ".html"}]
    said = "".join(file.read_text("utf-8") for file in files)
    built = ("js.", "fact.", "form.group.", "what.", "field.", "axis.", "why.")
    numbered = re.compile(r"(accuracy|market)\.column\.\d")
    firsts = {f"form.{key}" for key in page._FIRST}
    unsaid = [
        key
        for key in tables()["en"]
        if not key.startswith(built) and not numbered.fullmatch(key) and key not in firsts
        if not any(f"{quote}{key}{quote}" in said for quote in "\"'")
        if not re.search(rf"\${key.replace('.', '_')}\b", said)
        if f'"{key.removeprefix("accuracy.")}"' not in said
    ]
    assert not unsaid


@pytest.mark.parametrize("language", ["en", "zh"])
def test_beside_an_answer_stands_how_far_what_nothing_was_chosen_by_was_off(
    language, tmp_path, monkeypatch
):
    from brimful.web.answers import answer
    from brimful.web.state import read_state

    monkeypatch.chdir(tmp_path)
    kinds = {kind.key: kind for kind in accuracy().published}
    drawn = answer(read_state({}), "tensors", words_of(language))["detail"]
    (said,) = re.findall(r'<p class="note off-by">(.*?)</p>', drawn)
    assert not {kinds["allocated"].p90, kinds["allocated fitted"].p90} & {*re.findall(
        r"\d+\.\d %", said)}  # fmt: skip
    for key in ("allocated unseen", "speed test"):
        assert kinds[key].median in said
        assert kinds[key].p90 in said


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


def test_targets_and_programs_are_those_of_the_command_line():
    """Not Megatron-LM: a layout of its own is no plan of ours to draw, download or replay."""
    from brimful.cli.for_program import MEGATRON, OWN, PROGRAMS
    from brimful.export import TARGETS

    assert {*page._TARGETS} == {"plan.yaml", *TARGETS}
    assert {*page._PROGRAMS} == {*PROGRAMS} - {OWN, MEGATRON}
