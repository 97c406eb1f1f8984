import itertools
import json
import math

import msgspec
import pytest
from safetensors.torch import load_file

from brimful.errors import RunError
from brimful.values.job import LossScale
from brimful.values.run_files import EvalRow
from samples import make_job, make_strategy
from train.reports import make_row

pytestmark = pytest.mark.torch

NAN, INF = float("nan"), float("inf")
SCALE = LossScale(
    initial_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)


def make_program(architecture="llama", **changes):
    import torch

    from brimful.build.assemble import build_program

    scale = {"loss_scale": SCALE} if "fp16-" in changes.get("precision", "") else {}
    job = make_job(architecture, **{**scale, **changes})
    return build_program(job, make_strategy(), torch.device("cpu"))


def micro_batches(num=2):
    """Random tokens; token 7 is in the second micro-batch only."""
    import torch

    from brimful.build.batch import Batch

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(8, 97, (num, 2, 25), generator=generator)
    tokens[1, 1, 5] = 7
    return [Batch(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in tokens]


def plant(program, name, value):
    import torch

    with torch.no_grad():
        dict(program.model.named_parameters())[name].view(-1)[0] = value


def step(program):
    from brimful.build.batch import count_targets
    from brimful.build.step import train_step
    from brimful.train.guard import keeping_weights

    batches = micro_batches()
    with keeping_weights(program):
        return train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-2)


def weights(program):
    return [parameter.detach().clone() for parameter in program.model.parameters()]


def same(program, before):
    import torch

    pairs = zip(program.model.parameters(), before, strict=True)
    return all(torch.equal(now, then) for now, then in pairs)


# Finding it.

PLANTED = {
    ("llama", "model.layers.1.mlp.down_proj.weight"): "model.layers.1.mlp.down_proj",
    ("llama", "model.layers.2.input_layernorm.weight"): "model.layers.2.input_layernorm",
    ("llama", "model.layers.0.self_attn.q_proj.weight"): "model.layers.0.self_attn.q_proj",
    ("llama", "model.norm.weight"): "model.norm",
    ("llama", "lm_head.weight"): "lm_head",
    ("gpt2", "transformer.h.1.mlp.c_fc.weight"): "transformer.h.1.mlp.c_fc",
    ("gpt2", "transformer.h.2.ln_1.bias"): "transformer.h.2.ln_1",
    ("gpt2", "transformer.h.0.attn.c_attn.weight"): "transformer.h.0.attn.c_attn",
}


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(("architecture", "parameter"), PLANTED)
def test_the_module_with_the_planted_number_is_named(architecture, parameter, value):
    from brimful.train.nan import find_origin

    program = make_program(architecture)
    plant(program, parameter, value)
    origin = find_origin(program, micro_batches(), loss_scale=None)
    assert origin.name == PLANTED[architecture, parameter]
    assert (origin.where, origin.micro_batch) == ("forward", 0)
    if origin.name != "lm_head":
        assert origin.input_low < 0 < origin.input_high


@pytest.mark.parametrize("changes", [{"activation_checkpointing": "full"}, {"loss_chunks": 3}])
def test_checkpointing_and_chunks_hide_nothing(changes):
    import torch

    from brimful.build.assemble import build_program
    from brimful.train.nan import find_origin

    for name in ("model.layers.1.mlp.up_proj", "lm_head"):
        program = build_program(make_job(), make_strategy(**changes), torch.device("cpu"))
        plant(program, f"{name}.weight", NAN)
        found = find_origin(program, micro_batches(), loss_scale=None)
        assert (found.where, found.name) == ("forward", name)


def test_the_micro_batch_that_holds_the_token_is_named():
    import torch

    from brimful.train.nan import find_origin

    program = make_program()
    with torch.no_grad():
        program.model.get_input_embeddings().weight[7] = NAN
    origin = find_origin(program, micro_batches(), loss_scale=None)
    assert (origin.name, origin.micro_batch) == ("model.embed_tokens", 1)


def test_what_a_module_makes_between_its_parts_is_its_own():
    from brimful.train.nan import find_origin

    program = make_program()
    mlp = program.model.base_model.layers[1].mlp
    del mlp.act_fn
    mlp.act_fn = lambda x: x / 0.0  # no module: what follows it is handed Inf and NaN
    origin = find_origin(program, micro_batches(), loss_scale=None)
    assert origin.name == "model.layers.1.mlp"


