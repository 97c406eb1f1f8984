"""The plan that holds by replay: the fastest whose requests fit, found without torch."""

import msgspec
import pytest

from brimful.allocator.config import EXPANDABLE
from brimful.cost.reserved import candidate_of, predicted_reserved
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search import holding
from brimful.search.holding import hold, hold_firmly, looked_at
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.search.walk import WORTH
from brimful.units import GIB
from brimful.values.job import plain_job

JOB = plain_job(
    load_model("qwen3-0.6b"),
    precision="bf16",
    seq_len=2048,
    global_batch=8,
    num_steps=2,
    learning_rate=1e-3,
)
H100 = load_cluster("h100-80gb", memory_limit_bytes=None)


def searched(usable_gib, **pins):
    device = msgspec.structs.replace(H100.device, usable_bytes=int(usable_gib * GIB))
    cluster = msgspec.structs.replace(H100, device=device)
    return solve(JOB, cluster, Pins(**pins), attention="sdpa", objective="time")


@pytest.mark.few(only=["9", "16", "24.5"])
@pytest.mark.parametrize("usable_gib", [7.5, 9, 12, 16, 24.5])
def test_the_plan_is_the_first_whose_replay_fits(usable_gib):
    found = searched(usable_gib)
    held = hold(found)
    plan, table = held.solution.plan, found.space.table
    assert held.reserved.word == "fits"
    assert plan.estimate.predicted_reserved == held.reserved
    assert predicted_reserved(plan.job, plan.cluster, plan.strategy) == held.reserved
    order = found.space.order().tolist()
    row = order.index(next(r for r in order if found.space.strategy(r) == alike(plan.strategy)))
    faster = [r for r in order[:row] if table.step_s[r] * (1 + WORTH) < table.step_s[order[row]]]
    assert not any(looked_at(found.space, r).fits for r in faster[:40])


def test_who_asks_only_what_fits_gets_what_does_and_nothing_where_nothing_does():
    """Live tensors have room, and what the allocator makes of them has none."""
    pins = {"micro_batch": 8, "activation_checkpointing": "none", "loss_chunks": 1, "allocator": ""}
    found = searched(70, **pins)
    assert hold_firmly(found) == hold(found)
    live = found.plan.estimate.predicted_peak_allocated_bytes
    barely = searched((live + 70 * GIB - found.plan.estimate.usable_bytes) / GIB + 0.02, **pins)
    assert barely.plan.estimate.fits
    assert hold(barely).reserved.word != "fits"
    assert hold_firmly(barely) is None


@pytest.mark.long  # validation/plans_hold.json has such mixtures
def test_what_large_micro_batches_lack_is_not_expected_of_small_ones():
    """A mixture on eight H100s: micro-batches of 8 lack 18 GiB; then a pipeline was the plan."""
    job = plain_job(
        load_model("qwen3-30b-a3b"),
        precision="bf16-mixed",
        seq_len=4096,
        global_batch=64,
        num_steps=2,
    )
    cluster = load_cluster("8xh100-80gb", memory_limit_bytes=None)
    held = hold(solve(job, cluster, Pins(), attention="sdpa", objective="time"))
    strategy = held.solution.plan.strategy
    assert held.reserved.word == "fits"
    assert (strategy.pp, strategy.zero, strategy.micro_batch) == (1, 3, 4)


def alike(strategy):
    return msgspec.structs.replace(strategy, allocator="")


def test_an_allocator_that_is_pinned_is_the_only_one():
    held = hold(searched(12, allocator="expandable_segments:True"))
    assert held.reserved.allocator == "expandable_segments:True"
    assert held.solution.plan.strategy.allocator == "expandable_segments:True"


def test_what_takes_least_is_looked_at_after_as_many_as_may_be(monkeypatch):
    """What was found does not hold; that says nothing of what needs two thirds of it."""
    monkeypatch.setattr(holding, "MAX_REPLAYS", 0)
    held = hold(searched(9))
    assert held.reserved.word == "fits"
    assert held.solution.plan.strategy.micro_batch == 1


def test_what_recomputes_all_is_looked_at_before_nothing_is_said_to_hold():
    """Updates have the peak of 1.5B in bf16 on 12 GB: few and many recomputed blocks need as much.

    What lies in the allocator's cache is less with all of them, and then it holds.
    """
    job = plain_job(
        load_model("qwen2.5-1.5b"), precision="bf16", optimizer="adamw-8bit", seq_len=1024,
        global_batch=1, num_steps=2,
    )  # fmt: skip
    cluster = load_cluster("rtx-4070", memory_limit_bytes=None)
    held = hold(solve(job, cluster, Pins(), attention="sdpa", objective="time"))
    assert held.reserved.word == "fits"
    assert held.solution.plan.strategy.activation_checkpointing == "full"


def test_where_nothing_fits_there_is_nothing_to_replay():
    found = searched(2)
    held = hold(found)
    assert held.solution is found
    assert held.reserved is None


def test_a_tight_plan_that_empties_no_cache_comes_before_a_faster_one_that_does():
    found = searched(6.7)
    held = hold(found)
    assert (held.reserved.word, held.reserved.num_retries) == ("tight", 0)
    faster = candidate_of(JOB, found.plan.cluster, found.plan.strategy)
    retries = [faster.reserved(each).num_retries for each in ("", EXPANDABLE)]
    assert min(retries) > 0
    assert found.plan.estimate.predicted_step_s < held.solution.plan.estimate.predicted_step_s
