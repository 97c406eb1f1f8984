"""A plan that is said to fit completes in the simulation of it, and whoever was faster does not."""

import msgspec
import pytest

from brimful.cost import outside
from brimful.cost.assumptions import DATASHEET
from brimful.cost.estimate import allocatable_bytes
from brimful.cost.outside import Part
from brimful.hardware.gpus import load_cluster
from brimful.search.budget import Budget
from brimful.search.holding import OTHER_ALLOCATORS
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.search.walk import WORTH
from brimful.show.proof import proof_facts, replaced_facts
from brimful.show.settings import differing_words
from brimful.simulate import proof as proof_module
from brimful.simulate.proof import MAX_TRIALS, Trial, prove
from brimful.simulate.run import simulate
from brimful.units import MIB, format_bytes
from brimful.values.results import Reserved
from samples import make_adapter, make_cluster, make_job, make_model

pytestmark = pytest.mark.torch
JOB = make_job(
    model=make_model(num_hidden_layers=3, hidden_size=256, intermediate_size=688, vocab_size=4096),
    precision="bf16",
    seq_len=512,
    global_batch=4,
)
ADAPTER = make_adapter(rank=16, base="bf16")
FREE, LONG = Pins(), Budget(3600)
ALLOCATORS = ("", *OTHER_ALLOCATORS)


def cluster_with(num_bytes):
    """Return a GPU whose tensors may take so many bytes."""
    cluster = make_cluster("cuda")
    spare = cluster.device.usable_bytes - allocatable_bytes(cluster.device)
    device = msgspec.structs.replace(cluster.device, usable_bytes=num_bytes + spare)
    return msgspec.structs.replace(cluster, device=device)


def searched(num_bytes, pins=FREE, job=JOB):
    return solve(job, cluster_with(num_bytes), pins, attention="sdpa", objective="time")


@pytest.fixture(autouse=True)
def context_is_known(monkeypatch):
    """Let what lies outside the allocator be known, as models are so small that little decides."""
    low = DATASHEET.context_low_bytes

    def parts_outside(_device, *, num_groups):
        return (Part(f"context, {num_groups} groups", low, low),)

    monkeypatch.setattr(outside, "parts_outside", parts_outside)


@pytest.fixture(scope="module")
def largest():
    """Live bytes of the fastest plan where there is room for everything."""
    return searched(2**34).plan.estimate.predicted_peak_allocated_bytes


@pytest.fixture(scope="module")
def least():
    """Live bytes of the smallest plan."""
    found = solve(JOB, cluster_with(2**34), FREE, attention="sdpa", objective="memory")
    return found.plan.estimate.predicted_peak_allocated_bytes


def test_a_fault_of_the_simulator_leaves_the_prediction():
    def ends(_plan, _budget):
        raise RuntimeError("not of one type")

    found = searched(2**34)
    proven = prove(found, LONG, simulates=ends)
    assert (proven.solution, proven.proof.word) == (found, "unproven")
    assert "a fault of Brimful's own: RuntimeError('not of one type')" in proven.proof.why


def told(proven):
    """Return what is said of a proof, a line for each fact."""
    facts = proof_facts(proven.solution.plan, proven.proof)
    return [f"{fact.label}: {fact.text}" for fact in facts]


def outcomes(plan, allocators):
    """Simulate a plan with each allocator: (outcome, retries)."""
    for allocator in allocators:
        strategy = msgspec.structs.replace(plan.strategy, allocator=allocator)
        reserved = simulate(plan.job, plan.cluster, strategy).reserved
        yield reserved.outcome, reserved.num_retries


@pytest.mark.few(only=["0"])
@pytest.mark.parametrize("more", [0, 6, 14, 40, 200])
def test_what_is_proven_completes_and_what_was_faster_does_not(largest, more):
    found = searched(largest + more * MIB)
    proven = prove(found, LONG)
    plan, proof = proven.solution.plan, proven.proof
    assert proof.word == "fits"
    ((outcome, retries),) = outcomes(plan, [plan.strategy.allocator])
    assert (outcome, retries) == ("fits", 0)
    chosen = proof.trials[proof.chosen]
    assert chosen.strategy == plan.strategy == proven.solution.record.rows[0].strategy
    assert plan.estimate.predicted_peak_allocated_bytes <= plan.estimate.usable_bytes
    for trial in proof.trials:
        if trial is chosen:
            continue
        tried = msgspec.structs.replace(plan, strategy=trial.strategy)
        assert all(retries or word != "fits" for word, retries in outcomes(tried, ALLOCATORS))
    if more == 200:
        assert len(proof.trials) == 1
        assert plan.strategy == found.plan.strategy
    first = found.plan.estimate.predicted_step_s
    assert plan.estimate.predicted_step_s >= first
    assert told(proven)[0].startswith("proven: simulated on a pretend GPU: ")


