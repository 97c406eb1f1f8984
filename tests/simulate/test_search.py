"""Searching without a formula finds what the formulas find, where there are both."""

import msgspec
import pytest

from brimful.allocator.config import EXPANDABLE
from brimful.cost.estimate import estimate
from brimful.errors import InputError, OutOfTimeError
from brimful.measure.verdict import judge
from brimful.report.words import untried_sentence
from brimful.search.budget import Budget
from brimful.search.pins import Pins
from brimful.search.record import INTERRUPTED
from brimful.search.solve import solve
from brimful.search.tries import same_strategy
from brimful.search.ways_out import ways_out
from brimful.simulate import search
from brimful.simulate.attempt import Attempt, attempt
from brimful.simulate.run import simulate
from brimful.simulate.search import simulated_shortfall, solve_by_simulation
from brimful.values.results import MEASUREMENT_SCHEMA, Measurement
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

FREE = Pins(None, None, None)
UPDATE_SHARE = 0.25
"""How much of a tiny model's step its update's launches are, which profiles leave out."""


class Clock:
    """Seconds that pass when they are asked for, a bit each time, or when told."""

    def __init__(self, step_s=0.0):
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


def search_for(job, cluster, **changes):
    usual = {
        "pins": FREE,
        "attention": "sdpa",
        "objective": "time",
        "budget": Budget(60, clock=Clock()),
        "watch": lambda _: None,
    }
    return solve_by_simulation(job, cluster, **{**usual, **changes})


def by_simulation(job, cluster, pins=FREE, objective="time"):
    told = []
    found = search_for(job, cluster, pins=pins, objective=objective, watch=told.append)
    assert found.record.untried is None
    assert all(state.num_done < state.num_most for state in told)
    assert found.plan.estimate is None
    assert found.record.rung == "simulated"
    assert found.record.num_considered <= len(told) <= search.MAX_SIMULATIONS
    return found


@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
def test_an_attempt_is_the_prediction_where_there_is_one(kernels):
    job, cluster, strategy = make_job(), make_cluster(kernels), make_strategy(loss_chunks=2)
    tried, predicted = attempt(job, cluster, strategy), estimate(job, cluster, strategy)
    peak = predicted.predicted_peak_allocated_bytes
    assert tried.peak_bytes == pytest.approx(peak, rel=1e-3)
    assert tried.short_bytes == 0
    assert predicted.predicted_step_s < tried.step_s
    assert tried.step_s == pytest.approx(predicted.predicted_step_s, rel=UPDATE_SHARE)


def test_the_whole_batch_in_one_piece_needs_no_further_look():
    found = by_simulation(make_job(), make_cluster())
    assert found.plan.strategy == make_strategy(micro_batch=4)
    assert found.record.num_considered == 2


@pytest.mark.long
def test_under_a_limit_it_finds_what_the_formulas_find():
    job, cluster = make_job(seq_len=128), make_cluster()
    whole = attempt(job, cluster, make_strategy(micro_batch=4))
    tight = make_cluster(usable_bytes=int(0.8 * whole.peak_bytes))
    known = solve(job, tight, FREE, attention="sdpa", objective="time")
    found = by_simulation(job, tight)
    best = found.record.rows[0]
    assert best.fits
    assert best.peak_bytes <= tight.device.usable_bytes
    assert any(not row.fits for row in found.record.rows)
    mine = estimate(job, tight, found.plan.strategy)
    assert mine.predicted_step_s <= 1.05 * known.plan.estimate.predicted_step_s


def test_packed_documents_are_costed_like_rows_of_the_longest():
    """Counted as if each row were one document, which is the most that it can be."""
    changes = {"precision": "bf16", "seq_len": 128}
    cluster, rows = make_cluster("cuda"), make_strategy(attention="flash")
    packed = attempt(
        make_job(packing="documents", **changes), cluster, make_strategy(attention="varlen")
    )
    plain = attempt(make_job(**changes), cluster, rows)
    assert packed.step_s == pytest.approx(plain.step_s, rel=0.2)


def test_pins_are_kept_and_unusable_ones_refused():
    job, cluster = make_job(), make_cluster()
    found = by_simulation(job, cluster, Pins(1, "full", 2))
    assert found.plan.strategy == make_strategy(
        micro_batch=1, activation_checkpointing="full", loss_chunks=2
    )
    with pytest.raises(InputError, match="does not divide"):
        by_simulation(job, cluster, Pins(3, None, None))


