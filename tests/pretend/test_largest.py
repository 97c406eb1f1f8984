"""The largest value of a script's own argument that fits: which values are tried, and how often."""

import pytest

from brimful.errors import InputError
from brimful.pretend.largest import (
    MOST_RUNS,
    argument_of,
    find_largest,
    step_of,
    value_in,
    with_default,
    with_value,
)


def searched(program, name, most, sure=None):
    """Search where a value fits up to a limit; return what was found and what was tried."""
    argument, tried = argument_of(program, name), []

    def word(value):
        if value > most:
            return "no"
        return "fits" if sure is None or value <= sure else "tight"

    def words(changed):
        tried.append(value_in(changed, argument))
        return word(tried[-1])

    found = find_largest(program, argument, words, first=word(argument.value))
    assert found.num_runs == len(tried) == len(set(tried))
    return found, tried


@pytest.mark.parametrize("most", [1, 127, 128, 2047, 2175, 2176, 4096, 5000, 20000])
def test_what_is_found_fits_and_the_next_step_does_not(most):
    found, _ = searched(["train.py", "--width", "4096"], "width", most)
    assert (found.value or 0) <= most < found.beyond
    assert found.value is None or found.beyond - found.value == 128
    assert found.num_runs <= MOST_RUNS


@pytest.mark.parametrize("sure", [8, 9, 18, 25])
def test_the_largest_sure_one_is_found_where_more_may_fit(sure):
    found, _ = searched(["train.py", "--batch", "32"], "batch", 25, sure)
    assert (found.value, found.sure, found.beyond) == (25, sure, 26)
    assert found.num_runs <= MOST_RUNS


def test_where_all_that_fits_is_tight_none_is_sure():
    found, _ = searched(["train.py", "--batch", "32"], "batch", 25, 0)
    assert (found.value, found.sure) == (25, None)


def test_sizes_are_tried_in_multiples_of_a_power_of_two_that_they_are():
    assert [step_of(n) for n in (1, 12, 100, 1536, 4096)] == [1, 1, 2, 32, 128]


def test_a_value_may_be_joined_to_its_flag():
    program = ["train.py", "--bf16", "--layers=16", "--width", "64"]
    argument = argument_of(program, "layers")
    assert (argument.value, argument.flag) == (16, "--layers")
    assert with_value(program, argument, 8) == [*program[:2], "--layers=8", *program[3:]]


@pytest.mark.parametrize("name", ["depth", "bf16", "rate"])
def test_what_is_no_count_is_refused(name):
    program = ["train.py", "--bf16", "--rate", "0.1"]
    with pytest.raises(InputError, match=f"--largest {name}"):
        argument_of(program, name)


def test_a_program_without_end_in_what_fits_is_left():
    found, _ = searched(["train.py", "--tokens", "1"], "tokens", 10**12)
    assert (found.beyond, found.num_runs) == (None, MOST_RUNS)


@pytest.mark.parametrize(
    ("declared", "begins"),
    [
        ('parser.add_argument("--batch-size", type=int, default=8)', ["--batch-size", "8"]),
        ('parser.add_argument("-b", "--batch_size", default=4)', ["--batch_size", "4"]),
        ('parser.add_argument("--batch-size", type=int, required=True)', []),
        ('parser.add_argument("--batch-size", default="many")', []),
        ('parser.add_argument("--seconds", default=8)', []),
        ("not Python", []),
    ],
)
def test_a_script_that_is_not_given_it_begins_from_its_own_default(tmp_path, declared, begins):
    script = tmp_path / "train.py"
    script.write_text(f"import argparse\nparser = argparse.ArgumentParser()\n{declared}\n")
    program = [str(script), "--epochs", "1"]
    assert with_default(program, "batch-size") == [*program, *begins]
    assert with_default([*program, "--batch-size=2"], "batch-size")[-1] == "--batch-size=2"
    if not begins:
        with pytest.raises(InputError, match="put --batch-size N behind"):
            argument_of(with_default(program, "batch-size"), "batch-size")
