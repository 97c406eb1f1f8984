import inspect
from itertools import product

import pytest

from each_case import each
from few_cases import chosen, named


def test_every_value_of_every_parameter_is_seen_in_few_cases():
    cases = [{"a": a, "b": b, "c": c} for a, b, c in product("xyz", (1, 2), (True, False))]
    found = [cases[i] for i in chosen(cases)]
    assert len(found) == 3
    for name in "abc":
        assert {case[name] for case in found} == {case[name] for case in cases}


def test_what_is_made_of_parts_counts_by_its_parts():
    tuples = [{"case": ("llama", "lora")}, {"case": ("llama", "lora")}, {"case": ("gpt2", "full")}]
    assert chosen(tuples) == [0, 2]
    switches = [{"how": {"zero": 3}}, {"how": {"zero": 2}}, {"how": {"zero": 2, "hold": True}}]
    assert chosen(switches) == [0, 2]


def test_a_number_of_cases_is_spread_over_the_list():
    cases = [{"number": number} for number in range(5)]
    assert chosen(cases, 1) == [0]
    assert chosen(cases, 2) == [0, 2]
    assert chosen(cases, 9) == [0, 1, 2, 3, 4]
    assert chosen(cases) == [0, 1, 2, 3, 4]


def test_one_case_is_there_at_least():
    assert chosen([{}]) == []
    assert chosen([{"a": 1}]) == [0]


def test_words_of_a_name_count_where_they_are_asked_for():
    cases = [{"name": name} for name in ("zero2-lora", "zero3-full", "zero2-full", "zero3-lora")]
    assert chosen(cases, by_words=True) == [0, 1]
    assert chosen(cases) == [0, 1, 2, 3]


def test_cases_are_kept_by_their_ids_and_one_that_is_gone_is_said():
    assert named(["a", "b", "c"], ["c", "a"]) == [0, 2]
    with pytest.raises(AssertionError, match="no such cases"):
        named(["a", "b"], ["a", "d"])
    assert named(["a"], ["a", "d"], are_all=False) == [0]


def test_many_cases_of_one_test_are_all_looked_at_and_each_that_fails_is_told(tmp_path):
    seen = []

    @each("a, b", [(1, 2), (3, 3), (4, 5)])
    @each("c", [7, 8])
    def unlike(c, tmp_path, a, b):
        seen.append((a, b, c, tmp_path))
        if c == 8:
            pytest.fail("always")
        assert a == b

    assert list(inspect.signature(unlike).parameters) == ["tmp_path"]
    with pytest.raises(BaseExceptionGroup, match="3 of 3 cases") as failed:
        unlike(tmp_path=tmp_path)
    assert seen == [(*pair, c, tmp_path) for pair in ((1, 2), (3, 3), (4, 5)) for c in (7, 8)]
    first, second, _ = failed.value.exceptions
    assert [error.__notes__ for error in first.exceptions] == [
        ["where {'c': 7}"],
        ["where {'c': 8}"],
    ]
    assert first.__notes__ == ["where {'a': 1, 'b': 2}"]
    assert [error.__notes__ for error in second.exceptions] == [["where {'c': 8}"]]


def test_a_list_of_no_cases_is_refused():
    with pytest.raises(AssertionError, match="no case"):
        each("a", [])


def test_folders_named_build_are_collected_too(pytestconfig):
    """pytest leaves them out by default, and did so here for a while."""
    assert "build" not in pytestconfig.getini("norecursedirs")