def test_a_gradient_is_named_in_the_order_of_the_backward_pass():
    from brimful.train.nan import find_origin

    program = make_program()
    layer = program.model.base_model.layers[1]
    layer.mlp.down_proj.register_full_backward_hook(lambda _m, grads, _out: (grads[0] * NAN,))
    origin = find_origin(program, micro_batches(), loss_scale=None)
    assert origin.where == "backward"
    # Before it come the gradients of what follows it, and of its own weight.
    assert origin.name in {f"model.layers.1.mlp.{x}_proj.weight" for x in ("gate", "up")}


def test_a_healthy_step_has_no_origin_and_leaves_nothing_behind():
    from brimful.train.nan import find_origin

    program = make_program()
    before = weights(program)
    assert find_origin(program, micro_batches(), loss_scale=None) is None
    assert same(program, before)
    assert all(p.grad is None for p in program.model.parameters())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in program.model.modules()]
    assert sum(hooks) == 0


def test_an_overflow_of_fp16_is_found_where_it_happens():
    import torch

    from brimful.train.nan import find_origin

    program = make_program(precision="fp16-mixed")
    with torch.no_grad():
        program.model.base_model.layers[1].mlp.down_proj.weight.fill_(3e4)
        program.model.base_model.layers[1].mlp.up_proj.weight.mul_(1e3)
    origin = find_origin(program, micro_batches(), loss_scale=65536.0)
    assert (origin.where, origin.name) == ("forward", "model.layers.1.mlp.down_proj")
    assert math.isfinite(origin.input_high)


def test_an_overflow_of_the_scaled_backward_is_found_at_the_scale_that_it_had():
    from brimful.train.nan import find_origin

    program = make_program(precision="fp16-mixed")
    assert find_origin(program, micro_batches(), loss_scale=1.0) is None
    origin = find_origin(program, micro_batches(), loss_scale=2.0**30)
    assert origin.where == "backward"
    assert program.scaler.scale == 65536.0


# Keeping the weights whole.


@pytest.mark.few
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "bf16-master"])
def test_a_bad_step_changes_no_weight(precision, clip, value):
    program = make_program(precision=precision, clip=clip)
    step(program)
    before = weights(program)
    norm = program.model.base_model.layers[1].input_layernorm.weight
    hook = norm.register_hook(lambda grad: grad * value)
    assert not math.isfinite(step(program).grad_norm)
    assert same(program, before)
    hook.remove()
    assert math.isfinite(step(program).grad_norm)
    assert not same(program, before)


@pytest.mark.parametrize("precision", ["fp32", "bf16-master"])
def test_the_guard_changes_no_good_step(precision):
    import torch

    from brimful.build.batch import count_targets
    from brimful.build.step import train_step

    guarded, plain = make_program(precision=precision), make_program(precision=precision)
    batches = micro_batches()
    for _ in range(3):
        step(guarded)
        train_step(plain, batches, num_targets=count_targets(batches), learning_rate=1e-2)
    assert same(guarded, weights(plain))
    assert all(torch.isfinite(p).all() for p in plain.model.parameters())


# A whole run.


class Planter:
    """Watches a run from outside and writes a number into a weight after a step."""

    reading = None

    def __init__(self, *, after_step, name, value):
        self._after, self._name, self._value = after_step, name, value
        self._program = None

    def start(self):
        pass

    def stop(self, program):
        self._program = program

    def abandon(self):
        pass

    def on_step(self, report):
        if report.row.step == self._after:
            plant(self._program, self._name, self._value)

    def __getattr__(self, name):
        return lambda *_told: None


@pytest.fixture(scope="module")
def run(text_folder, tmp_path_factory):
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.settings import plain_settings

    cache = tmp_path_factory.mktemp("cache")

    def start(plan, out, planter=None, **changes):
        settings = plain_settings(
            out=out,
            data=text_folder,
            cache=cache,
            resume=False,
            checkpoint_every_steps=2,
            eval_every_steps=100,
            num_eval_tokens=256,
        )
        settings = msgspec.structs.replace(settings, **changes)
        quiet = Planter(after_step=0, name="", value=0)
        return train(plan, settings, observer=planter or quiet, meter=planter or NullMeter())

    return start


