"""Strategies below one that needed too much: exact, runnable, and lower and lower."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.search.ladder import LESS, next_strategy, rungs, target_bytes
from brimful.techniques.exact import exactness
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import world_size
from samples import make_cluster, make_job, make_model, make_strategy

MODEL = make_model(hidden_size=64, intermediate_size=128, vocab_size=300, num_hidden_layers=4)


def job_of(**changes):
    return make_job(**{"model": MODEL, "seq_len": 64, "global_batch": 16, **changes})


def cluster_of(num_devices=1, limit_bytes=None):
    cluster = msgspec.structs.replace(
        make_cluster(), num_devices=num_devices, devices_per_node=num_devices
    )
    if limit_bytes is None:
        return cluster
    device = msgspec.structs.replace(cluster.device, usable_bytes=limit_bytes)
    return msgspec.structs.replace(cluster, device=device)


def peak(job, strategy, num_devices=1):
    found = estimate(job, cluster_of(num_devices), strategy)
    return found.predicted_peak_allocated_bytes


FIRST = {
    "alone": make_strategy(micro_batch=16),
    "eager": make_strategy(micro_batch=12, attention="eager"),
    "replicated": make_strategy(micro_batch=8, dp_replicate=2),
    "hybrid": make_strategy(micro_batch=4, zero=3, dp_replicate=2, dp_shard=2),
    "selective": make_strategy(micro_batch=16, activation_checkpointing="selective"),
}


@pytest.mark.parametrize("name", FIRST)
def test_every_rung_runs_the_job_on_as_many_devices_and_is_new(name):
    job, first = job_of(global_batch=48 if name == "eager" else 16), FIRST[name]
    found = list(rungs(job, first))
    assert len(found) == len(set(found)) >= 4
    assert first not in found
    for strategy in found:
        check_strategy(job, strategy)
        assert world_size(strategy) == world_size(first)
    assert found[-1].activation_checkpointing == "full"
    assert found[-1].micro_batch == 1


@pytest.mark.parametrize("name", ["alone", "selective"])
def test_the_last_rung_needs_least(name):
    job, first = job_of(), FIRST[name]
    below = [s for s in rungs(job, first) if s.offload == "none" and not s.optimizer_in_backward]
    peaks = [peak(job, strategy) for strategy in (first, *below)]
    assert peaks[-1] < 0.5 * peaks[0]


def test_the_host_is_the_last_resort():
    job, first = job_of(), FIRST["alone"]
    found = [strategy.offload for strategy in rungs(job, first)]
    away = [text for text in found if text != "none"]
    assert away == ["optimizer", "parameters", "parameters,activations"]
    assert found[-len(away) :] == away
    assert not any(strategy.optimizer_in_backward for strategy in rungs(job, first))  # job clips
    early = [
        s.optimizer_in_backward for s in rungs(job_of(clip=0.0), make_strategy(micro_batch=16))
    ]
    assert any(early)


def test_a_switch_that_is_not_exact_is_left_alone():
    job = job_of(precision="fp8")
    assert exactness(job, "micro_batch", 8).how != "exact"
    found = list(rungs(job, make_strategy(micro_batch=16)))
    assert found
    assert {strategy.micro_batch for strategy in found} == {16}


def test_a_loss_over_labels_is_not_cut():
    bert = make_job("gpt2", task="sequence-classification", global_batch=16)
    assert {s.loss_chunks for s in rungs(bert, make_strategy(micro_batch=16))} == {1}


def test_the_planner_goes_within_the_limit_where_it_can():
    job, first = job_of(), FIRST["alone"]
    limit = round(0.6 * peak(job, first))
    found = next_strategy(job, cluster_of(limit_bytes=limit), (first,))
    assert peak(job, found) <= limit


def test_of_a_plan_that_seemed_to_fit_the_next_needs_a_tenth_less():
    job, first = job_of(), FIRST["alone"]
    found = next_strategy(job, cluster_of(), (first,))
    assert peak(job, found) <= LESS * peak(job, first)
    assert target_bytes(1000, 2000) == 900
    assert target_bytes(1000, 500) == 500


def test_what_the_allocator_was_told_it_is_told_again():
    first = make_strategy(micro_batch=16, allocator="expandable_segments:True")
    found = next_strategy(job_of(), cluster_of(), (first,))
    assert found.allocator == first.allocator
    assert {each.allocator for each in rungs(job_of(), first)} == {first.allocator}


@pytest.mark.few(1)
@pytest.mark.parametrize("num_devices", [1, 2])
def test_each_needs_less_than_all_before_until_there_is_none(num_devices):
    job, cluster = job_of(), cluster_of(num_devices)
    failed = [FIRST["alone"] if num_devices == 1 else FIRST["replicated"]]
    while (found := next_strategy(job, cluster, failed)) is not None:
        assert found not in failed
        lowest = min(peak(job, each, num_devices) for each in failed)
        assert peak(job, found, num_devices) < lowest
        failed.append(found)
    assert len(failed) >= 3
    assert next_strategy(job, cluster_of(num_devices, 2**10), failed) is None


def test_a_limit_that_nothing_keeps_gets_what_needs_least():
    job, first = job_of(), FIRST["alone"]
    found = next_strategy(job, cluster_of(limit_bytes=2**16), (first,))
    assert peak(job, found) < 0.4 * peak(job, first)


def test_without_a_formula_the_planner_has_no_answer():
    job = job_of(packing="documents")
    assert next_strategy(job, cluster_of(), (FIRST["alone"],)) is None
