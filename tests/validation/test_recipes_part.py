"""What is asked of recipes side by side, and when a bar is missed; at full size: make prove."""

import msgspec
import pytest
import recipes_part
from cases import Case
from recipe_rows import ComparedRow
from recipes_part import ADVISED, ASKED, summarize

from brimful.compare.record import Over, RecipeRow, RecipeRun
from brimful.doctor.findings import Finding
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

EPSILON = Finding(fault="epsilon", name="w", kind="update", step=1, ranks=(0,), text="it is 0")


def make_run(seed, loss):
    return RecipeRun(
        seed=seed,
        heldout_loss=loss,
        accuracy=None,
        num_steps=4,
        num_skipped=0,
        failed_step=2 if loss is None else None,
        reason="the loss became nan" if loss is None else None,
        measured_step_s=None,
        measured_peak_allocated_bytes=None,
    )


def make_row(recipe, *, name="decoder", gap=0.0, worse=0.0, **changes):
    """A row as a comparison leaves it, worse than fp32 by a share."""
    figure = Over(num=1, mean=worse, std=None, low=worse, high=worse)
    return ComparedRow(
        name=name,
        case=Case(job=make_job(precision="fp32"), strategy=make_strategy(), kernels="cpu"),
        gap=gap,
        row=RecipeRow(recipe=recipe, to_reference=figure, **changes),
    )


GOOD = (
    make_row("fp16-mixed", gap=0.009),
    make_row("fp16", worse=2.0, finding=EPSILON),
    make_row("fp16", name=f"decoder {ADVISED}"),
)


def test_good_rows_miss_nothing():
    assert summarize(list(GOOD)).missed == ()


@pytest.mark.parametrize(
    "bad",
    [
        make_row("fp16-mixed", gap=0.011),
        make_row("fp16-mixed", gap=-0.011),
        make_row("fp16-mixed", gap=0.0, num_failed=1),
        make_row("fp16", worse=0.009, finding=EPSILON),
        make_row("fp16", worse=2.0),
        make_row("fp16", worse=2.0, finding=msgspec.structs.replace(EPSILON, fault="outlier")),
        make_row("fp16", name=f"decoder {ADVISED}", worse=0.02),
        make_row("fp16", name=f"decoder {ADVISED}", num_failed=1),
    ],
)
def test_each_bar_can_be_missed(bad):
    (said,) = summarize([*GOOD, bad]).missed
    assert said.startswith(f"{bad.name}, {bad.row.recipe}: ")


def test_a_gap_is_between_runs_of_one_seed():
    plain = RecipeRow(recipe="bf16-mixed", runs=(make_run(0, 4.0), make_run(1, 5.0)))
    other = RecipeRow(recipe="fp16-mixed", runs=(make_run(1, 5.5), make_run(0, 4.0)))
    assert recipes_part.gap(other, plain) == pytest.approx(0.05)
    failed = RecipeRow(recipe="fp16", runs=(make_run(0, None), make_run(1, None)))
    assert recipes_part.gap(failed, plain) is None


def test_the_demos_job_is_the_demos_but_for_its_models_size():
    from brimful.cli.demo import MODEL

    assert set(recipes_part.NARROW) <= set(MODEL)
    assert [asked.name for asked in ASKED] == [
        "demo",
        "decoder",
        "classifier",
        f"decoder {ADVISED}",
    ]


@pytest.mark.long
def test_an_example_is_compared_as_it_is(tmp_path):
    recipes_part._prepare(tmp_path)
    (asked,) = (asked for asked in ASKED if asked.name == "classifier")
    made = recipes_part.compare(asked, tmp_path, seed=5, quick=True)
    rows = recipes_part.rows_of(asked.name, made)
    assert [row.row.recipe for row in rows] == list(asked.recipes)
    assert summarize(rows).missed == ()
    pure = rows[-1]
    assert (pure.row.num_failed, pure.row.finding.fault) == (1, "epsilon")
    assert {row.case.job.seed for row in rows} == {5}
    assert [row.case.job.precision for row in rows] == list(asked.recipes)
