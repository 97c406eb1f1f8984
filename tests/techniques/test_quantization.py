import msgspec
import pytest
from tests.models.meta import SMALL

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import read_config
from brimful.techniques.quantization import (
    GROUP_SIZE,
    ROW,
    Quantization,
    check_width,
    default_group,
)
from brimful.techniques.runnable import check_strategy
from brimful.values.job import check_job
from brimful.values.plan import PLAN_SCHEMA, Plan, read_plan, write_yaml
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

INT4, INT8 = Quantization(scheme="int4", group_size=8), Quantization(scheme="int8", group_size=ROW)


def qat(quantization=INT4, **changes):
    return make_job(method="qat", quantization=quantization, **changes)


@pytest.mark.parametrize("quantization", [INT4, INT8])
def test_it_round_trips_through_a_plan(quantization, tmp_path):
    job, strategy = check_job(qat(quantization)), make_strategy()
    plan = Plan(
        schema=PLAN_SCHEMA, job=job, cluster=make_cluster(), strategy=strategy, estimate=None
    )
    write_yaml(plan, tmp_path / "plan.yaml")
    assert read_plan(tmp_path / "plan.yaml").job.quantization == quantization


def test_defaults_of_the_schemes():
    assert (default_group("int8"), default_group("int4")) == (ROW, GROUP_SIZE)


@pytest.mark.parametrize(("changes", "words"), [
    ({"method": "full"}, "method=full has a quantization"),
    ({"quantization": None}, "method=qat needs a quantization"),
    ({"quantization": msgspec.structs.replace(INT4, group_size=7)},
     r"group_size=7 does not divide tiny-llama's hidden_size=\d+; use"),
    ({"quantization": msgspec.structs.replace(INT4, group_size=1)}, "group_size=1 is too small"),
    ({"quantization": msgspec.structs.replace(INT8, group_size=8)},
     "group_size=8 has no meaning with scheme=int8"),
    ({"adapter": make_adapter()}, "method=qat and its adapter do not agree"),
], ids=str)  # fmt: skip
def test_what_does_not_go_together(changes, words):
    with pytest.raises(InputError, match=words):
        check_job(msgspec.structs.replace(qat(), **changes))


def test_a_width_that_only_int8_takes():
    with pytest.raises(InputError, match="x=33; use scheme=int8"):
        check_width("x", 33, group_size=32)


@pytest.mark.parametrize(("changes", "words"), [
    ({"precision": "fp8"}, "precision=fp8 with method=qat is not run"),
    ({"task": "module"}, "task=module"),
])  # fmt: skip
def test_jobs_that_are_not_run(changes, words):
    with pytest.raises((UnsupportedError, InputError), match=words):
        check_job(msgspec.structs.replace(qat(), **changes))


@pytest.mark.parametrize(("strategy", "words"), [
    ({"tp": 2}, "tp=2 with method=qat is not run"),
    ({"pp": 2}, "pp=2 with method=qat is not run"),
    ({"zero": 3, "dp_shard": 2, "engine": "deepspeed"}, "method=qat is not run by engine="),
], ids=str)  # fmt: skip
def test_strategies_that_do_not_run_it(strategy, words):
    job = qat(model=make_model(vocab_size=96))
    with pytest.raises(UnsupportedError, match=words):
        check_strategy(job, make_strategy(**strategy))


def test_parted_experts_do_not_run_it():
    job = qat(model=read_config("tiny", {"model_type": "mixtral", **SMALL["mixtral"]}))
    strategy = make_strategy(zero=3, dp_shard=2, ep=2)
    with pytest.raises(UnsupportedError, match="ep=2 with method=qat is not run"):
        check_strategy(job, strategy)
