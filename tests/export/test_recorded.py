"""Today's exports beside those that the targets' own parsers have accepted."""

from pathlib import Path

import msgspec
import pytest
from evidence import read_evidence
from exporters_plans import GIVEN, RECORDED, SUFFIXES, plans, recorded_name, sha256

from brimful.errors import UnsupportedError
from brimful.export import TARGETS
from brimful.export.lost import unsaid

FIXTURES = Path(__file__).parent / "fixtures"
VALIDATION = Path(__file__).parents[2] / "validation"
PLANS = {planned.name: planned.plan for planned in plans()}


def exported(target, name):
    try:
        return TARGETS[target](PLANS[name], GIVEN)
    except UnsupportedError:
        return None


KEPT = [
    (target, name) for target in SUFFIXES for name in RECORDED if exported(target, name) is not None
]
"""Of the targets whose parsers the proof runs."""


@pytest.mark.parametrize(("target", "name"), KEPT)
def test_an_export_is_what_was_recorded(target, name):
    recorded = FIXTURES / target / recorded_name(target, name)
    assert exported(target, name).text == recorded.read_text("utf-8")


def test_nothing_else_is_recorded():
    files = {path for path in FIXTURES.rglob("*") if path.is_file()}
    assert files == {FIXTURES / target / recorded_name(target, name) for target, name in KEPT}


def test_what_is_recorded_was_accepted_by_the_real_parsers():
    """The newest proof holds the sum of each recorded text."""
    rows = read_evidence("exporters", VALIDATION).rows
    accepted = {(row.target, row.sha256) for row in rows if not row.complaint and not row.refused}
    for target, name in KEPT:
        recorded = FIXTURES / target / recorded_name(target, name)
        assert (target, sha256(recorded.read_text("utf-8"))) in accepted, (target, name)


def test_a_field_that_a_target_does_not_name_is_listed():
    """With nothing said, all that asks for something is lost: a new field cannot vanish."""
    plan = PLANS["moe"]
    named = {each.field for each in unsaid(plan, (), {})}
    assert {"model", "seed", "ep", "zero", "dp_shard", "activation_checkpointing"} <= named
    assert {"pp", "tp", "adapter", "loss_scale", "pp_schedule"}.isdisjoint(named)


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "hf-trainer", "torchtitan"])
def test_what_the_allocator_is_told_is_left_to_the_environment(target):
    kept = [PLANS[name] for to, name in KEPT if to == target]
    assert kept
    for plan in kept:
        strategy = msgspec.structs.replace(plan.strategy, allocator="expandable_segments:True")
        changed = TARGETS[target](msgspec.structs.replace(plan, strategy=strategy), GIVEN)
        (lost,) = [each for each in changed.lost if each.field == "allocator"]
        assert (lost.value, lost.changes) == ("expandable_segments:True", "memory")
        assert "PYTORCH_CUDA_ALLOC_CONF" in lost.why


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "hf-trainer"])
def test_adapters_are_lost_and_change_the_mathematics(target):
    lost = {each.field: each.changes for each in exported(target, "lora").lost}
    assert lost["adapter"] == "mathematics"
    assert lost["attention"] == "speed"


def test_torchtitan_refuses_what_would_be_another_training():
    with pytest.raises(UnsupportedError, match="method=lora cannot be said to torchtitan"):
        TARGETS["torchtitan"](PLANS["lora"], GIVEN)
