"""What rows of a comparison sum up to, and what is changed of a plan to make one."""

import statistics
from typing import get_args

import msgspec
import pytest

from brimful.compare.recipes import RECIPES, in_recipe, shortened, why_not
from brimful.compare.record import RecipeRun, over, row_of
from brimful.hardware.cluster import MatrixRates
from brimful.values.job import SCALED, LossScale, Precision
from brimful.values.plan import PLAN_SCHEMA, Plan
from samples import make_cluster, make_job, make_strategy

SCALE = LossScale(
    initial_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)


def make_plan(*, cluster=None, strategy=None, **changes):
    return Plan(
        schema=PLAN_SCHEMA,
        job=make_job(**changes),
        cluster=make_cluster(**(cluster or {})),
        strategy=make_strategy(**(strategy or {})),
        estimate=None,
    )


def make_run(seed, loss, **changes):
    failed = {"failed_step": 3, "reason": "the loss became nan"} if loss is None else {}
    fields = {
        "accuracy": None,
        "num_steps": 5,
        "num_skipped": 0,
        "failed_step": None,
        "reason": None,
        "measured_step_s": 0.1,
        "measured_peak_allocated_bytes": None,
    }
    return RecipeRun(seed=seed, heldout_loss=loss, **{**fields, **failed, **changes})


PLAIN = [make_run(0, 4.0), make_run(1, 5.0), make_run(2, None)]


def test_a_figure_over_seeds():
    figure = over([4.0, None, 5.0, 4.5])
    assert (figure.num, figure.mean, figure.low, figure.high) == (3, 4.5, 4.0, 5.0)
    assert figure.std == statistics.stdev([4.0, 5.0, 4.5])
    assert over([4.0]).std is None
    assert over([None]) is None


def test_a_run_is_held_against_the_reference_with_the_same_seed():
    row = row_of("bf16", [make_run(1, 5.5), make_run(0, 4.0), make_run(2, 9.0)], PLAIN)
    # Seed 2 of the reference failed: of it nothing is known.
    assert row.to_reference.num == 2
    assert row.to_reference.mean == pytest.approx(0.05)
    assert row.is_worse
    assert row.is_in_doubt
    assert row_of("bf16", [make_run(0, 4.03)], PLAIN).is_in_doubt is False
    assert row_of("bf16", [make_run(0, 9.0)], []).to_reference is None


def test_a_run_that_failed_is_counted_and_has_no_loss():
    runs = [make_run(0, 4.0, num_skipped=2), make_run(1, None, num_skipped=1)]
    row = row_of("fp16", runs, PLAIN)
    assert (row.num_failed, row.num_skipped, row.heldout_loss.num) == (1, 3, 1)
    assert row.is_in_doubt
    assert not row.is_worse


def test_costs_are_the_largest_peak_and_the_middle_time():
    times, peaks = (0.3, 0.1, None), (None, 7, None)
    runs = [
        make_run(seed, 4.0, measured_step_s=step_s, measured_peak_allocated_bytes=peak)
        for seed, (step_s, peak) in enumerate(zip(times, peaks, strict=True))
    ]
    row = row_of("fp32", runs, runs)
    assert row.measured_step_s == pytest.approx(0.2)
    assert row.measured_peak_allocated_bytes == 7
    assert row.to_reference.mean == 0


def test_every_recipe_there_is_can_be_asked_for():
    assert get_args(Precision) == RECIPES
    assert RECIPES[0] == "fp32"


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16", "fp16-mixed", "bf16-master"])
def test_nothing_but_the_recipe_and_its_scale_is_changed(recipe):
    plan = make_plan()
    other = in_recipe(plan, recipe, SCALE)
    assert other.job.loss_scale == (SCALE if recipe in SCALED else None)
    same = msgspec.structs.replace(
        other.job, precision=plan.job.precision, loss_scale=plan.job.loss_scale
    )
    assert same == plan.job
    assert other.strategy == plan.strategy


def test_a_scale_of_the_plans_own_is_kept():
    own = msgspec.structs.replace(SCALE, initial_scale=8.0)
    plan = make_plan(precision="fp16-mixed", loss_scale=own)
    assert in_recipe(plan, "fp16-master", SCALE).job.loss_scale == own
    assert in_recipe(plan, "fp32", SCALE).job.loss_scale is None


def test_why_a_recipe_is_not_run():
    assert why_not(make_plan(), "fp16", SCALE) is None
    assert "exactly as fp32" in why_not(make_plan(), "tf32", SCALE)
    units = {"tf32": 1e12}, {"tf32": 0.0}
    for tf32, is_run in zip(units, (True, False), strict=True):
        rates = MatrixRates(fp32=1e12, bf16=1e12, **tf32)
        plan = make_plan(cluster={"kernels": "cuda", "matrix_flops_per_s": rates})
        assert (why_not(plan, "tf32", SCALE) is None) == is_run


@pytest.mark.parametrize(
    ("num_steps", "warmup", "asked", "expected"),
    [(5, 2, None, (5, 2)), (1000, 100, None, (300, 30)), (1000, 100, 20, (20, 2)),
     (5, 5, 10, (10, 10))],
)  # fmt: skip
def test_the_warm_up_is_shortened_with_the_run(num_steps, warmup, asked, expected):
    job = shortened(make_job(num_steps=num_steps, warmup_steps=warmup), asked)
    assert (job.num_steps, job.warmup_steps) == expected
