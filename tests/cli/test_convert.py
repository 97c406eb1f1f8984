"""From a run to a folder of integers: what it says, what it writes, and who can read it."""

import io
import json
import shutil
from functools import cache

import msgspec
import pytest
from tests.samples import make_cluster, make_job, make_model, make_strategy

from brimful.models.resized import with_num_labels
from brimful.techniques.quantization import Quantization, default_group
from brimful.values.plan import PLAN_SCHEMA, Plan

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason="torchao is not installed (pip install 'brimful[qat]')")

TEXT = "A line of text, and one more.\nAnother one, and the last.\n" * 300


def plan_of(scheme, precision, **changes):
    quantization = scheme and Quantization(scheme=scheme, group_size=default_group(scheme))
    widths = {"hidden_size": 32, "intermediate_size": 96, "vocab_size": 300}
    fields = {
        "model": make_model("llama", **widths, num_hidden_layers=2, head_dim=8),
        "method": "qat" if scheme else "full",
        "quantization": quantization or None,
        "precision": precision,
        "num_steps": 4,
        **changes,
    }
    return Plan(
        schema=PLAN_SCHEMA,
        job=make_job(**fields),
        cluster=make_cluster(),
        strategy=make_strategy(),
        estimate=None,
    )


def train_here(plan, out, data, **settings):
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.observers import PlainObserver
    from brimful.train.settings import plain_settings

    cache_folder = out.parent / "cache"
    made = plain_settings(out=out, data=data, cache=cache_folder, **settings)
    return train(plan, made, observer=PlainObserver(io.StringIO()), meter=NullMeter())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run the trainer once for each scheme and precision."""

    @cache
    def run(scheme, precision):
        folder = tmp_path_factory.mktemp("run")
        (folder / "data.txt").write_text(TEXT)
        train_here(plan_of(scheme, precision), folder / "run", folder / "data.txt")
        return folder / "run"

    return run


@pytest.fixture
def trained(runs, folder):
    """Copy a run into a working directory of its own."""

    def run(scheme, precision="fp32"):
        shutil.copytree(runs(scheme, precision), folder / "run")
        return folder / "run"

    return run


def rows_of(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["kind"] == "train"]


def heldout_of(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["heldout_loss"] for row in rows if row["kind"] == "eval"][-1]


CASES = [("int4", "fp32"), ("int8", "bf16"), ("int4", "bf16-mixed"), ("int8", "fp32")]


@pytest.mark.few
@pytest.mark.parametrize(("scheme", "precision"), CASES)
def test_what_was_trained_is_what_is_kept(brimful, trained, scheme, precision):
    run = trained(scheme, precision)
    said = brimful("convert", run, "-o", "out", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert told["schema"] == "brimful.conversion/1"
    assert told["quantization"]["scheme"] == scheme
    assert told["trained_for_it"] is True
    losses = [told[f"measured_{name}_loss"] for name in ("prepared", "converted", "reloaded")]
    assert max(losses) - min(losses) <= 1e-5
    assert losses[0] == pytest.approx(heldout_of(run), abs=1e-6)
    assert told["measured_whole_loss"] != losses[0]
    assert told["measured_weight_bytes_after"] < told["measured_weight_bytes_before"]
    assert told["measured_file_bytes_after"] < told["measured_file_bytes_before"]
    assert json.loads((run.parent / "out" / "conversion.json").read_text()) == told


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_transformers_reads_it(brimful, trained, scheme):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = trained(scheme)
    assert brimful("convert", run, "-o", "out").code == 0
    model = AutoModelForCausalLM.from_pretrained("out", local_files_only=True)
    assert not list((run.parent / "out").glob("*.bin"))
    layers = [name for name, p in model.named_parameters() if hasattr(p, "qdata")]
    assert len(layers) == 2 * 7
    assert "lm_head.weight" not in layers
    with safe_open("out/model.safetensors", "pt") as file:
        held = file.get_tensor(layers[0].replace(".weight", "._weight_qdata"))
    assert held.dtype == torch.int8
    ids = AutoTokenizer.from_pretrained("out")("A line of text", return_tensors="pt").input_ids
    whole = AutoModelForCausalLM.from_pretrained(run / "model", local_files_only=True)
    with torch.no_grad():
        ours, plain = model(input_ids=ids).logits, whole(input_ids=ids).logits
    assert not torch.equal(ours, plain)
    torch.testing.assert_close(ours, plain, atol=0.5, rtol=0.5)
    with torch.no_grad():
        assert model.generate(ids, max_new_tokens=3, do_sample=False).shape[1] == ids.shape[1] + 3


def test_a_plain_run_and_a_folder_are_converted_too(brimful, trained):
    run = trained(None, "bf16")
    said = brimful("convert", run, "--to", "int4", "--group-size", "16", "-o", "out")
    assert said.code == 0, said.err
    assert "without rounding" in said.out
    assert "each int4 in a byte here" in said.out
    assert max(map(len, said.out.splitlines())) <= 100
    again = brimful(
        "convert",
        run / "model",
        *("--to", "int8", "-o", "other", "--data", "data.txt", "--seq-len", 24, "--json"),
    )
    assert again.code == 0, again.err
    told = json.loads(again.out)
    assert (again.code, told["trained_for_it"], told["num_layers"]) == (0, False, 14)


def test_a_classifier_is_converted(brimful, folder):
    rows = [{"text": f"{n} {('up', 'down')[n % 2]}", "label": n % 2} for n in range(120)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    plan = plan_of("int4", "fp32", task="sequence-classification", packing="none")
    model = with_num_labels(plan.job.model, 2)
    plan = msgspec.structs.replace(plan, job=msgspec.structs.replace(plan.job, model=model))
    train_here(plan, folder / "run", folder / "rows.jsonl")
    made = brimful("convert", "run", "-o", "out", "--json")
    assert made.code == 0, made.err
    assert json.loads(made.out)["num_left"] == 1


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_integers_that_say_something_else_are_noticed(brimful, trained, monkeypatch, scheme):
    from brimful.train import convert as module

    run = trained(scheme)
    rightly = module.convert

    def wrongly(model, quantization):
        rightly(model, quantization)
        model.model.layers[0].mlp.up_proj.weight.scale.mul_(2)

    monkeypatch.setattr(module, "convert", wrongly)
    said = brimful("convert", run, "-o", "out")
    assert said.code == 1
    assert "not kept: prepared, converted and read back differ by" in said.out


def test_a_run_goes_on_where_it_was_ended(trained, folder, monkeypatch):
    """The losses after a resume are those of a run that was never ended, to the last bit."""
    from brimful.train import loop

    whole, step = rows_of(trained("int4")), loop.train_step
    (folder / "data.txt").write_text(TEXT)
    plan, num_left = plan_of("int4", "fp32"), iter((1, 1))

    def ended(*args, **kwargs):
        if not next(num_left, 0):
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(loop, "train_step", ended)
    other = folder / "other"
    with pytest.raises(KeyboardInterrupt):
        train_here(plan, other, folder / "data.txt", checkpoint_every_steps=1)
    assert len(rows_of(other)) == 2
    monkeypatch.setattr(loop, "train_step", step)
    train_here(plan, other, folder / "data.txt", resume=True)
    found = rows_of(other)
    assert [row["loss"] for row in found] == [row["loss"] for row in whole]
    assert [row["grad_norm"] for row in found] == [row["grad_norm"] for row in whole]


def test_bad_input_is_one_sentence(brimful, folder, trained):
    run = trained("int4")
    (folder / "empty").mkdir()
    cases = [
        ((run, "--to", "int8", "-o", "out"), "was trained for int4 with group_size=32, and int8"),
        ((run, "-o", "out", "--seq-len", "8"), "--seq-len 8 has no meaning for a run"),
        ((run, "-o", run), "is not empty; choose another folder"),
        ((run / "model", "--to", "int8", "-o", "out"), "does not say what to judge it by"),
        ((run / "model", "-o", "out", "--data", "data.txt"), "nothing says what to convert to"),
        (("empty", "--to", "int8", "-o", "out"), "holds neither a run's plan.yaml"),
        ((run, "-o", "out", "--heldout-share", "0.1"), "--heldout-share is given without --data"),
    ]
    for argv, words in cases:
        said = brimful("convert", *argv)
        assert (said.code, said.out) == (2, ""), argv
        assert words in said.err
        assert len(said.err.splitlines()) == 1
    assert not (folder / "out").exists()
    assert brimful("convert", run, "-o", "out").code == 0
    twice = brimful("convert", "out", "--to", "int8", "-o", "out2", "--data", "data.txt")
    assert "is quantised already" in twice.err