def test_an_allocator_that_holds_is_part_of_the_plan():
    """PyTorch's own takes 132 MiB of this program, one that grows by pages 126."""
    pins = Pins(micro_batch=1, activation_checkpointing="full", loss_chunks=2)
    proven = prove(searched(128 * MIB, pins), LONG)
    plan = proven.solution.plan
    assert plan.strategy.allocator == "expandable_segments:True"
    assert ", with expandable segments" in told(proven)[0]
    predicted = plan.estimate.predicted_reserved
    assert predicted.allocator == plan.strategy.allocator
    simulated = proven.proof.trials[proven.proof.chosen].reserved.simulated_peak_reserved_bytes
    assert predicted.predicted_peak_reserved_bytes == pytest.approx(simulated, rel=0.03)
    assert [outcome == ("fits", 0) for outcome in outcomes(plan, ALLOCATORS)] == [False, True]
    assert not replaced_facts(proven.proof), "the plan itself says with which allocator it holds"


def test_a_pinned_allocator_is_kept(largest):
    found = searched(largest + 6 * MIB, Pins(allocator="max_split_size_mb:64"))
    assert found.plan.strategy.allocator == "max_split_size_mb:64"
    tried = prove(found, LONG).proof.trials
    assert {trial.strategy.allocator for trial in tried} == {"max_split_size_mb:64"}


def test_where_none_holds_it_is_said_with_the_nearest(least):
    found = searched(least)
    assert found.record.rows[0].fits
    proven = prove(found, LONG)
    proof = proven.proof
    if proof.word == "tight":
        ((outcome, retries),) = outcomes(
            proven.solution.plan, [proven.solution.plan.strategy.allocator]
        )
        assert (outcome, retries > 0) == ("fits with retries", True)
        assert told(proven)[0].startswith("simulated: TIGHT: ")
    else:
        assert proof.word == "no"
        assert proven.solution is found
        short = min(trial.reserved.short_bytes for trial in proof.trials)
        assert short > 0
        assert "none completes; the nearest is short by" in told(proven)[0]
        assert "short by" in replaced_facts(proof)[0].text


@pytest.mark.long  # cli/test_proof.py has a plan that is tight
def test_a_plan_that_only_completes_with_retries_is_tight(largest):
    """Some limit between what does not complete and what does at ease."""
    words = {}
    pins = Pins(
        micro_batch=4, activation_checkpointing="none", loss_chunks=1, allocator="backend:native"
    )
    for more in range(0, 64, 2):
        proven = prove(searched(largest + more * MIB, pins), LONG)
        words.setdefault(proven.proof.word, proven)
        if {"tight", "fits"} <= words.keys():
            break
    assert words["tight"].proof.trials[0].reserved.num_retries > 0
    assert "empties the allocator's cache" in told(words["tight"])[0]


def test_time_that_is_over_proves_nothing(largest):
    clock = iter([0.0, *[5.0] * 9])
    seen = []
    found = searched(largest)
    proven = prove(
        found, Budget(1, clock=lambda: next(clock)), watch=lambda *told: seen.append(told)
    )
    assert proven.solution is found
    assert (proven.proof.word, proven.proof.why) == ("unproven", "the budget of 1 s was over")
    assert seen == [(found.plan.strategy, 0)]
    assert "unproven: the budget of 1 s was over" in told(proven)[0]


