"""A plan says whether its run is done in time and for the money that there is."""

import json
import re

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
    done, _, whole = re.search(
        r"; ([\d,]+)( of its )([\d,]+) steps \([\d.]+[KMB]? tokens\) are done by then", rest
    ).groups()
    share = int(done.replace(",", "")) / int(whole.replace(",", ""))
    assert share == pytest.approx(1 / hours, rel=0.01)


def test_money_may_be_in_another_currency(brimful):
    asked = ("estimate", *JOB, *LONG, "--money-budget", "1gbp")
    assert brimful(*asked).code == 2
    said = brimful(*asked, "--currency", "gbp=1.3")
    assert " GBP more than 1.00 GBP" in limits_of(said)


def test_a_limit_of_a_run_of_no_length_asks_for_it(brimful):
    assert "add --tokens" in limits_of(brimful("estimate", *JOB, "--deadline", "2h"))


MEGATRON = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --micro-batch-size 1 --bf16 --vocab-size 32000"
)


def test_a_deadline_within_the_range_of_the_time_is_said_to_be_no_sure_thing(brimful):
    hours = json.loads(brimful("estimate", *JOB, *LONG, "--json").out)["cost"]["hours"]
    near = brimful("estimate", *JOB, *LONG, "--deadline", f"{1.1 * hours:.3f}h")
    assert ", but at the slow end of its range it takes " in limits_of(near)
    assert near.code == 0
    far = limits_of(brimful("estimate", *JOB, *LONG, "--deadline", f"{3 * hours:.3f}h"))
    assert "slow end" not in far


NO_RUN = {"inference": ("estimate", "smollm2-135m", "--gpus", "h100", "--task", "inference")}


def test_a_programs_run_is_checked_by_its_steps_or_the_tokens_that_are_typed(brimful):
    """They were refused below days that were printed."""
    asked = ("estimate", "--from", f"{MEGATRON} --global-batch-size 64 --train-iters 1000",
             "--gpus", "8xh100", "--deadline", "6d", "--money-budget", "0.01usd")  # fmt: skip
    said = limits_of(brimful(*asked))
    assert said.startswith("in time for the deadline of 6 days; ")
    assert " USD more than 0.01 USD" in said
    told = json.loads(brimful(*asked, "--json").out)
    assert told["limits"]["in_time"] is True
    assert told["cost"]["num_steps"] == 1000
    more = json.loads(brimful(*asked, "--tokens", 64 * 512 * 3000, "--json").out)
    assert more["cost"]["hours"] == pytest.approx(3 * told["cost"]["hours"])
    open_end = ("estimate", "--from", MEGATRON, "--gpus", "8xh100", "--deadline", "1h")
    assert "not checked: nobody says how long" in limits_of(brimful(*open_end))


def test_limits_of_a_program_send_nobody_shopping_and_outlast_a_no(brimful):
    """``brimful shop`` takes no program; and where nothing fits they were said nothing of."""
    late = ("estimate", "--from", MEGATRON, "--gpus", "8xh100", "--tokens", "1T")
    told = limits_of(brimful(*late, "--deadline", "1h"))
    assert " too late for the deadline of 60 min" in told
    assert "brimful shop" not in told
    huge = f"{MEGATRON.replace('layers 2 ', 'layers 400 ').replace('512 --num', '16384 --num')}"
    said = brimful("estimate", "--from", huge, "--gpus", "8xt4", "--deadline", "1h")
    assert said.out.startswith("NO")
    assert limits_of(said).startswith("the deadline is not checked: nothing near it was found")


def test_tokens_are_steps_where_the_speed_is_unknown(brimful):
    """They were left out there, and the steps of the command line told as the run's."""
    line = f"{MEGATRON} --global-batch-size 64 --train-iters 1000"
    asked = ("estimate", "--from", line, "--gpus", "8xt4", "--tokens", 64 * 512 * 30)
    told = json.loads(brimful(*asked, "--json").out)
    assert told["predicted_tokens_per_s"] is None
    assert told["tokens_per_step"] == 64 * 512
    assert (told["cost"]["num_steps"], told["cost"]["num_tokens"]) == (30, 64 * 512 * 30)


