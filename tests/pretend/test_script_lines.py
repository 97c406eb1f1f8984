"""What is read off a script's frames, of which nothing may change."""

import pytest

from brimful.pretend.script_lines import variable_of

pytestmark = pytest.mark.torch


def test_a_value_has_the_name_of_the_variable_that_it_is_in():
    policy = object()
    found = variable_of(policy), variable_of(object())
    assert found == ("policy", "")


def test_what_a_script_asks_of_its_locals_stays():
    width = 3
    kept = locals()
    found = variable_of(object())
    assert (found, kept["width"]) == ("", width)