def test_where_nothing_fits_the_nearest_is_shown_with_ways_out():
    job = make_job(seq_len=512, precision="fp32")
    small = by_simulation(job, make_cluster(), Pins(1, "full", 1), objective="memory")
    limit = small.record.rows[0].peak_bytes - 1
    found = by_simulation(
        job, make_cluster(usable_bytes=limit), Pins(1, "full", 1), objective="memory"
    )
    assert (found.record.num_fitting, found.record.rows[0].fits) == (0, False)
    assert found.plan.strategy == small.plan.strategy
    find = same_strategy(found.plan, simulated_shortfall(Budget(60)))
    out = [way.words for way in ways_out(found.plan, find, lambda tried: tried)]
    assert any("--seq-len 256 would fit" in way for way in out)
    assert any("--precision bf16 would fit" in way for way in out)


def test_what_is_offloaded_has_to_fit_the_host():
    job, strategy = make_job(seq_len=64), make_strategy(offload="optimizer")
    cluster = make_cluster(kernels="cuda")
    assert not attempt(job, cluster, strategy).short_bytes, "nobody knows the host"
    (large, small) = (
        attempt(job, msgspec.structs.replace(cluster, host_ram_bytes=ram), strategy)
        for ram in (2**34, 1)
    )
    assert not large.short_bytes
    assert small.short_bytes > 0


# -- searches that end early --


@pytest.mark.long  # a search that a budget ends, below, is told the same states
def test_a_search_tells_how_far_it_is_and_what_is_best():
    job, cluster, told = make_job(seq_len=64), make_cluster(usable_bytes=1), []
    search_for(job, cluster, pins=Pins(1, None, None), watch=told.append)
    assert [state.num_done for state in told] == list(range(len(told)))
    assert told[0].best is None
    assert told[0].left_s == 60
    peaks = [state.best.peak_bytes for state in told[1:]]
    assert peaks == sorted(peaks, reverse=True), "the nearest to fitting"


def test_a_budget_ends_a_search_with_what_was_found_and_what_was_not_tried():
    clock, told = Clock(), []

    def watch(state):
        told.append(state)
        if state.num_done == 2:
            clock.now_s += 61

    job, cluster = make_job(seq_len=64), make_cluster(usable_bytes=1)
    found = search_for(job, cluster, budget=Budget(60, clock=clock), watch=watch)
    assert found.record.num_considered == 2
    untried = found.record.untried
    assert "budget of 60 s" in untried.why
    assert 0 < untried.num_strategies < untried.num_most
    assert any("selective" in way for way in untried.ways)
    assert "not tried" in untried_sentence(found.record)


def test_a_budget_ends_in_the_midst_of_one_simulation():
    """A clock that runs with each operation: one simulation has thousands."""
    clock = Clock(step_s=1.0)
    with pytest.raises(OutOfTimeError, match=r"found nothing in its budget of 60 s.*--budget"):
        search_for(make_job(), make_cluster(), budget=Budget(60, clock=clock))
    assert clock.now_s < 100, "it looked at the clock at every operation, and ended there"
    assert attempt(make_job(), make_cluster(), make_strategy()).peak_bytes > 0, "nothing is left"


def test_the_most_simulations_end_a_search_too(monkeypatch):
    monkeypatch.setattr(search, "MAX_SIMULATIONS", 2)
    found = search_for(make_job(seq_len=64), make_cluster(usable_bytes=1))
    assert found.record.num_considered == 2
    assert "2 simulations" in found.record.untried.why


def test_what_keeps_least_is_simulated_first():
    tried = []
    search_for(make_job(), make_cluster("cuda"), watch=lambda state: tried.append(state.trying))
    assert tried[0].activation_checkpointing == "full"
    assert tried[0].loss_chunks == max(search.CHUNKS)


def test_that_the_leanest_does_not_fit_ends_a_search():
    """The smallest micro-batch with every block checkpointed is the least there is."""
    found = by_simulation(make_job(seq_len=64), make_cluster(usable_bytes=1))
    tried = {(row.strategy.activation_checkpointing, row.strategy.loss_chunks)
             for row in found.record.rows}  # fmt: skip
    assert tried == {("none", 1), ("full", 1), ("full", 16)}
    assert found.record.num_fitting == 0


