"""Looking at a program's first steps: what is found, and that looking changes nothing."""

import math

import msgspec
import pytest

from brimful.doctor.examination import PRECISION_SCHEMA, ExamineSettings
from brimful.values.job import LossScale
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

SCALE = LossScale(
    initial_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)


def make_program(precision="fp32", *, strategy=None, **changes):
    import torch

    from brimful.build.assemble import build_program

    scale = {"loss_scale": SCALE} if precision.startswith("fp16-") else {}
    job = make_job(precision=precision, **{**scale, **changes})
    return build_program(job, make_strategy(**(strategy or {})), torch.device("cpu"))


def make_steps(num=4):
    import torch

    from brimful.build.batch import Batch, count_targets
    from brimful.doctor.program import PlainStep

    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(num):
        tokens = torch.randint(8, 97, (2, 2, 25), generator=generator)
        batches = [Batch(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in tokens]
        found.append(PlainStep(micro_batches=batches, num_targets=count_targets(batches)))
    return found


def look(program, *, num=4, **changes):
    from brimful.train.examine import examine

    settings = ExamineSettings(**{"num_steps": num, "every": 2, **changes})
    return examine(program, make_steps(num), settings)


def weights(program):
    return [p.detach().clone() for p in program.model.parameters()]


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_looking_changes_no_step(precision):
    import torch

    from brimful.build.step import train_step
    from brimful.train.schedule import learning_rate_at

    looked, plain = make_program(precision), make_program(precision)
    examined = look(looked)
    losses = []
    for number, step in enumerate(make_steps(), start=1):
        rate = learning_rate_at(plain.job, number)
        done = train_step(
            plain, step.micro_batches, num_targets=step.num_targets, learning_rate=rate
        )
        losses.append(float(done.loss))
    assert list(examined.losses) == losses
    assert all(map(torch.equal, weights(looked), weights(plain)))
    if plain.scaler is not None:
        assert looked.scaler.state_dict() == plain.scaler.state_dict()


def test_the_trials_find_the_largest_scale_that_is_borne():
    import torch

    from brimful.doctor.program import run_without_update
    from brimful.doctor.scale_search import search_scale

    program, steps = make_program("fp16-mixed"), make_steps()
    before = weights(program)
    trials = search_scale(program, steps)
    shares = {trial.scale: trial.bad_share for trial in trials}
    best = max(scale for scale, share in shares.items() if share <= 0.15)
    assert shares[best] <= 0.15 < shares[2 * best]
    assert 2.0**8 <= best <= 2.0**24
    assert all(trial.num == 4 for trial in trials)
    assert program.scaler.scale == SCALE.initial_scale
    assert all(p.grad is None for p in program.model.parameters())
    assert all(map(torch.equal, before, weights(program)))
    run_without_update(program, steps[0], loss_scale=2 * best)
    assert program.scaler.scale == SCALE.initial_scale


def test_a_healthy_run_has_advice_and_no_findings():
    examined = look(make_program("fp16-mixed"))
    assert examined.schema == PRECISION_SCHEMA
    assert examined.findings == ()
    topics = [advice.topic for advice in examined.advice]
    assert topics[:2] == ["initial scale", "scale rule"]
    assert {"keep fp32", "clip", "16-bit format", "masters", "fp8"} <= set(topics)
    for advice in examined.advice:
        assert any(letter.isdigit() for letter in advice.text), advice
    assert examined.seen.compared.wide == "fp64"
    assert msgspec.json.decode(msgspec.json.encode(examined), type=type(examined)) == examined


def test_advice_says_what_to_type():
    (logits,) = [a for a in look(make_program("fp16-mixed")).advice if a.names == ("lm_head",)]
    assert logits.topic == "keep fp32"
    assert logits.text.endswith("; --keep-fp32 lm_head")


def test_advice_on_fp8_names_the_recipe_and_what_to_leave_out():
    import torch

    program = make_program("fp32")
    (plain,) = [a for a in look(program).advice if a.topic == "fp8"]
    assert plain.value == 1
    assert plain.text.endswith("; --precision fp8")
    program = make_program("fp32")
    with torch.no_grad():  # one number that the others vanish beside
        program.model.base_model.layers[1].mlp.down_proj.weight[0, 0] = 1e9
    (spoilt,) = [a for a in look(program, num=1).advice if a.topic == "fp8"]
    assert spoilt.value < 1
    assert "--precision fp8 --keep-fp32 " in spoilt.text
    assert "down_proj" in spoilt.text.rpartition("--keep-fp32 ")[2]


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["bf16", "fp16-mixed"])
def test_what_is_kept_in_fp32_is_as_wide_as_the_rest_in_the_wide_run(precision):
    """Its border would round to fp32 there, or narrow what goes out."""
    plain = look(make_program(precision)).seen.compared
    kept = look(make_program(precision, keep_fp32=("mlp", "norm"))).seen.compared
    assert plain.wide == kept.wide == "fp64"
    pairs = list(zip(plain.plain, kept.plain, strict=True))
    for one, other in pairs:
        assert (one.kind, one.name) == (other.kind, other.name)
        if one.kind == "activation":
            assert other.largest == pytest.approx(one.largest, rel=0.02)
    assert kept.recipe != plain.recipe


def test_a_step_that_fails_ends_it_and_is_named_with_its_operation():
    import torch

    program = make_program("fp16-mixed", strategy={"attention": "eager"})
    attention = program.model.base_model.layers[1].self_attn
    with torch.no_grad():
        attention.q_proj.weight.mul_(3e3)
        attention.k_proj.weight.mul_(3e3)
    examined = look(program)
    assert examined.losses == (None,)
    bad = examined.seen.first_bad
    assert (bad.name, bad.kind, bad.op) == ("model.layers.1.self_attn", "activation", "aten.bmm")
    assert bad.input_low < 0 < bad.input_high
    assert examined.findings[0].fault == "not-finite"
    assert "bmm" in examined.findings[0].text


def test_a_scale_that_only_must_fall_is_no_bad_module():
    large = msgspec.structs.replace(SCALE, initial_scale=2.0**40)
    examined = look(make_program("fp16-mixed", loss_scale=large))
    assert examined.seen.first_bad is None
    assert [step.skipped for step in examined.seen.ranks[0].scales] == [True] * 4
    assert [finding.fault for finding in examined.findings] == ["scale-too-high"]
    assert all(loss is not None and math.isfinite(loss) for loss in examined.losses)


@pytest.mark.parametrize("precision", ["fp16-master", "bf16-mixed"])
def test_running_in_a_wide_format_gives_every_bit_back(precision):
    import torch

    from brimful.doctor.program import compare

    program = make_program(precision)
    before = weights(program)
    compared = compare(program, make_steps()[0])
    held = {row.held for row in compared.plain if row.kind == "gradient"}
    assert (compared.wide, held) == ("fp64", {"float64"})
    assert all(map(torch.equal, before, weights(program)))
    assert [p.dtype for p in program.model.parameters()] == [w.dtype for w in before]
