"""What is laid beside a strategy is predicted, and what is said to fit is replayed."""

import pytest

from brimful.cost.estimate import estimate
from brimful.cost.reserved import predicted_reserved
from brimful.cost.stage_peaks import device_peaks
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.beside import beside, fix
from brimful.search.lean import LIMIT_STEP_BYTES, lean, lean_fix, least_limit
from brimful.search.ways_out import ways_out
from brimful.units import GIB
from brimful.values.plan import PLAN_SCHEMA, Plan
from samples import make_job, make_strategy


def job_of(model="qwen2.5-0.5b", **changes):
    fields = {"seq_len": 2048, "global_batch": 8, "precision": "bf16-mixed", **changes}
    return make_job(model=load_model(model), **fields)


def on(gpus):
    return load_cluster(gpus, memory_limit_bytes=None)


def changed(strategy, other):
    fields = strategy.__struct_fields__
    return {name for name in fields if getattr(strategy, name) != getattr(other, name)}


def test_one_setting_is_changed_at_a_time():
    job, cluster = job_of(), on("4xa100-40gb")
    strategy = make_strategy(zero=2, dp_shard=4, micro_batch=2)
    others = beside(job, cluster, strategy)
    assert {each.setting for each in others} == {
        "loss_chunks", "checkpointing", "micro_batch", "zero=1", "zero=3",
    }  # fmt: skip
    for each in others:
        assert len(changed(strategy, each.strategy) - {"dp_shard", "dp_replicate"}) == 1
        assert each.made == estimate(job, cluster, each.strategy)
    peaks = {each.setting: each.made.predicted_peak_allocated_bytes for each in others}
    assert peaks["zero=3"] < peaks["zero=1"]


def test_a_plainer_setting_is_laid_beside_too():
    strategy = make_strategy(activation_checkpointing="full", loss_chunks=4)
    settings = {each.setting for each in beside(job_of(), on("a100-40gb"), strategy)}
    assert {"no checkpointing", "loss in one piece"} <= settings


def test_a_fix_is_the_fastest_change_that_holds():
    job, cluster = job_of(), on("rtx-3090")
    strategy = make_strategy(micro_batch=8)
    assert not estimate(job, cluster, strategy).fits
    found = fix(job, cluster, beside(job, cluster, strategy))
    assert predicted_reserved(job, cluster, found.strategy).word == "fits"
    assert found.made.predicted_reserved.word == "fits"
    for each in beside(job, cluster, strategy):
        if each.made.fits and each.made.predicted_step_s < found.made.predicted_step_s:
            assert predicted_reserved(job, cluster, each.strategy).word != "fits"


def test_where_no_change_alone_holds_a_few_together_may():
    job, cluster = job_of(), on("rtx-4070")
    strategy = make_strategy(micro_batch=8)
    assert fix(job, cluster, beside(job, cluster, strategy)) is None
    looked = lean_fix(job, cluster, strategy)
    assert predicted_reserved(job, cluster, looked.fix.strategy).word == "fits"
    assert looked.made.predicted_peak_allocated_bytes <= (
        looked.fix.made.predicted_peak_allocated_bytes
    )


@pytest.mark.long  # test_ways_out.py searches ways out, fixes that hold are beside it
def test_what_is_found_quickly_holds_when_it_is_searched():
    job, cluster = job_of("llama-3.1-8b"), on("h100-80gb")
    strategy = make_strategy()
    looked = lean_fix(job, cluster, strategy)
    assert looked.fix is None
    assert looked.short_bytes > 1
    plan = Plan(
        schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=looked.leanest, estimate=looked.made
    )
    first = next(ways_out(plan, lean(strategy), lambda tried: tried))
    assert first.is_exact
    gpus = first.words.split()[1]
    held = lean_fix(job, on(gpus), strategy).fix
    assert predicted_reserved(job, on(gpus), held.strategy).word == "fits"


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_fullest_device_of_a_pipeline_is_its_peak(schedule):
    job, cluster = job_of(global_batch=16), on("4xa100-80gb")
    strategy = make_strategy(pp=4, pp_schedule=schedule, accumulate="hold")
    peaks = device_peaks(job, strategy, cluster.device)
    made = estimate(job, cluster, strategy)
    assert len(peaks) == 4
    assert max(peaks) == made.predicted_peak_allocated_bytes
    assert peaks[0] != peaks[1]
    others = {each.setting: each for each in beside(job, cluster, strategy)}
    assert others["pp"].strategy.pp == 1
    assert (others["pp"].strategy.zero, others["pp"].strategy.dp_shard) == (3, 4)


def test_the_limit_that_is_told_is_enough_and_a_lower_one_is_not():
    job, strategy = job_of("llama-3.2-1b"), make_strategy(activation_checkpointing="full")
    cluster = load_cluster("h100-80gb", memory_limit_bytes=10 * GIB)
    limit = least_limit(job, cluster, strategy)
    enough = load_cluster("h100-80gb", memory_limit_bytes=limit)
    assert predicted_reserved(job, enough, strategy).word == "fits"
    lower = load_cluster("h100-80gb", memory_limit_bytes=limit - LIMIT_STEP_BYTES)
    assert predicted_reserved(job, lower, strategy).word != "fits"
    small = load_cluster("rtx-3060", memory_limit_bytes=8 * GIB)
    assert least_limit(job, small, strategy) is None