def scaled(plan, **changes):
    job = msgspec.structs.replace(plan.job, precision="fp16-mixed", loss_scale=SCALE, **changes)
    return msgspec.structs.replace(plan, job=job)


def test_a_run_stops_at_the_bad_step_keeps_its_batch_and_goes_on(run, plan_with, tmp_path):
    out, name = tmp_path / "out", "model.layers.1.mlp.up_proj"
    planter = Planter(after_step=5, name=f"{name}.weight", value=NAN)
    with pytest.raises(RunError) as caught:
        run(plan_with(), out, planter)
    bad = out / "bad-step-00000006"
    good = out / "checkpoints" / "step-00000004"
    assert str(caught.value) == (
        f"the loss became nan in step 6 of 12 with learning_rate=0.01, first in the output of "
        f"{name}, micro-batch 1 of 2; the batch is kept in {bad} and the last good checkpoint is "
        f"{good}; lower learning_rate or raise warmup_steps"
    )
    assert good.is_dir()
    said = json.loads((bad / "step.json").read_text())
    assert said["schema"] == "brimful.bad-step/1"
    assert (said["step"], said["micro_batch"], said["num_micro_batches"]) == (6, 1, 2)
    assert (said["what"], said["where"], said["name"]) == ("loss", "forward", name)
    assert (said["loss"], said["grad_norm"], said["loss_scale"]) == ("nan", "nan", None)
    assert float(said["input_low"]) < 0 < float(said["input_high"])
    assert 0 < said["learning_rate"] <= 0.01
    assert said["position"]
    batch = load_file(bad / "batch.safetensors")
    assert set(batch) == {"inputs", "labels"}
    assert batch["inputs"].shape == (2, 32)
    assert batch["labels"][:, :-1].equal(batch["inputs"][:, 1:])
    assert not list(out.glob(".bad-step*"))

    result = run(plan_with(), out, resume=True)
    assert (result.resumed_from, result.num_steps) == (4, 12)
    whole = run(plan_with(), tmp_path / "whole")
    assert result.final_loss == whole.final_loss


def test_a_run_without_a_checkpoint_says_so(run, plan_with, tmp_path):
    planter = Planter(after_step=3, name="model.norm.weight", value=INF)
    with pytest.raises(RunError, match="there is no checkpoint yet; lower"):
        run(plan_with(), tmp_path / "out", planter, checkpoint_every_steps=100)


def test_skipped_steps_are_counted_and_are_no_error(run, plan_with, tmp_path):
    large = msgspec.structs.replace(SCALE, initial_scale=2.0**30)
    plan = scaled(plan_with(num_steps=24))
    plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, loss_scale=large))
    result = run(plan, tmp_path / "out")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    skipped = [row.get("skipped", False) for row in rows]
    assert result.num_skipped == sum(skipped) > 0
    halvings = itertools.accumulate(skipped[:-1], initial=0)
    assert [row["loss_scale"] for row in rows] == [2.0 ** (30 - num) for num in halvings]
    assert [row["grad_norm"] is None for row in rows] == skipped
    assert rows[0]["loss"] == pytest.approx(math.log(300), rel=0.1)
    assert result.final_loss < rows[0]["loss"]
    assert result.num_targets == 24 * 128


def test_an_overflow_that_no_scale_helps_stops_the_run(run, plan_with, tmp_path):
    out, name = tmp_path / "out", "model.layers.0.mlp.down_proj"
    planter = Planter(after_step=3, name=f"{name}.weight", value=1e30)
    with pytest.raises(RunError) as caught:
        run(scaled(plan_with(num_steps=60)), out, planter)
    text = str(caught.value)
    assert f"first in the output of {name}, micro-batch 1 of 2" in text
    assert "one skipped step too many" in text
    assert "last good checkpoint is" in text
    lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
    # The scale goes from 2^16 to 2^-14, fp16's smallest normal number, and no further.
    assert sum(row.get("skipped", False) for row in rows) == 29
    assert rows[-1]["loss"] is None


def test_fifty_skips_in_a_row_are_too_many_whatever_the_scale():
    from brimful.train.bad_step import StepNumbers, must_stop

    slow = msgspec.structs.replace(SCALE, backoff_factor=0.999)
    program = make_program(precision="fp16-mixed", loss_scale=slow)
    numbers = StepNumbers(60, 1.0, INF, 1e-3, 65536.0, skipped=True)
    assert not must_stop(program, numbers, 48)
    assert must_stop(program, numbers, 49)


