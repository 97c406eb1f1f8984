"""Comparing recipes for real: the trainer's own figures, and the cause of what goes wrong."""

import pytest

from brimful.compare.record import CompareSettings

from .test_record import SCALE, make_plan

pytestmark = pytest.mark.torch

RECIPES = ("fp16", "tf32", "bf16-mixed", "fp32", "fp16-mixed")
VOCAB_SIZE = 300
STEPS = {"num_steps": 4, "seq_len": 24}


class Told:
    """Keeps what it is told; may ask the run to stop."""

    def __init__(self, *, stop_after=None):
        self.runs, self.made, self.shares = [], [], []
        self.stop_after = stop_after

    def on_stage(self, text, share):
        del text
        self.shares.append(share)

    def on_run(self, recipe, run, so_far):
        self.runs.append((recipe, run.seed))
        self.made.append(so_far)
        if len(self.runs) == self.stop_after:
            raise KeyboardInterrupt


def small_plan(**changes):
    from samples import make_model

    model = make_model(vocab_size=VOCAB_SIZE)
    return make_plan(model=model, **{**STEPS, **changes})


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    from brimful.train.data.source import as_source

    path = tmp_path_factory.mktemp("data") / "data.txt"
    path.write_text("".join(f"Line {n} of {n % 7} kinds of text.\n" for n in range(3000)))
    return as_source(path)


def compared(plan, source, cache, *, told=None, **asked):
    from brimful.compare.run import compare_recipes

    usual = {"recipes": RECIPES, "loss_scale": SCALE, "num_seeds": 2}
    settings = CompareSettings(**{**usual, **asked})
    return compare_recipes(plan, source, settings, cache=cache, watching=told or Told())


@pytest.fixture(scope="module")
def told():
    return Told()


@pytest.fixture(scope="module")
def made(source, told, tmp_path_factory):
    return compared(small_plan(), source, tmp_path_factory.mktemp("cache"), told=told)


def rows(made):
    return {row.recipe: row for row in made.rows}


def test_every_recipe_is_a_row_and_the_reference_comes_first(made):
    assert [row.recipe for row in made.rows] == ["fp32", "fp16", "tf32", "bf16-mixed", "fp16-mixed"]
    assert made.seeds == (3, 4)
    told = rows(made)
    assert "exactly as fp32" in told["tf32"].why_not
    assert told["tf32"].runs == ()
    for name in ("fp32", "bf16-mixed", "fp16-mixed"):
        row = told[name]
        assert (row.why_not, row.num_failed, row.heldout_loss.num) == (None, 0, 2)
        assert row.measured_step_s > 0
        assert abs(row.to_reference.mean) < 0.01
    assert told["fp16-mixed"].loss_scale == SCALE


def test_it_tells_of_every_run_as_it_ends(made, told):
    ran = [name for name in ("fp32", "fp16", "bf16-mixed", "fp16-mixed") for _ in range(2)]
    assert [recipe for recipe, _ in told.runs] == ran
    assert [seed for _, seed in told.runs] == [3, 4] * 4
    assert told.made[0].rows[0].runs == made.rows[0].runs[:1]
    assert told.shares == sorted(told.shares)
    assert told.shares[-1] == 1


def test_a_row_is_what_the_trainer_itself_comes_to(made, source, tmp_path):
    from brimful.measure.meter import meter_for
    from brimful.train.loop import train
    from brimful.train.observers import PlainObserver
    from brimful.train.settings import plain_settings

    settings = plain_settings(out=tmp_path / "run", data=source, cache=tmp_path / "cache")
    meter = meter_for("cpu")
    result = train(small_plan(), settings, observer=PlainObserver(), meter=meter)
    row = rows(made)["fp32"]
    assert row.runs[0].heldout_loss == result.heldout_loss
    assert row.measured_peak_allocated_bytes == meter.reading.measured_peak_allocated_bytes
    # One byte in a hundred: the rungs are as near on this machine as everywhere.
    for rung in (row.simulated_peak_allocated_bytes, row.predicted_peak_allocated_bytes):
        assert rung == pytest.approx(row.measured_peak_allocated_bytes, rel=0.01)


@pytest.mark.parametrize("recipe", ["bf16", "fp16", "bf16-mixed", "fp16-master"])
def test_first_weights_are_those_of_fp32_rounded(recipe):
    import torch

    from brimful.build.assemble import build_program
    from brimful.compare.recipes import in_recipe

    def weights(name):
        plan = in_recipe(small_plan(), name, SCALE)
        program = build_program(plan.job, plan.strategy, torch.device("cpu"))
        return list(program.model.parameters())

    for plain, other in zip(weights("fp32"), weights(recipe), strict=True):
        assert torch.equal(plain.to(other.dtype), other)


def test_pure_fp16_goes_astray_and_the_doctor_says_why(source, tmp_path):
    plan = small_plan(optimizer="adamw-foreach")
    made = compared(plan, source, tmp_path, recipes=("fp16", "fp16-mixed"), num_seeds=1)
    pure, mixed = made.rows
    assert (mixed.num_failed, mixed.finding, pure.num_failed) == (0, None, 1)
    assert pure.heldout_loss is None
    (run,) = pure.runs
    assert run.failed_step == 2
    assert run.num_steps == 1
    assert run.reason.startswith("the loss became nan in step 2 of 4")
    assert "kept in" not in run.reason  # the folder is gone
    assert pure.finding.fault == "epsilon"
    assert "1e-08, which is 0 in float16 as well" in pure.finding.text


def test_a_larger_epsilon_mends_it(source, tmp_path):
    plan = small_plan(optimizer="adamw-foreach", epsilon=1e-4)
    (row,) = compared(plan, source, tmp_path, recipes=("fp16",), num_seeds=1).rows
    assert (row.num_failed, row.finding) == (0, None)


def test_what_was_done_before_a_stop_has_been_told(source, tmp_path):
    told = Told(stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        compared(small_plan(), source, tmp_path, told=told, recipes=("fp32", "bf16"))
    assert [len(row.runs) for row in told.made[-1].rows] == [2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy": {"dp_replicate": 2}}, "the plan is for 2"),
        ({"seed": 2**63 - 1}, "leaves no 2 seeds"),
    ],
)
def test_what_cannot_be_compared_is_refused(source, tmp_path, changes, reason):
    from brimful.errors import BrimfulError

    with pytest.raises(BrimfulError, match=reason):
        compared(small_plan(**changes), source, tmp_path)


def test_a_recipe_that_does_not_go_with_the_job_is_a_row_with_its_reason(source, tmp_path):
    from samples import make_adapter

    # Norms in fp32 hand fp32 on, which a 16-bit matrix cannot be multiplied by.
    plan = small_plan(method="lora", adapter=make_adapter(upcast="norms"))
    made = compared(plan, source, tmp_path, recipes=("fp32", "fp16"), num_seeds=1)
    told = rows(made)
    assert told["fp32"].heldout_loss is not None
    assert "upcast=norms makes activations fp32" in told["fp16"].why_not
    assert told["fp16"].runs == ()


def test_a_stop_in_the_last_step_of_a_run_is_not_lost(source, tmp_path):
    import signal

    from brimful.compare.one_run import run_once

    def on_step(step):
        if step == STEPS["num_steps"]:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_once(small_plan(), source, cache=tmp_path, is_metered=False, on_step=on_step)