def test_what_is_not_simulated_is_not_proven(largest):
    found = searched(largest)
    strategy = msgspec.structs.replace(found.plan.strategy, engine="deepspeed", zero=2)
    plan = msgspec.structs.replace(found.plan, strategy=strategy)
    proven = prove(found._replace(plan=plan), LONG)
    assert proven.proof.word == "unproven"
    assert "engine=deepspeed is not simulated" in told(proven)[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("more", [0, 2, 4])
def test_what_is_like_one_that_fell_short_and_needs_hardly_less_is_passed_over(largest, more):
    found = searched(largest + more * MIB)
    space, proof = found.space, prove(found, LONG).proof
    rows = [
        next(
            row
            for row in range(len(space.table.fits))
            if space.strategy(row) == msgspec.structs.replace(trial.strategy, allocator="")
        )
        for trial in proof.trials
    ]
    peaks = space.table.peak_bytes[rows]
    for i, trial in enumerate(proof.trials[:-1]):
        for j in range(i + 1, len(rows)):
            if space.alike(rows[i])[rows[j]]:
                is_refined = j > proof.chosen
                assert is_refined or peaks[j] <= peaks[i] - trial.excess_bytes
    assert len(proof.trials) <= MAX_TRIALS


def test_what_lacks_says_how_much_it_would_hold(largest):
    """With as much as it would hold unhindered a plan fits, with a byte less it does not."""
    found = searched(largest)
    trial = prove(found, LONG).proof.trials[0]
    plan = msgspec.structs.replace(found.plan, strategy=trial.strategy)
    needs = trial.reserved.simulated_unhindered_bytes
    assert needs == trial.reserved.capacity_bytes + trial.reserved.excess_bytes
    assert trial.reserved.excess_bytes > 0
    told = [
        simulate(plan.job, cluster_with(num_bytes), plan.strategy).reserved
        for num_bytes in (needs, needs - 1)
    ]
    assert [each.word == "fits" for each in told] == [True, False]
    assert {each.simulated_unhindered_bytes for each in told} == {needs}


@pytest.mark.few(1)
@pytest.mark.parametrize("too_much", [1.0, 1.5, 4.0])
def test_of_what_was_passed_over_the_better_half_is_looked_at_again(too_much, monkeypatch):
    """What half of the largest peak holds is told by a rule, and shortfalls larger than it."""
    space = searched(2**34).space
    order = [int(row) for row in space.order()]
    family = [row for row in order if space.alike(order[0])[row]]
    capacity = int(space.table.peak_bytes[family].max() * 0.5)

    def tried(plan, _budget):
        peak = plan.estimate.predicted_peak_allocated_bytes
        short = max(0, int(too_much * (peak - capacity)))
        reserved = Reserved(
            allocator="", capacity_bytes=capacity, firm_bytes=capacity,
            outcome="out of memory" if short else "fits",
            simulated_peak_reserved_bytes=peak, simulated_unhindered_bytes=capacity + short,
            simulated_peak_block_bytes=peak, num_retries=0, short_bytes=short, where="",
        )  # fmt: skip
        return Trial(strategy=plan.strategy, reserved=reserved, excess_bytes=short)

    monkeypatch.setattr(proof_module, "_tried", tried)
    monkeypatch.setattr(proof_module, "MAX_TRIALS", 1000)
    proven = prove(space.best(), LONG)
    best = next(row for row in order if space.table.peak_bytes[row] <= capacity)
    found = proven.solution.plan.estimate
    assert proven.proof.word == "fits"
    assert found.predicted_peak_allocated_bytes <= capacity
    assert found.predicted_step_s <= (1 + WORTH) * space.table.step_s[best]
    assert len(proven.proof.trials) < order.index(best)
    few = next(n for n, trial in enumerate(proven.proof.trials) if not trial.excess_bytes)
    monkeypatch.setattr(proof_module, "MAX_TRIALS", few)  # one less than the first that fits
    ended = prove(space.best(), LONG).proof
    assert (ended.word, len(ended.trials), ended.num_passed_over > 0) == ("fits", few + 1, True)
    assert leanness(space, ended.trials[-1].strategy) == leanness(space, leanest_of(space))


def leanest_of(space):
    """Return what takes least alive of micro-batches of 1 with every block checkpointed."""
    table, least = space.table, float("inf")
    for row in range(len(table.fits)):
        strategy = space.strategy(row)
        is_lean = strategy.micro_batch == 1 and ":" not in strategy.activation_checkpointing
        if is_lean and table.peak_bytes[row] < least:
            least, found = table.peak_bytes[row], strategy
    return found


def leanness(space, strategy):
    """Return what a strategy takes alive."""
    plain = msgspec.structs.replace(strategy, allocator="")
    rows = [row for row in range(len(space.table.fits)) if space.strategy(row) == plain]
    return space.table.peak_bytes[rows[0]]


class Slow:
    """Simulates so many plans, each short by a quarter of a card; then its time is over."""

    def __init__(self, capacity, times):
        self.now_s, self.left, self.capacity = 0.0, times, capacity
        self.budget = Budget(60, clock=lambda: self.now_s)

    def __call__(self, plan, budget):
        if not self.left:
            self.now_s = 61.0
        budget.check()
        self.left -= 1
        held = self.capacity * 5 // 4
        reserved = Reserved(
            allocator="", capacity_bytes=self.capacity, firm_bytes=self.capacity,
            outcome="out of memory", simulated_peak_reserved_bytes=self.capacity,
            simulated_unhindered_bytes=held, simulated_peak_block_bytes=self.capacity,
            num_retries=0, short_bytes=MIB, where="",
        )  # fmt: skip
        return Trial(strategy=plan.strategy, reserved=reserved, excess_bytes=held - self.capacity)


@pytest.mark.parametrize("times", [1, 2])
def test_time_that_ends_before_what_has_room_was_simulated_says_no_no(largest, times):
    """That 1 or 2 fell short says nothing of what needs less by more than they lacked."""
    found = searched(largest + 6 * MIB)
    capacity = largest + 6 * MIB
    slow = Slow(capacity, times)
    proven = prove(found, slow.budget, simulates=slow)
    plan, proof = proven.solution.plan, proven.proof
    assert (proof.word, proof.has_room, len(proof.trials)) == ("unproven", True, times)
    peaks = [made.estimate.predicted_peak_allocated_bytes for made in (plan, found.plan)]
    assert peaks[0] <= peaks[1] - capacity // 4
    assert peaks[0] <= capacity
    (line,) = told(proven)
    assert line.startswith("unproven: the budget of 60 s was over; brimful simulate shows")
    short = format_bytes(capacity * 5 // 4 - capacity)
    assert f"What is faster does not: {times} strateg" in line
    assert f"short by {short} of {format_bytes(capacity)}" in line, "as the meter of a NO has it"
    assert not replaced_facts(proof)


def test_what_takes_least_is_no_more_than_what_was_looked_at_is_a_no(least):
    """Nothing is left that could take less: then it is a NO, whatever ended it."""
    pins = Pins(micro_batch=1, activation_checkpointing="full", loss_chunks=1)
    found = searched(least * 2, pins)
    slow = Slow(least * 2, 1)
    proof = prove(found, slow.budget, simulates=slow).proof
    assert (proof.word, proof.has_room) == ("no", False)


def test_of_what_no_replay_is_known_the_plan_has_room_where_time_is_over(largest, monkeypatch):
    """Tensors alone at the limit are no sure fit: the allocator adds to them."""
    monkeypatch.setattr(proof_module, "looked_at", lambda _space, _row: None)
    found = searched(largest)
    slow = Slow(largest, 0)
    proven = prove(found, slow.budget, simulates=slow)
    made = proven.solution.plan.estimate
    assert (proven.proof.word, proven.proof.has_room) == ("unproven", True)
    assert made.predicted_peak_reserved_bytes.high <= largest
    assert "leaves less than the allocator may take" in told(proven)[0]


def test_a_faster_plan_that_is_tight_stands_beside_the_plan(largest):
    for more in range(16, 64, 4):
        proven = prove(searched(largest + more * MIB), LONG)
        words = [trial.reserved.word for trial in proven.proof.trials]
        if proven.proof.word == "fits" and "tight" in words:
            break
    line = told(proven)[1]
    faster = proven.proof.trials[words.index("tight")]
    assert line.startswith(": faster, but TIGHT: ")
    differing = differing_words(JOB, proven.solution.plan.strategy, faster.strategy)
    assert ", ".join(differing) in line
    assert f"{faster.reserved.num_retries} x (slow)" in line
    roomy = prove(searched(largest + 200 * MIB), LONG)
    assert len(told(roomy)) == 1


def test_a_row_of_devices_is_proven_on_each_of_them():
    cluster = load_cluster("2xh100-80gb", memory_limit_bytes=None)
    job = msgspec.structs.replace(JOB, global_batch=8)
    found = solve(job, cluster, Pins(pp=2), attention="sdpa", objective="time")
    proof = prove(found, LONG).proof
    assert proof.word == "fits"
    peaks = [
        simulate(job, cluster, proof.trials[-1].strategy, rank=rank).reserved for rank in (0, 1)
    ]
    held = proof.trials[-1].reserved.simulated_peak_reserved_bytes
    assert held == max(each.simulated_peak_reserved_bytes for each in peaks)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "gpus", "changes"),
    [
        (
            "llama-3.1-8b",
            "rtx-4090",
            {"method": "lora", "adapter": ADAPTER},
        ),
        ("llama-3.1-8b", "8xh100-80gb", {"seq_len": 8192, "global_batch": 64}),
    ],
)
def test_plans_that_fell_short_hold(model, gpus, changes):
    """Live bytes 0.97 and 0.04 GiB below the limit; simulated, they were short of it."""
    from brimful.models.config import load_model

    fields = {"seq_len": 4096, "global_batch": 16, "precision": "bf16-mixed", **changes}
    job = make_job(model=load_model(model), **fields)
    cluster = load_cluster(gpus, memory_limit_bytes=None)
    found = solve(job, cluster, FREE, attention="sdpa", objective="time")
    plan = prove(found, LONG).solution.plan
    ((outcome, retries),) = outcomes(plan, [plan.strategy.allocator])
    assert (outcome, retries) == ("fits", 0)