def test_a_full_disk_does_not_hide_what_happened(tmp_path):
    from brimful.train.bad_step import StepNumbers, explain_stop

    program = make_program()
    plant(program, "model.norm.weight", NAN)
    (tmp_path / "out").write_text("a file where the run's folder should be")
    numbers = StepNumbers(6, NAN, NAN, 1e-3, None, skipped=False)
    error = explain_stop(program, numbers, micro_batches(), position=None, out=tmp_path / "out")
    assert "first in the output of model.norm" in str(error)
    assert "the batch could not be kept" in str(error)


# Judging and counting.


def test_a_heldout_loss_that_is_no_number_names_the_module():
    from brimful.train.judging import judge_heldout
    from brimful.train.tally import Tally

    program = make_program()
    plant(program, "model.layers.2.mlp.gate_proj.weight", NAN)
    with pytest.raises(RunError, match=r"held-out loss became nan after step 3, first in the outp"):
        judge_heldout(program, micro_batches(), 3, Tally())


def test_accuracy_is_counted_along_with_the_loss_of_a_classifier():
    import torch

    from brimful.build.assemble import build_program
    from brimful.build.batch import IGNORE_INDEX
    from brimful.train.judging import judge_heldout
    from brimful.train.tally import Tally

    job = make_job(task="sequence-classification", packing="none")
    program = build_program(job, make_strategy(), torch.device("cpu"))
    batches = micro_batches()
    with torch.no_grad():
        states = [program.model.base_model(input_ids=b.inputs)[0] for b in batches]
        scores = [program.model.score(x[:, -1]) for x in states]
    right = [x.argmax(1) for x in scores]
    # Of four texts one is unmasked and wrong, one masked.
    labels = [right[0].clone(), right[1].clone()]
    labels[0][1] = (labels[0][1] + 1) % scores[0].shape[1]
    labels[1][0] = IGNORE_INDEX
    judged = [b._replace(labels=x) for b, x in zip(batches, labels, strict=True)]
    row = judge_heldout(program, judged, 3, Tally())
    assert row.accuracy == pytest.approx(2 / 3)
    assert row.perplexity is None
    assert not program.loss._forward_pre_hooks


def test_what_learns_no_classes_has_no_accuracy():
    import torch

    from brimful.train.judging import Hits

    hits = Hits()
    hits._count(torch.randn(4, 3), torch.randn(4, 3), 4)
    hits._count({"scores": torch.randn(4, 3)}, torch.zeros(4, dtype=torch.int64), 4)
    assert hits.accuracy is None
    hits._count(torch.eye(3)[None].expand(2, 3, 3), torch.tensor([[0, 1, 2], [0, 1, 1]]), 6)
    assert hits.accuracy == pytest.approx(5 / 6)


def test_perplexity_is_for_tokens_and_where_it_is_a_number():
    from brimful.train.judging import judge_heldout, perplexity
    from brimful.train.tally import Tally

    row = judge_heldout(make_program(), micro_batches(), 3, Tally())
    assert row.perplexity == math.exp(row.heldout_loss)
    assert row.is_best
    assert row.accuracy is None
    assert perplexity("sequence-classification", 1.0) is None
    assert perplexity("causal-lm", 1e4) is None


def test_rows_add_up_to_what_the_run_says():
    from brimful.train.tally import tally_of

    rows = [
        make_row(1, loss=None, grad_norm=None, loss_scale=8.0, skipped=True, num_targets=100),
        make_row(2, loss=3.0, num_targets=100),
        EvalRow(step=2, heldout_loss=2.0),
        make_row(3, loss=2.5, num_targets=None, tokens_per_s=300.0, step_s=0.5),
        EvalRow(step=3, heldout_loss=1.0),
        make_row(4, loss=None, grad_norm=None, loss_scale=8.0, skipped=True, num_targets=100),
        make_row(5, loss=None, grad_norm=None, loss_scale=4.0, skipped=True, num_targets=100),
        EvalRow(step=5, heldout_loss=1.0),
    ]
    tally = tally_of(rows)
    assert (tally.num_targets, tally.num_skipped, tally.num_skipped_in_a_row) == (550, 3, 2)
    assert (tally.last_loss, tally.last_eval.step, tally.best_eval.step) == (2.5, 5, 3)
