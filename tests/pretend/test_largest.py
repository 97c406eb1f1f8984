"""The largest value of a script's own argument that fits: which values are tried, and how often."""

import math
import subprocess
import sys

import numpy as np
import pytest
from tests.pretend.recordings import place, small_run, take

from brimful.errors import InputError
from brimful.pretend.largest import (
    MOST_MORE_RUNS,
    MOST_RUNS,
    Aim,
    Tried,
    _Search,
    argument_of,
    find_largest,
    step_of,
    value_in,
    with_default,
    with_value,
)
from brimful.pretend.recording_builder import RecordingBuilder
from brimful.pretend.size_law import law_of
from brimful.show.sizes import _largest_words
from brimful.units import MIB
from brimful.values.results import PARAMETERS


def searched(program, name, most, sure=None):
    """Search where a value fits up to a limit; return what was found and what was tried."""
    argument, tried = argument_of(program, name), []

    def word(value):
        if value > most:
            return "no"
        return "fits" if sure is None or value <= sure else "tight"

    def run(changed):
        tried.append(value_in(changed, argument))
        return Tried(word(tried[-1]))

    found = find_largest(program, argument, run, first=Tried(word(argument.value)))
    assert found.num_runs == len(tried) == len(set(tried))
    return found, tried


@pytest.mark.parametrize("most", [1, 127, 128, 2047, 2175, 2176, 4096, 5000, 20000])
def test_what_is_found_fits_and_the_next_step_does_not(most):
    found, _ = searched(["train.py", "--width", "4096"], "width", most)
    assert (found.value or 0) <= most < found.beyond
    assert found.value is None or found.beyond - found.value == 128
    assert found.num_runs <= MOST_RUNS


def test_one_that_fits_beyond_what_does_not_is_named():
    """Blocks of the allocator fall otherwise: 4 was foretold not to fit, and 5 was run and does."""
    program = ["train.py", "--batch", "3"]
    argument = argument_of(program, "batch")
    search = _Search(program, argument, lambda _: Tried("fits"), Tried("fits"), None)
    search._probe(5)
    found = search.found({4: "no", 6: "no"})
    assert (found.value, found.beyond, found.above) == (3, 4, 5)
    assert "4 does not, though 5 does" in _largest_words(found, is_bound=False)


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
    assert (argument.value, argument.prefix) == (16, "--layers=")
    assert with_value(program, argument, 8) == [*program[:2], "--layers=8", *program[3:]]


@pytest.mark.parametrize("name", ["depth", "bf16", "rate"])
def test_what_is_no_count_is_refused(name):
    program = ["train.py", "--bf16", "--rate", "0.1"]
    with pytest.raises(InputError, match=f"--largest {name}"):
        argument_of(program, name)


def test_a_number_that_a_script_writes_out_is_said_to_be_no_argument(tmp_path):
    script = tmp_path / "x.py"
    script.write_text("BATCH = 128\n", "utf-8")
    with pytest.raises(InputError, match="BATCH = 128 is written in"):
        argument_of([str(script)], "BATCH")


def test_a_program_without_end_in_what_fits_is_left():
    found, _ = searched(["train.py", "--tokens", "1"], "tokens", 10**12)
    assert (found.beyond, found.num_runs) == (None, MOST_RUNS)


