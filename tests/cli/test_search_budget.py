"""A search that simulates, as the command line shows it: progress, budget, exit codes."""

import json
from types import SimpleNamespace

import pytest

from brimful.cli import plan_told
from brimful.cli.plan import exit_code
from brimful.cli.progress import PLAIN_EVERY_S, Progress
from brimful.search.budget import Budget
from brimful.search.record import INTERRUPTED, Untried

UNFORMULATED = (
    "plan",
    "tiny.json",
    "--optimizer-in-backward",
    "--clip",
    "0",
    "--seq-len",
    32,
)


def test_where_there_is_no_terminal_a_line_says_now_and_then_where_it_is(capsys):
    now = [0.0]
    with Progress("searching", quiet=False, clock=lambda: now[0]) as progress:
        for second in range(2 * int(PLAIN_EVERY_S) + 1):
            now[0] = float(second)
            progress.report(f"{second} of 60", second / 60)
    said = capsys.readouterr()
    lines = [f"searching: {int(times * PLAIN_EVERY_S)} of 60" for times in (1, 2)]
    assert said.err.splitlines() == ["searching ...", *lines]
    assert said.out == ""


@pytest.mark.parametrize(
    ("fits", "why", "code"),
    [
        (True, None, 0),
        (False, None, 1),
        (True, "the budget of 60 s was over", 0),
        (False, "the budget of 60 s was over", 124),
        (True, INTERRUPTED, 130),
        (False, INTERRUPTED, 130),
    ],
)
def test_that_nothing_fits_is_said_only_where_all_was_looked_at(fits, why, code):
    untried = why and Untried(why=why, num_strategies=1, num_most=2, ways=())
    record = SimpleNamespace(rows=(SimpleNamespace(fits=fits),), untried=untried)
    plan = SimpleNamespace(estimate=None)
    assert exit_code(SimpleNamespace(plan=plan, record=record)) == code


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_a_search_that_found_nothing_in_its_budget_says_exactly_that(brimful, monkeypatch, folder):
    clock = iter(range(10**9))
    monkeypatch.setattr(
        "brimful.search.budget.Budget", lambda seconds: Budget(seconds, clock=lambda: next(clock))
    )
    said = brimful(*UNFORMULATED, "--gpus", "a100-40gb", "--budget", 9, "-o", "p.yaml", "--json")
    assert (said.code, said.out) == (124, "")
    assert "found nothing in its budget of 9 s" in said.err
    assert "does not fit" not in said.err
    assert not (folder / "p.yaml").exists()


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_activations_on_the_host_are_searched_by_simulating(brimful):
    asked = ("plan", "tiny.json", "--gpus", "a100-40gb", "--seq-len", 32, "--global-batch", 2)
    said = brimful(*asked, "--offload", "activations", "--json")
    assert said.code == 0
    assert json.loads(said.out)["strategy"]["offload"] == "activations"


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_what_states_take_is_said_before_anything_is_simulated(brimful):
    said = brimful(*UNFORMULATED, "--gpus", "a100-40gb", "--budget", 30, "--no-proof")
    lines = said.err.splitlines()
    (at,) = (n for n, line in enumerate(lines) if "settings are simulated" in line)
    assert "on the GPU at least; activations come on top" in lines[at + 1]
    assert lines[at + 2].startswith("a billion tokens take ")
    assert lines[at + 3] == "simulating ..."


@pytest.mark.parametrize(("budget", "spent", "left"), [(60, 10, 50), (60, 55, 20), (5, 5, 5)])
def test_a_proof_has_what_the_search_left_and_a_little_at_least(monkeypatch, budget, spent, left):
    now, given = [0.0], []
    monkeypatch.setattr(plan_told, "proof_of", lambda *each: given.append(each[-1].seconds))
    search = Budget(budget, clock=lambda: now[0])
    now[0] = spent
    plan_told.proven_or_told(SimpleNamespace(budget=budget, json=False), None, search)
    assert given == [left]


@pytest.mark.torch
@pytest.mark.usefixtures("folder")
def test_the_first_that_is_simulated_is_told_at_once(brimful):
    said = brimful(*UNFORMULATED, "--gpus", "rtx-4090", "--global-batch", 4)
    assert said.code == 0
    lines = [each for each in said.err.splitlines() if each.startswith("simulating: ")]
    first = next(each for each in lines if "nothing is known yet" not in each)
    assert "1 simulated" in first
    assert "best micro-batch" in first
    assert "tokens/s" in first
