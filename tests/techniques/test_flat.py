"""FSDP1: refused at the door beside what it does not do, each with what to change."""

import msgspec
import pytest

from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.techniques.parallel.flat import sharding_of
from brimful.techniques.runnable import check_strategy
from samples import make_adapter, make_cluster, make_job, make_strategy

FLAT = {"zero": 3, "dp_shard": 2, "fsdp": 1}
WIDE_NORMS = {"base": "bf16", "upcast": "norms"}
REFUSED = [
    ({}, {**FLAT, "zero": 0, "dp_shard": 1}, "one device"),
    ({}, {**FLAT, "zero": 1}, "zero=1 holds them whole; use zero 2 or 3"),
    ({}, {**FLAT, "tp": 2}, "fsdp=1 with tp=2"),
    ({}, {**FLAT, "pp": 2}, "fsdp=1 with pp=2"),
    ({}, {**FLAT, "engine": "deepspeed"}, "fsdp=1 with engine=deepspeed"),
    ({"adapter": {"base": "int8"}, "method": "qlora"}, FLAT, "base=int8"),
    ({"adapter": WIDE_NORMS, "precision": "bf16-mixed"}, FLAT, "upcast=norms"),
    ({"keep_fp32": ("norm",), "precision": "bf16"}, FLAT, "of one type; use fsdp=2"),
    ({"optimizer": "adamw-8bit"}, FLAT, "optimizer=adamw-8bit"),
    ({"optimizer": "muon"}, FLAT, "optimizer=muon"),
    ({}, {**FLAT, "offload": "optimizer"}, "offload=optimizer"),
]


def job_of(adapter=None, method="lora", **changes):
    job = make_job(global_batch=8, **changes)
    if adapter is None:
        return job
    return msgspec.structs.replace(job, method=method, adapter=make_adapter(**adapter))


@pytest.mark.parametrize(("job", "how", "words"), REFUSED)
def test_it_is_refused_in_a_sentence_that_says_what_to_change(job, how, words):
    with pytest.raises((InputError, UnsupportedError), match=words) as refused:
        check_strategy(job_of(**job), make_strategy(micro_batch=1, **how))
    assert refused.value.nearest == {"fsdp": 2}
    assert "; " in str(refused.value)


def test_adapters_have_no_formula():
    cluster, strategy = make_cluster("cuda"), make_strategy(micro_batch=1, **FLAT)
    job = job_of(adapter={})
    check_strategy(job, strategy)
    assert "with fsdp=1 has no formula" in missing_formula(job, strategy, cluster.device)


def test_a_search_takes_it_only_where_it_is_asked_for():
    cluster = msgspec.structs.replace(make_cluster(), num_devices=4)
    job = make_job(global_batch=8)
    asked = {"attention": "sdpa", "objective": "memory"}
    plain = solve(job, cluster, Pins(), **asked)
    flat = solve(job, cluster, Pins(fsdp=1), **asked)
    assert {row.strategy.fsdp for row in plain.record.rows} == {2}
    assert {row.strategy.fsdp for row in flat.record.rows} == {1}
    assert {row.strategy.zero for row in flat.record.rows} <= {2, 3}


def test_other_programs_name_the_stage():
    strategy = make_strategy(micro_batch=1, **FLAT)
    assert sharding_of(strategy) == "FULL_SHARD"
    both = msgspec.structs.replace(strategy, zero=2, dp_replicate=2)
    assert sharding_of(both) == "HYBRID_SHARD_ZERO2"