@pytest.mark.parametrize(
    ("declared", "begins"),
    [
        ('parser.add_argument("--batch-size", type=int, default=8)', ["--batch-size", "8"]),
        ('parser.add_argument("-b", "--batch_size", default=4)', ["--batch_size", "4"]),
        (f'parser.add_argument("--batch-size", default={"9" * 5000})', []),
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


@pytest.mark.parametrize(
    "given",
    [["--batch-size", "2", "--batch-size", "4"], ["-b", "4"], ["-b4"], ["--batch", "4"],
     ["--batch-size=4", "--lr", "1"]],
    ids=" ".join,
)  # fmt: skip
def test_the_value_that_counts_is_changed_however_it_is_typed(tmp_path, given):
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', '-b', type=int, default=8)\n"
        "p.add_argument('--lr', type=float)\nimport sys\n"
        "print(p.parse_args(sys.argv[1:]).batch_size)\n"
    )
    program = [str(script), *given]
    assert with_default(program, "batch-size") == program
    changed = with_value(program, argument_of(program, "batch-size"), 16)
    done = subprocess.run([sys.executable, *changed], capture_output=True, check=True)
    assert int(done.stdout) == 16


FIXED, EACH, SQUARED = 64, 8, 1
"""MiB of a script's states, of each one more of its batch, and of its square over 16."""


def ran(value, *, beside=False, num_rounds=0):
    """Record a step whose sizes grow with a value: states, saved, scores; and an evaluation."""
    builder = RecordingBuilder()
    take(builder, FIXED * MIB, place("aten.empty", "weights", line=1), item=PARAMETERS)
    for line in range(100):
        builder.free(take(builder, 512, place("aten.add", "layer", line=line)))
    builder.begin_phase("step 1 forward")
    saved = take(builder, EACH * value * MIB, place("aten.mm", "layer", line=2))
    scores = take(builder, SQUARED * value**2 * MIB // 16, place("aten._softmax", "layer", line=3))
    if beside:
        builder.free(take(builder, 512, place("workspace", "layer", line=3)))
    builder.free(scores)
    builder.free(saved)
    for _ in range(num_rounds):
        for line in range(50):
            builder.free(take(builder, 512, place("aten.add", "evaluation", line=line)))
    return builder.build()


def live(recording):
    return Tried(
        "fits" if (peak := int(recording.live_bytes().max())) <= SURE
        else "tight" if peak <= MOST else "no",
        peak,
    )  # fmt: skip


SURE, MOST = 1000 * MIB, 1100 * MIB


def searched_by_law(program, name, *, state_bytes=FIXED * MIB, most=10**9):
    argument, tried = argument_of(program, name), []

    def recorded(value):
        made = ran(value, beside=value > 60)  # a kernel that larger ones take
        return live(made)._replace(recording=made)

    def run(changed):
        tried.append(value_in(changed, argument))
        return recorded(tried[-1]) if tried[-1] <= most else Tried("no", refused="raises")

    aim = Aim(SURE, MOST, state_bytes, live)
    return find_largest(program, argument, run, first=recorded(argument.value), aim=aim), tried


def largest_below(limit):
    return max(n for n in range(1, 1000) if live(ran(n)).num_bytes <= limit)


@pytest.mark.few(only=["1", "64", "200"])  # from below, at another kernel, from above
@pytest.mark.parametrize("given", [1, 8, 40, 96, 64, 200])
def test_few_runs_say_of_every_value_what_it_would_ask_for(given):
    found, tried = searched_by_law(["train.py", "--batch", str(given)], "batch")
    step = step_of(given)
    assert found.sure == largest_below(SURE) // step * step
    assert found.value == largest_below(MOST) // step * step
    assert found.beyond == found.value + step
    assert found.num_runs == len(tried) <= 5
    assert found.num_replays


def test_a_value_that_is_told_is_one_that_was_run():
    found, tried = searched_by_law(["train.py", "--batch", "8"], "batch")
    assert found.sure in tried


def test_where_states_have_no_room_the_least_is_run_and_nothing_else():
    argument, tried = argument_of(["train.py", "--batch-size", "200"], "batch-size"), []

    def run(changed):
        tried.append(value_in(changed, argument))
        return Tried("no", 2 * MOST)

    aim = Aim(SURE, MOST, 2 * MOST, live)
    first = Tried("no", 3 * MOST)
    program = ["train.py", "--batch-size", "200"]
    found = find_largest(program, argument, run, first=first, aim=aim)
    assert (found.value, found.beyond, tried) == (None, step_of(200), [step_of(200)])
    assert found.beyond_bytes == 2 * MOST


def test_where_a_program_refuses_values_runs_alone_say():
    found, tried = searched_by_law(["train.py", "--batch", "8"], "batch", most=40)
    assert (found.value, found.beyond, found.refused) == (40, 41, "raises")
    assert found.num_runs == len(set(tried))


@pytest.mark.parametrize("divisor", [3, 12])
def test_a_value_that_is_refused_below_one_that_fits_says_nothing_of_memory(divisor):
    """A width that the number of heads divides: few are taken, and more than they may fit."""
    program = ["train.py", "--width", "96"]
    argument, tried = argument_of(program, "width"), []

    def recorded(value):
        return live(ran(value))._replace(recording=ran(value))

    def run(changed):
        tried.append(value_in(changed, argument))
        return Tried("no", refused="raises") if tried[-1] % divisor else recorded(tried[-1])

    aim = Aim(SURE, MOST, FIXED * MIB, live)
    first = recorded(argument.value)
    assert first.word == "no"
    found = find_largest(program, argument, run, first=first, aim=aim)
    each = math.lcm(divisor, step_of(argument.value))
    assert found.value == largest_below(MOST) // each * each
    assert found.num_runs == len(tried) == len(set(tried)) <= MOST_RUNS


def test_where_all_that_may_fit_is_refused_that_is_told():
    program = ["train.py", "--width", "96"]

    def run(_changed):
        return Tried("no", refused="raises")

    aim = Aim(SURE, MOST, FIXED * MIB, live)
    argument, first = argument_of(program, "width"), live(ran(96))._replace(recording=ran(96))
    found = find_largest(program, argument, run, first=first, aim=aim)
    assert (found.value, found.beyond, found.refused) == (None, 96, "raises")
    assert found.num_runs <= MOST_RUNS + MOST_MORE_RUNS


def test_what_grows_within_what_the_allocator_holds_anyway_is_not_idle():
    argument, tried = argument_of(["train.py", "--batch", "1"], "batch"), []

    def recorded(value):
        made = live(ran(value))
        return made._replace(num_bytes=max(made.num_bytes, 600 * MIB), recording=ran(value))

    def run(changed):
        tried.append(value_in(changed, argument))
        return recorded(tried[-1])

    aim = Aim(SURE, MOST, FIXED * MIB, live)
    program = ["train.py", "--batch", "1"]
    found = find_largest(program, argument, run, first=recorded(1), aim=aim)
    assert not found.is_idle
    assert found.value == largest_below(MOST)


def test_an_argument_that_memory_does_not_hang_on_is_told_so():
    argument, tried = argument_of(["train.py", "--epochs", "3"], "epochs"), []

    def run(changed):
        tried.append(value_in(changed, argument))
        return live(ran(3))._replace(recording=ran(3))

    aim = Aim(SURE, MOST, FIXED * MIB, live)
    first = live(ran(3))._replace(recording=ran(3))
    found = find_largest(["train.py", "--epochs", "3"], argument, run, first=first, aim=aim)
    assert found.is_idle
    assert len(tried) == 2
    assert max(tried) > 500


@pytest.mark.parametrize("least", [20, 50, 100])
def test_kernels_that_only_large_values_take_cost_a_run_or_two(least):
    """Nothing is alike on both sides of a value, as where a product has another kernel."""
    argument, tried = argument_of(["train.py", "--batch", "4"], "batch"), []

    def recorded(value):
        made = ran(value) if value < least else without_layers(value)
        return live(made)._replace(recording=made)

    def run(changed):
        tried.append(value_in(changed, argument))
        return recorded(tried[-1])

    aim = Aim(SURE, MOST, FIXED * MIB, live)
    program = ["train.py", "--batch", "4"]
    found = find_largest(program, argument, run, first=recorded(4), aim=aim)
    true = max(n for n in range(1, 999) if recorded(n).num_bytes <= SURE)
    assert found.sure == true
    assert len(tried) <= 5


def test_where_an_evaluation_has_fewer_rounds_with_more_the_next_one_is_run():
    argument, tried = argument_of(["train.py", "--batch", "83"], "batch"), []

    def recorded(value):
        made = ran(value, num_rounds=-(-518 // value))
        return live(made)._replace(recording=made)

    def run(changed):
        tried.append(value_in(changed, argument))
        return recorded(tried[-1])

    aim = Aim(SURE, MOST, FIXED * MIB, live)
    program = ["train.py", "--batch", "83"]
    found = find_largest(program, argument, run, first=recorded(83), aim=aim)
    assert (found.sure, found.value) == (largest_below(SURE), largest_below(MOST))
    assert len(tried) <= 4  # seven by halves


def without_layers(value):
    """Record what takes as much in few requests."""
    builder = RecordingBuilder()
    take(builder, FIXED * MIB, place("aten.empty", "weights", line=1), item=PARAMETERS)
    builder.begin_phase("step 1 forward")
    taken = EACH * value * MIB + SQUARED * value**2 * MIB // 16
    builder.free(take(builder, taken, place("aten.mm", "layer", line=2)))
    return builder.build()


def test_what_was_found_until_an_interrupt_is_told():
    argument = argument_of(["train.py", "--batch", "64"], "batch")
    tried = []

    def run(changed):
        tried.append(value_in(changed, argument))
        if len(tried) > 2:
            raise KeyboardInterrupt
        return Tried("fits" if tried[-1] <= 10 else "no")

    program = ["train.py", "--batch", "64"]
    found = find_largest(program, argument, run, first=Tried("no"))
    assert not found.is_whole
    assert (found.beyond, found.num_runs) == (min(n for n in [*tried[:2], 64] if n > 10), 2)


def test_sizes_of_another_run_are_computed_though_it_asks_for_more():
    law = law_of({40: ran(40), 80: ran(80, beside=True), 20: ran(20)}, near=40)
    assert np.array_equal(law(30).num_bytes, ran(30).num_bytes)
    assert law_of({1: ran(1), 2: small_run()}, near=1) is None
