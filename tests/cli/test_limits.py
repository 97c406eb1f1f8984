"""A plan says whether its run is done in time and for the money that there is."""

import json

import pytest

JOB = ("smollm2-135m", "--gpus", "h100", "--seq-len", 512, "--micro-batch", 1)
LONG = ("--tokens", "1B")


def limits_of(said):
    told = " ".join(said.out.split())
    return told.partition(" limits ")[2]


@pytest.mark.parametrize("verb", ["plan", "estimate"])
def test_limits_that_are_kept_are_said_so(brimful, verb):
    more = ("--no-proof",) if verb == "plan" else ()
    said = brimful(verb, *JOB, *LONG, *more, "--deadline", "30d", "--money-budget", "9000usd")
    assert limits_of(said).startswith("in time for the deadline of 30 days; within 9,000 USD")


def test_what_is_late_says_by_how_much_and_who_finds_what_is_not(brimful):
    said = brimful("estimate", *JOB, *LONG, "--deadline", "1h", "--json")
    hours = json.loads(said.out)["cost"]["hours"]
    said = brimful("estimate", *JOB, *LONG, "--deadline", "1h")
    over, _, rest = limits_of(said).partition(" too late for the deadline of 60 min: ")
    assert float(over.split()[0]) == pytest.approx(hours - 1, rel=0.01)
    assert rest.startswith("brimful shop with the same job and --deadline finds what does")


def test_money_may_be_in_another_currency(brimful):
    asked = ("estimate", *JOB, *LONG, "--money-budget", "1gbp")
    assert brimful(*asked).code == 2
    said = brimful(*asked, "--currency", "gbp=1.3")
    assert " GBP more than 1.00 GBP" in limits_of(said)


def test_a_limit_of_a_run_of_no_length_asks_for_it(brimful):
    assert "add --tokens" in limits_of(brimful("estimate", *JOB, "--deadline", "2h"))