def test_a_layout_of_megatrons_is_checked_too(brimful):
    asked = ("plan", "llama-3.2-1b", "--for", "megatron", "--gpus", "8xh100", *LONG)
    assert " too late for the deadline of 60 s" in limits_of(brimful(*asked, "--deadline", "1min"))


@pytest.mark.parametrize("asked", NO_RUN.values(), ids=NO_RUN)
@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (("--deadline", "1h"), "--deadline is of a training run's"),
        (("--money-budget", "1eur"), "--money-budget is of a training run's"),
        (("--currency", "eur=1.08"), "--currency is of a training run's"),
        (("--deadline", "1h", "--money-budget", "1usd"), "--deadline and --money-budget are of"),
    ],
)
def test_limits_of_what_is_no_run_are_refused(brimful, asked, limits, named):
    """They were taken, and nothing was said of them."""
    said = brimful(*asked, *limits, "--json")
    assert (said.code, said.out) == (2, "")
    assert len(said.err.strip().splitlines()) == 1
    assert said.err.startswith(f"brimful: {named}")
    assert "leave " in said.err
    assert brimful(*asked).code == 0


def test_below_a_refusal_the_same_is_answered_without(brimful):
    said = brimful(*NO_RUN["inference"], "--money-budget", "1usd")
    assert said.code == 2
    assert said.out.startswith("instead   the same without --money-budget:\nFITS")


NO_PRICE = "the budget is not checked: no price is known; --prices gives one"
NO_SPEED = "the budget is not checked: the speed is unknown"


def test_a_budget_without_a_price_is_said_not_to_be_checked(brimful):
    asked = ("estimate", "smollm2-135m", "--gpus", "h20", *LONG, "--money-budget", "1usd")
    assert limits_of(brimful(*asked)).startswith(NO_PRICE)
    both = limits_of(brimful(*asked, "--deadline", "1h"))
    assert " too late for the deadline of 60 min; " in both
    assert NO_PRICE in both
    assert "brimful shop" in both


def test_limits_without_a_speed_are_said_not_to_be_checked(brimful):
    """No rate is known of bf16 on a T4, and a price is."""
    asked = ("estimate", "smollm2-135m", "--gpus", "t4", "--precision", "bf16", "--seq-len", 128)
    limits = ("--deadline", "1h", "--money-budget", "1usd")
    told = limits_of(brimful(*asked, *LONG, *limits))
    assert told.startswith(f"the deadline is not checked: the speed is unknown; {NO_SPEED}")
    found = json.loads(brimful(*asked, *LONG, *limits, "--json").out)["limits"]
    expected = {"deadline_s": 3600, "in_time": None, "budget_usd": 1, "within_budget": None}
    assert found == expected


def test_limits_where_no_gpu_is_named_are_said_not_to_be_checked(brimful, monkeypatch):
    monkeypatch.setattr("brimful.cli.no_gpu.is_asked", lambda _: True)
    said = brimful("estimate", "smollm2-135m", *LONG, "--deadline", "1h", "--money-budget", "9")
    words = "the deadline and the budget are not checked: no GPU was named; add --gpus"
    assert limits_of(said).startswith(words)


@pytest.mark.parametrize("verb", ["plan", "estimate"])
def test_the_json_says_whether_limits_are_kept(brimful, verb):
    more = ("--no-proof",) if verb == "plan" else ()
    asked = (verb, *JOB, *LONG, *more, "--json")
    found = json.loads(brimful(*asked, "--deadline", "30d", "--money-budget", "1usd").out)
    expected = {"deadline_s": 30 * 86400, "in_time": True, "budget_usd": 1, "within_budget": False}
    assert found["limits"] == expected
    assert "limits" not in json.loads(brimful(*asked).out)


def test_a_whole_run_is_told_in_one_currency(brimful):
    asked = ("estimate", *JOB, *LONG)
    cost = json.loads(brimful(*asked, "--json").out)["cost"]
    for limits in ((), ("--money-budget", "1000eur"), ("--deadline", "1h")):
        out = " ".join(brimful(*asked, "--currency", "eur=1.25", *limits).out.split())
        hour = cost["usd_per_gpu_hour"] / 1.25
        assert f" {cost['usd'] / 1.25:.2f} EUR ({hour:.2f} a GPU-hour" in out
        assert "USD" not in out
