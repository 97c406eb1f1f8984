"""A pipeline of which few micro-batches were run has the tape of one that ran all."""

from itertools import pairwise

import msgspec
import pytest

from brimful.cost.pipeline_orders import Row, order_of
from brimful.pretend.blocks import NotPeriodicError
from brimful.simulate import chosen as choosing
from brimful.simulate import run
from brimful.simulate.chosen import chosen_of
from brimful.simulate.run import simulate, trace
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import data_parallel, stage_rank
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy
from tapes import assert_same_tape

pytestmark = pytest.mark.torch

DEVICES, MICRO_BATCHES = 4, 8
ROWS = {
    "1f1b": {"pp_schedule": "1f1b"},
    "gpipe": {"pp_schedule": "gpipe"},
    "interleaved": {"pp_schedule": "interleaved", "stages_per_device": 2},
}
ZERO_2 = {"zero": 2, "dp_shard": 2, "accumulate": "hold"}
ZERO_3 = {"zero": 3, "dp_shard": 2, "accumulate": "hold"}
FULL = {"activation_checkpointing": "full"}
FIRST, MIDDLE, LAST = 0, 1, DEVICES - 1


def case_of(schedule, ways, *, tied=False, kernels="cuda", **kinds):
    strategy = make_strategy(pp=DEVICES, micro_batch=1, **ROWS[schedule], **ways)
    model = make_model(num_hidden_layers=9, tie_word_embeddings=tied)
    job = make_job(model=model, global_batch=MICRO_BATCHES * data_parallel(strategy), **kinds)
    return job, check_strategy(job, strategy), kernels


CASES = {
    "tied, first": (FIRST, case_of("1f1b", {}, tied=True)),
    "zero 3, checkpointed": (
        MIDDLE,
        case_of("1f1b", ZERO_3 | FULL, tied=True, precision="bf16-mixed"),
    ),
    "zero 2, last": (LAST, case_of("interleaved", ZERO_2)),
    "tp, zero 3": (LAST, case_of("gpipe", ZERO_3 | {"tp": 2}, tied=True)),
    "plain, first": (FIRST, case_of("1f1b", {})),
    "plain, middle": (MIDDLE, case_of("1f1b", {})),
    "plain, last": (LAST, case_of("1f1b", {}, kernels="cpu")),
    "tied, last": (LAST, case_of("gpipe", {}, tied=True)),
    "zero 2, first": (FIRST, case_of("1f1b", ZERO_2)),
    "zero 3, first": (FIRST, case_of("1f1b", ZERO_3)),
    "zero 3, middle": (MIDDLE, case_of("1f1b", ZERO_3, precision="bf16-mixed")),
    "zero 3, last": (LAST, case_of("1f1b", ZERO_3)),
    "zero 3, gpipe": (MIDDLE, case_of("gpipe", ZERO_3)),
    "zero 3, interleaved": (MIDDLE, case_of("interleaved", ZERO_3, kernels="cpu")),
    "tp, checkpointed": (FIRST, case_of("1f1b", FULL | {"tp": 2})),
    "tp, zero 2": (MIDDLE, case_of("1f1b", ZERO_2 | {"tp": 2}, precision="bf16-mixed")),
    "scaled": (LAST, case_of("1f1b", FULL, precision="fp16-mixed")),
    "chunks, masters": (LAST, case_of("interleaved", {"loss_chunks": 2}, precision="bf16-master")),
}


SHOWN = ("tied, first", "zero 2, last")
"""What ``make test`` compares: both ends of a row, whole and sharded."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHOWN else pytest.mark.long) for name in CASES],
)
def test_what_is_filled_in_is_what_would_have_been_recorded(name):
    place, (job, strategy, kernels) = CASES[name]
    rank = stage_rank(strategy, place)
    ways = {"imitate": kernels, "rank": rank, "count_messages": True}
    chosen = chosen_of(job, strategy, rank)
    assert len(chosen.first_step) < MICRO_BATCHES
    filled = trace(job, strategy, chosen=chosen, **ways).recording
    whole = trace(job, strategy, **ways).recording
    assert_same_tape(filled, whole)


@pytest.mark.long  # the tapes are the same, as the test before it shows
@pytest.mark.parametrize("kernels", ["cuda", "cpu"])
def test_a_simulation_says_the_same_either_way(kernels, monkeypatch):
    job, strategy, _ = case_of("1f1b", ZERO_3)
    cluster = make_cluster(kernels=kernels)
    short = simulate(job, cluster, strategy, rank=stage_rank(strategy, 1))
    monkeypatch.setattr(run, "chosen_of", lambda *_: None)
    whole = simulate(job, cluster, strategy, rank=stage_rank(strategy, 1))
    assert msgspec.structs.replace(short, simulate_s=0) == msgspec.structs.replace(
        whole, simulate_s=0
    )


def test_what_cannot_be_filled_in_is_traced_whole(monkeypatch):
    job, strategy, _ = case_of("1f1b", {})
    asked = []

    def refuse(_recording, calls):
        asked.append(len(calls))
        raise NotPeriodicError("not alike")

    whole = simulate(job, make_cluster(), strategy, rank=0)
    monkeypatch.setattr(run, "fill", refuse)
    found = simulate(job, make_cluster(), strategy, rank=0)
    assert asked == [2 * 2 * MICRO_BATCHES]
    assert found.simulated_peak_allocated_bytes == whole.simulated_peak_allocated_bytes


@pytest.mark.long
def test_adapters_are_right_whether_filled_in_or_not():
    job, strategy, _ = case_of(
        "1f1b", {}, method="lora", adapter=make_adapter(), precision="bf16-mixed"
    )
    rank = stage_rank(strategy, 1)
    short = simulate(job, make_cluster(kernels="cpu"), strategy, rank=rank)
    whole = trace(job, strategy, imitate="cpu", rank=rank).recording
    assert short.simulated_peak_allocated_bytes == whole.live_bytes().max()
    assert short.num_events == len(whole.events)


@pytest.mark.parametrize("schedule", ["zero-bubble", "zbv", "dualpipev"])
def test_halves_of_backwards_are_all_run(schedule):
    ways = {"pp_schedule": schedule, "stages_per_device": 2}
    job = make_job(model=make_model(num_hidden_layers=9), global_batch=MICRO_BATCHES)
    strategy = check_strategy(job, make_strategy(pp=DEVICES, micro_batch=1, **ways))
    assert chosen_of(job, strategy, 0) is None


def test_one_device_has_nothing_to_choose():
    assert chosen_of(make_job(), make_strategy(), 0) is None


@pytest.mark.parametrize("schedule", ROWS)
@pytest.mark.parametrize("num", [8, 32])
def test_every_kind_of_call_is_seen_where_it_belongs(schedule, num):
    chunks = ROWS[schedule].get("stages_per_device", 1)
    for device in range(DEVICES):
        order = order_of(schedule, Row(DEVICES, num, chunks), device)
        by_stage = choosing._by_stage(order)
        chosen = choosing._complete(by_stage, num)
        assert {0, num - 1} <= chosen
        for operations in by_stage:
            wanted, shown, ran = set(), set(), operations[0]
            for before, operation in pairwise(operations):
                kind = (operation.kind, before.kind)
                runs = operation.micro_batch in chosen
                if 0 < operation.micro_batch < num - 1:
                    wanted.add(kind)
                    shown |= {kind} if runs and ran.kind == before.kind else set()
                ran = operation if runs else ran
            assert wanted == shown
