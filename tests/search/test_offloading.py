"""A search of one GPU offloads the optimizer where its host suffices, and says so where it may."""

import msgspec
import pytest

from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.offloading import for_known_host, is_hopeless, solve_offloading
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.show.plan import plan_summary
from brimful.show.predicted import offloaded_bytes
from brimful.show.run import RunFacts
from brimful.units import GIB, format_bytes
from brimful.values.job import plain_job
from samples import make_adapter

ASKED = {"attention": "sdpa", "objective": "time"}


def job_of(precision="bf16", model="llama-3.1-8b"):
    return plain_job(
        model=load_model(model), precision=precision, seq_len=2048, global_batch=16,
        num_steps=10, learning_rate=1e-4,
    )  # fmt: skip


def card(host_gib=0):
    return msgspec.structs.replace(
        load_cluster("rtx-4090", memory_limit_bytes=None), host_ram_bytes=host_gib * GIB
    )


def facts_of(found):
    return {fact.label: fact.text for fact in plan_summary(found, RunFacts()).facts}


def test_what_fits_only_with_the_host_is_planned_and_the_host_named():
    found = solve_offloading(job_of(), card(), Pins(), **ASKED)
    assert found.plan.strategy.offload == "optimizer"
    assert found.plan.estimate.fits
    assert found.plan.estimate.predicted_reserved.word == "fits"
    assert "--host-memory" in facts_of(found)["host"]


def test_what_stays_on_no_gpu_of_a_node_needs_no_search():
    node = load_cluster("8xh100-80gb", memory_limit_bytes=None)
    assert is_hopeless(job_of(model="deepseek-v3"), node, "sdpa")
    assert not is_hopeless(job_of(), node, "sdpa")
    assert not is_hopeless(job_of(), card(), "sdpa")  # which the host may help


def test_a_host_that_is_too_small_is_not_planned_with():
    found = solve_offloading(job_of(), card(32), Pins(), **ASKED)
    assert found.plan.strategy.offload == "none"
    assert not found.plan.estimate.fits
    assert found.offloaded.estimate.fits
    told = facts_of(found)["offload"]
    host = found.offloaded.estimate.host
    train, least = host.predicted_training_bytes, int(host.predicted_host_bytes.low)
    assert 0 < train < least
    words = f"{format_bytes(train)} to train, {format_bytes(least)} to save and hand over too"
    assert f"needs {words} of the host, which has 32.00 GiB" in told
    assert plan_summary(found, RunFacts()).host is None


def test_where_the_host_suffices_both_are_in_one_search():
    found = solve_offloading(job_of(), card(256), Pins(), **ASKED)
    alone = solve(job_of(), card(256), Pins(), **ASKED)
    assert found.record.num_considered == 3 * alone.record.num_considered
    assert found.plan.strategy.offload != "none"
    assert "host" not in facts_of(found)


def test_what_fits_on_the_device_stays_there_where_nothing_is_known_of_the_host():
    job = job_of(model="qwen3-0.6b")
    found = solve_offloading(job, card(), Pins(), **ASKED)
    assert found.plan.strategy.offload == "none"
    assert found.record.num_considered == solve(job, card(), Pins(), **ASKED).record.num_considered


def test_where_the_optimizer_alone_does_not_suffice_blocks_go_too():
    found = solve_offloading(job_of(model="phi-4"), card(), Pins(), **ASKED)
    assert found.plan.strategy.offload == "parameters"
    assert found.plan.estimate.predicted_reserved.word == "fits"


def test_parameters_that_are_too_large_are_named():
    adapter = make_adapter(rank=16, targets=("q_proj", "v_proj"))
    job = msgspec.structs.replace(job_of(model="llama-3.1-70b"), method="lora", adapter=adapter)
    found = solve_offloading(job, card(), Pins(), **ASKED)
    assert found.offloaded.strategy.offload == "optimizer"
    assert "parameters alone are 131" in facts_of(found)["offload"]


def adapted(model="llama-3.3-70b", base="nf4-double"):
    adapter = make_adapter(rank=16, base=base)
    return msgspec.structs.replace(job_of("bf16-mixed", model), method="qlora", adapter=adapter)


@pytest.mark.parametrize("num", [1, 2])
def test_a_frozen_base_is_brought_where_no_card_has_room_for_it(num):
    cluster = msgspec.structs.replace(
        load_cluster(f"{num}xrtx-3090", memory_limit_bytes=None), host_ram_bytes=128 * GIB
    )
    found = solve_offloading(adapted(), cluster, Pins(), **ASKED)
    strategy = found.plan.strategy
    assert strategy.offload == "parameters"
    assert strategy.zero in {0, 1}
    assert found.plan.estimate.fits
    assert found.plan.estimate.host.fits
    assert offloaded_bytes(found.plan.estimate) > num * 35 * GIB


def test_where_nothing_is_known_of_the_host_it_is_said_what_a_frozen_base_needs():
    found = solve_offloading(adapted(), card(), Pins(), **ASKED)
    assert found.plan.strategy.offload == "parameters"
    assert "to train" in facts_of(found)["host"]


def test_a_base_that_has_room_is_not_looked_for_on_the_host():
    job = adapted("llama-3.1-8b")
    assert for_known_host(job, card(256), (Pins(),), "sdpa") == [Pins(offload="optimizer")]
    found = solve_offloading(job, card(256), Pins(), **ASKED)
    assert found.plan.strategy.offload != "parameters"


@pytest.mark.few(2)
@pytest.mark.parametrize("offload", ["none", "optimizer", "parameters"])
def test_what_is_typed_is_searched_alone(offload):
    found = solve_offloading(job_of(), card(), Pins(offload=offload), **ASKED)
    assert found.plan.strategy.offload == offload
    assert found.offloaded is None
