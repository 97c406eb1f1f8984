"""What is traced first, what next, and what is said of what was not."""

import json
from argparse import Namespace

import numpy as np
import pytest

from brimful.cli import stages
from brimful.cli.on_demand import traced_or_untold
from brimful.cost.own_programs import Need
from brimful.search.budget import Budget
from samples import TRACED_PHI, make_job, make_strategy

BODIES = ("plain", "checkpointed", "mixed", "later-mixed")
EVERY = [
    Need(gathers, "full" if body == "plain" else recompute, body, chunks)
    for gathers in (False, True)
    for recompute in ("full", "selective")
    for body in BODIES
    for chunks in (1, 5)
    if body != "plain" or recompute == "full"
]
OPEN = Namespace(objective="time", activation_checkpointing=None)
SHARDED = make_strategy(zero=3, dp_shard=4)
GAINS, MORE = "which gains 1.5% at most", "(a larger --budget does)"
WAYS = "full of all layers, full of some layers, selective of all layers, selective of some layers"


class Found:
    """A best plan of a search, as far as stages look at it."""

    def __init__(self, *, fits=True, step_s=1.0, least_s=1.0):
        row = Namespace(fits=fits, step_s=step_s, strategy=SHARDED, peak_bytes=2**30)
        self.record = Namespace(rows=[row])
        self.plan = Namespace(estimate=None, job=make_job())
        self.space = Namespace(table=Namespace(step_s=np.array([least_s, np.nan, step_s])))


def budget(left_s=60.0):
    now = iter([0.0, *[60.0 - left_s] * 9])
    return Budget(60, clock=lambda: next(now))


def traced_in_turn(found):
    """Return what each stage traces, until nothing is left."""
    known, each = set(), []
    some = stages.first_of(OPEN, make_job(), SHARDED, EVERY)
    while some:
        each.append(some)
        known |= set(some)
        missing = [need for need in EVERY if need not in known]
        some = stages.next_of(missing, found, EVERY) if missing else []
    assert known == set(EVERY)
    return each


def test_what_recomputes_nothing_and_is_sharded_as_planned_comes_first():
    first, second, third = traced_in_turn(Found())
    assert {(need.gathers, need.body) for need in first} == {(True, "plain")}
    assert {need.num_chunks for need in first} == {1, 5}
    assert {(need.gathers, need.body) for need in second} == {(False, "plain")}
    assert third[0] == Need(gathers=True, recompute="selective", body="mixed", num_chunks=1)
    assert third[-1].body == "checkpointed"


def test_where_that_does_not_fit_all_is_recomputed_next():
    _, second, third, fourth, _ = traced_in_turn(Found(fits=False))
    assert {(need.gathers, need.body) for need in second} == {(True, "checkpointed")}
    assert {(need.gathers, need.body) for need in third} == {(False, "plain")}
    assert {(need.gathers, need.body) for need in fourth} == {(False, "checkpointed")}


def test_what_is_fixed_to_recompute_is_traced_at_once():
    fixed = Namespace(objective="time", activation_checkpointing="selective")
    first = stages.first_of(fixed, make_job(), SHARDED, EVERY)
    assert first == [need for need in EVERY if need.gathers]


def test_of_pairs_of_texts_the_whole_loss_comes_first():
    job = Namespace(task="seq2seq")
    first = stages.first_of(OPEN, job, SHARDED, EVERY)
    assert first == [Need(gathers=True, recompute="full", body="plain", num_chunks=1)]


@pytest.mark.parametrize(
    ("found", "left_s", "told"),
    [
        (Found(), 60, "checkpointing was not tried, as it is slower"),
        (Found(least_s=0.985), 60, f"other checkpointing was not traced, {GAINS}: {WAYS}"),
        (Found(least_s=0.9), 60, ""),
        (Found(least_s=0.9), 20, f"other checkpointing was not traced in time {MORE}: {WAYS}"),
        (Found(fits=False), 20, ""),
    ],
)  # fmt: skip
def test_enough_is_traced_where_little_is_to_gain_or_time_is_over(found, left_s, told):
    missing = [need for need in EVERY if need.body != "plain"]
    assert stages.why_no_more(OPEN, found, budget(left_s), missing) == told


def test_what_no_table_was_asked_of_may_stop_and_no_plain_one_is_missing():
    plain = [need for need in EVERY if need.body == "plain" and not need.gathers]
    assert stages.why_no_more(OPEN, Found(), budget(), plain) == ""
    late = stages.why_no_more(OPEN, Found(), budget(20), plain)
    assert late.startswith("whole copies on each GPU were not traced in time")
    explained = Namespace(**vars(OPEN), explain=True)
    missing = [need for need in EVERY if need.body != "plain"]
    assert stages.why_no_more(explained, Found(), budget(), missing) == ""


def test_what_would_take_longer_than_is_left_is_not_begun():
    assert not stages.is_late(budget(40))
    assert stages.is_late(budget(40), 11.0)


@pytest.mark.torch
def test_a_first_look_and_the_best_so_far_are_told_before_all_is_traced(
    folder, brimful, monkeypatch
):
    monkeypatch.setattr("brimful.cost.profiles._own", {})  # what other tests traced
    monkeypatch.setattr("brimful.cli.stages.MOST_TRACED", 2.0)  # however slow this machine is
    (folder / "phi.json").write_text(json.dumps(TRACED_PHI))
    asked = ("phi.json", "--gpus", "2xa100-40gb", "--seq-len", 512, "--precision", "bf16")
    said = brimful("plan", *asked, "--global-batch", 8, "--no-proof", "--explain")
    first, so_far = said.err.find("at first micro-batch 1"), said.err.find("best so far")
    assert 0 < first < so_far < said.err.rfind("tracing ...")
    assert "GiB" in said.err[first:so_far] or "MiB" in said.err[first:so_far]
    assert "tokens/s, which may fit" in said.err[first:so_far]
    assert "not traced" not in said.out.partition("Savings ledger")[0]
    again = brimful("plan", *asked, "--global-batch", 8, "--no-proof", "--explain")
    assert (again.out, again.err) == (said.out, "")


@pytest.mark.torch
def test_where_time_is_over_no_further_program_is_traced(folder, brimful, monkeypatch):
    monkeypatch.setattr("brimful.cost.profiles._own", {})
    (folder / "phi.json").write_text(json.dumps(TRACED_PHI))
    began = []
    real = traced_or_untold

    def told(args, asked, needs, tell=None, is_over=None):
        began.append((len(needs), is_over))
        over = None if is_over is None else (lambda _next_s: True)
        return real(args, asked, needs, tell or (lambda: None), over)

    monkeypatch.setattr("brimful.cli.on_demand.traced_or_untold", told)
    asked = ("phi.json", "--gpus", "a100-40gb", "--seq-len", 512, "--precision", "fp32")
    said = brimful("plan", *asked, "--global-batch", 8, "--no-proof", "--explain")
    assert said.code == 0
    assert len(began) > 3  # one program a time
    assert began[0][1] is None
    assert began[-1][1] is not None
