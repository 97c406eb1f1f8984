"""Records of optimizers: what each says of itself is what its torch part does."""

import sys
from types import ModuleType

import pytest

from brimful.cost.estimate import estimate
from brimful.cost.update import CUDA, update_of
from brimful.errors import UnsupportedError
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.simulate.run import simulate
from brimful.techniques.optimizers import (
    DEFAULT,
    OPTIMIZERS,
    Kept,
    Optimizer,
    Settings,
    Updated,
    bytes_kept,
    rounded_of,
    whole_of,
)
from brimful.techniques.optimizers.base import STEP, at_once
from brimful.values.job import check_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.results import OPTIMIZER_STATE
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

DEEP = 6
"""Blocks enough that a simulation traces two models of fewer and grows one of them."""
SETTINGS = Settings(num_bytes=4, kernels="cuda", momentum=0.9, decay=0.1)


ABILITIES = (
    "zero1", "masters", "pipeline", "on_host", "travels", "deepspeed_engine",
    "transformers", "deepspeed", "titan",
)  # fmt: skip


def test_what_is_suggested_instead_of_any_other_is_refused_nothing():
    """Messages say ``use optimizer=`` and the default where another cannot run."""
    rule = OPTIMIZERS[DEFAULT]
    assert rule.shards == "all"
    assert [name for name in ABILITIES if not getattr(rule, name)] == []


@pytest.mark.parametrize("rule", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_depends_on_shape_or_place_is_said_to(rule):
    shapes = [Updated((2**20,)), Updated((2**10, 2**10)), Updated((2**10, 2**10), is_hidden=True)]
    kept = {bytes_kept(rule, [each], SETTINGS) for each in shapes}
    assert (len(kept) == 1) == rule.keeps_by_number


def test_rounded_and_whole_ones_of_a_rule_find_each_other():
    rounding = [rule for rule in OPTIMIZERS.values() if rule.rounds]
    assert rounding
    for rule in rounding:
        assert OPTIMIZERS[whole_of(rule)].words == rule.words
        assert not rounded_of(rule)
    assert rounded_of(OPTIMIZERS[DEFAULT]) in {rule.name for rule in rounding}
    assert not whole_of(OPTIMIZERS[DEFAULT])


@pytest.mark.parametrize("rule", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_state_has_each_key_once_and_there_is_a_moment_of_any_update(rule):
    some = [Updated((96, 64), is_hidden=rule.tells_hidden), Updated((64,)), Updated((40, 8))]
    for each in some:
        keys = [kept.key for kept in rule.state(each, SETTINGS)]
        assert len(set(keys)) == len(keys) >= 1
    for group in (some[:1], some[1:2], some[2:]):
        assert list(rule.moments(group, SETTINGS))
    counts = [kept for each in some for kept in rule.state(each, SETTINGS) if kept.key == STEP]
    assert all(kept.num_bytes(2) == 4 for kept in counts)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_simulation_that_grows_a_small_model_keeps_what_the_record_says(name):
    """What is made of no parameter's belongs to no block, and would not be grown."""
    sizes = {"num_hidden_layers": DEEP, "hidden_size": 128, "intermediate_size": 256}
    job = make_job(model=make_model(**sizes), optimizer=name, precision="bf16-mixed")
    simulated = simulate(job, make_cluster("cuda"), make_strategy())
    kept = {item.name: item.num_bytes for item in simulated.items}[OPTIMIZER_STATE]
    counts = 4 * (3 + 9 * DEEP) * (name == DEFAULT)
    assert kept == pytest.approx(update_of(job, CUDA).kept, abs=max(counts, 1024))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_file_of_the_same_name_builds_it(name):
    from brimful.build.optimizers.base import rule_named

    assert callable(rule_named(name))


def test_one_that_is_added_is_predicted_simulated_and_exported(monkeypatch):
    """A record, a file that builds it and a line in the registry, and nothing else knows it."""
    import torch

    toy = Optimizer(
        name="toy",
        words="Toy",
        keeps="a buffer",
        source="here",
        state=lambda parameter, _settings: (Kept("momentum_buffer", parameter.shape),),
        moments=at_once,
        rates=frozenset({"beta1"}),
    )
    module = ModuleType("brimful.build.optimizers.toy")
    module.build = lambda groups, job: torch.optim.SGD(
        groups, lr=job.learning_rate, momentum=0.5, fused=True
    )
    monkeypatch.setitem(OPTIMIZERS, toy.name, toy)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    job = check_job(make_job(optimizer=toy.name, precision="bf16-mixed"))
    asked = job, make_cluster("cuda"), make_strategy()
    predicted, simulated = estimate(*asked), simulate(*asked)
    assert update_of(job, CUDA).why == "Toy: a buffer"
    peaks = predicted.predicted_peak_allocated_bytes, simulated.simulated_peak_allocated_bytes
    assert peaks[0] == pytest.approx(peaks[1], rel=1e-3)
    kept = {item.name: item.num_bytes for item in simulated.items}[OPTIMIZER_STATE]
    assert kept == update_of(job, CUDA).kept
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=asked[1], strategy=asked[2], estimate=None)
    given = Given("plan.yaml", "DATA", "runs/first")
    assert "with toy" in TARGETS["torchrun"](plan, given).text
    with pytest.raises(UnsupportedError, match="optimizer=toy cannot be said to hf-trainer"):
        TARGETS["hf-trainer"](plan, given)
