"""What the sample of the suite leaves out exists, and no function loses its last case."""

import ast
from pathlib import Path

from suite_sample import KEPT_ONE_IN, LONG, sample

HERE = Path(__file__).parent


def test_every_name_is_that_of_a_test():
    for name in [*KEPT_ONE_IN, *LONG]:
        file, _, function = name.partition("::")
        tree = ast.parse((HERE / file).read_text("utf-8"))
        known = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not function or function in known, name


def test_a_function_keeps_one_case_at_least():
    name = next(name for name, one_in in KEPT_ONE_IN.items() if "::" in name and one_in > 2)
    assert len(sample([f"{name}[only]"])) == 1
    many = {f"{name}[{number}]" for number in range(200)}
    assert 0 < len(sample(sorted(many))) < 100


def test_the_same_are_chosen_whatever_else_is_collected():
    file = "simulate/test_decoders.py"
    one, other = ([f"{file}::test_{name}[{n}]" for n in range(40)] for name in ("a", "b"))
    assert sample(one) <= sample([*one, *other])


def test_what_is_long_is_left_out():
    assert not sample(sorted(LONG))
    assert sample(["other.py::test_it"]) == {"other.py::test_it"}


def test_folders_named_build_are_collected_too(pytestconfig):
    """pytest leaves them out by default, and did so here for a while."""
    assert "build" not in pytestconfig.getini("norecursedirs")