def test_ctrl_c_loses_nothing_that_was_found():
    def interrupt(state):
        if state.num_done == 1:
            raise KeyboardInterrupt

    job, cluster = make_job(), make_cluster(usable_bytes=1)
    found = search_for(job, cluster, watch=interrupt)
    assert found.record.num_considered == 1
    assert found.record.untried.why == INTERRUPTED

    def at_once(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_for(job, cluster, watch=at_once)


def test_a_plan_without_an_estimate_is_judged_by_the_higher_rungs():
    job, cluster = make_job(), make_cluster()
    found = by_simulation(job, cluster, Pins(1, "none", 1))
    simulation = simulate(job, cluster, found.plan.strategy)
    measurement = Measurement(
        schema=MEASUREMENT_SCHEMA,
        versions=(),
        method="a test's instrument",
        items=simulation.items,
        phases=simulation.phases,
        measured_peak_allocated_bytes=5,
        measured_peak_reserved_bytes=None,
        measured_process_bytes=9,
        measured_step_s=2.0,
        timeline=None,
    )
    verdict = judge(found.plan, simulation, measurement)
    rows = {row.name: row for row in verdict.rows}
    assert all(row.predicted is None for row in verdict.rows)
    assert verdict.usable_bytes == cluster.device.usable_bytes
    assert rows["peak allocated"].simulated == found.record.rows[0].peak_bytes
    assert rows["peak of step 2+"].measured == rows["peak of step 2+"].simulated > 0
    assert judge(found.plan, None, None).rows


def test_segments_grow_where_a_strategy_holds_only_so():
    job, strategy = make_job(seq_len=1024, global_batch=1), make_strategy(micro_batch=1)
    usual = attempt(job, make_cluster("cuda"), strategy).reserved
    outside = make_cluster("cuda").device.usable_bytes - usual.firm_bytes
    grown = msgspec.structs.replace(strategy, allocator=EXPANDABLE)
    need = [
        attempt(job, make_cluster("cuda"), each).reserved.simulated_unhindered_bytes
        for each in (strategy, grown)
    ]
    least, most = sorted(need)
    cluster = make_cluster("cuda", usable_bytes=outside + (least + most) // 2)
    first, other = (strategy, grown) if need[0] > need[1] else (grown, strategy)
    assert attempt(job, cluster, other).reserved.word == "fits"
    assert attempt(job, cluster, first).reserved.word != "fits"
    found = attempt(job, cluster, strategy, may_grow=True)
    assert (found.strategy, found.reserved.word) == (other, "fits")


@pytest.mark.long  # simulate/test_proof.py has what is tight
def test_what_is_tight_is_taken_where_nothing_surely_fits():
    job, strategy = make_job(seq_len=1024, global_batch=1), make_strategy(micro_batch=1)
    usual = attempt(job, make_cluster("cuda"), strategy).reserved
    outside = usual.capacity_bytes - usual.firm_bytes
    taken = make_cluster("cuda").device.usable_bytes - usual.capacity_bytes
    room = usual.simulated_unhindered_bytes + taken + outside - 1
    cluster = make_cluster("cuda", usable_bytes=room)
    assert attempt(job, cluster, strategy).reserved.word == "tight"
    alone = by_simulation(job, cluster, Pins(1, "none", 1))
    assert (alone.plan.strategy, alone.reserved.word) == (strategy, "tight")
    assert alone.record.rows[0].fits
    leaner = by_simulation(job, cluster)
    assert leaner.reserved.word == "fits"
    assert not next(r for r in leaner.record.rows if r.strategy == strategy).fits


def test_what_holds_as_segments_grow_is_no_further_attempt(monkeypatch):
    """Its strategy says so, and is none of those that were asked for."""
    tried = []

    def grown(_job, _cluster, strategy, **_how):
        tried.append(strategy)
        keeps = {"none": 3, "selective": 2}.get(strategy.activation_checkpointing, 1)
        peak = keeps * strategy.micro_batch
        held = msgspec.structs.replace(strategy, allocator=EXPANDABLE)
        return Attempt(held, peak, max(0, peak - 4), 10.0 / strategy.micro_batch - 0.1 * keeps)

    monkeypatch.setattr(search, "attempt", grown)
    best = search_for(make_job(), make_cluster("cuda")).plan.strategy
    assert (best.micro_batch, best.allocator) == (4, EXPANDABLE)
    assert not any(strategy.allocator for strategy in tried)
    assert len(tried) == len(set(tried))
