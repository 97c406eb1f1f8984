"""Goldens: a small part is answered as it was frozen, and what differs is found and shown."""

import goldens
import pytest

CHEAP = {"estimate": 24, "refusal": 8}
"""Of each kind every so manieth is asked here, none of which traces; ``goldens.py compare``
asks all."""
FROZEN = goldens.read_answers()


def cheap():
    kinds = {}
    for golden in goldens.read_goldens():
        kinds.setdefault(golden.name.partition("/")[0], []).append(golden)
    return [golden for kind, step in CHEAP.items() for golden in kinds[kind][step::step]]


@pytest.mark.few(6)
@pytest.mark.parametrize("golden", cheap(), ids=lambda golden: golden.name)
def test_an_answer_is_what_it_was(golden):
    now = goldens.answer(golden)
    assert not goldens.difference(golden.name, FROZEN[golden.name], now)


def test_there_are_hundreds_and_each_has_its_answer():
    every = goldens.read_goldens()
    assert len(every) >= 500
    assert len({golden.name for golden in every}) == len(every)
    assert all(golden.sha256 == goldens.digest(FROZEN[golden.name]) for golden in every)


def test_schemas_are_what_they_were():
    now = {name: text for name, text in goldens.fixed().items() if name.startswith("schema")}
    assert now == {name: text for name, text in FROZEN.items() if name.startswith("schema")}


def test_one_number_that_changed_is_found_and_shown(monkeypatch, capsys):
    part, original = "schema/Prices", goldens.fixed
    monkeypatch.setattr(goldens, "read_goldens", list)
    assert goldens.main(["compare", part]) == 0
    changed = {part: original()[part].replace("usd", "eur", 1)}
    monkeypatch.setattr(goldens, "fixed", lambda: changed)
    assert goldens.main(["compare", part]) == goldens.DIFFERS
    shown = capsys.readouterr().out
    assert "eur" in shown
    assert f"not: {part}" in shown


def test_what_is_frozen_anew_is_what_is_answered(monkeypatch, tmp_path):
    first = goldens.read_goldens()[0]
    monkeypatch.setattr(goldens, "CASES", tmp_path / "cases.jsonl")
    monkeypatch.setattr(goldens, "ANSWERS", tmp_path / "answers.xz")
    monkeypatch.setattr(goldens, "fixed", dict)
    monkeypatch.setattr(goldens, "_answers", lambda some: [(each.name, "said") for each in some])
    goldens._freeze([first], "", {})
    assert goldens.read_answers() == {first.name: "said"}
    assert goldens.read_goldens()[0].sha256 == goldens.digest("said") != first.sha256


def test_a_traceback_is_an_answer_and_two_times_are_one(monkeypatch):
    def fails(_argv):
        raise KeyError("none")

    monkeypatch.setattr(goldens, "command_line", fails)
    assert goldens._run(("estimate",))[2] == "KeyError: 'none'\n"
    assert goldens._told("3 allocations and frees in 2.7 s") == "3 allocations and frees in some s"
    assert goldens._told('{"a": 0.1000000000000001, "versions": "x"}') == '{\n"a": 0.1\n}'
