"""A Hugging Face Trainer that is watched: by one line, and without changing it."""

import io
import json
import logging
from contextlib import redirect_stderr

import pytest
from tests.watch.trainers import checkpointing_name, llama, trainer

pytestmark = pytest.mark.torch
RAGGED = (60, 192, 100, 7, 150, 33, 180, 90) * 4


def lora(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))


CASES = {
    "fp32": {},
    "bf16, accumulated": {"bf16": True, "gradient_accumulation_steps": 2},
    "checkpointed, adafactor": {"checkpointing": True, "optim": "adafactor"},
    "ragged, foreach, no clip": {"lengths": RAGGED, "optim": "adamw_torch", "max_grad_norm": 0.0},
    "smoothed labels": {"label_smoothing_factor": 0.1},
}


def watch(tmp_path, **settings):
    from brimful.watch import MemoryCallback

    callback = MemoryCallback()
    watched = trainer(tmp_path, callbacks=[callback], **settings)
    watched.train()
    return callback, watched


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A watched run with usual settings, its folder, and what it said."""
    folder, said = tmp_path_factory.mktemp("usual"), io.StringIO()
    with redirect_stderr(said):
        callback, _ = watch(folder)
    return callback, folder, said.getvalue()


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_the_peak_is_that_of_the_same_trainer_on_the_pretend_gpu(tmp_path, usual, settings):
    run = (watch(tmp_path, **settings)[0] if settings else usual[0]).run
    assert run.not_simulated == ""
    measured = run.measurement.measured_peak_allocated_bytes
    assert run.simulation.simulated_peak_allocated_bytes == pytest.approx(measured, rel=0.002)
    steps = {p.phase: p.num_bytes for p in run.measurement.phases}
    simulated = {p.phase: p.num_bytes for p in run.simulation.phases}
    assert simulated["step 1"] == pytest.approx(steps["step 1"], rel=0.002)


@pytest.mark.long  # the peak of the first case is compared above, adapters in tests/simulate
def test_adapters_are_simulated_with_their_frozen_base(tmp_path):
    run = watch(tmp_path, model=lora(llama()))[0].run
    measured = run.measurement.measured_peak_allocated_bytes
    assert run.simulation.simulated_peak_allocated_bytes == pytest.approx(measured, rel=0.002)
    assert run.num_trained < run.num_parameters / 10
    assert "adapters" in run.not_predicted


@pytest.mark.long
def test_a_trainer_of_ones_own_class_is_simulated_as_it_is(tmp_path):
    from transformers import Trainer

    class Twice(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            return super().compute_loss(model, dict(inputs), **kwargs) + super().compute_loss(
                model, inputs, **kwargs
            )

    plain, twice = watch(tmp_path / "a")[0].run, watch(tmp_path / "b", kind=Twice)[0].run
    measured = twice.measurement.measured_peak_allocated_bytes
    assert measured > 1.3 * plain.measurement.measured_peak_allocated_bytes
    assert twice.simulation.simulated_peak_allocated_bytes == pytest.approx(measured, rel=0.002)


def test_the_prediction_is_of_brimfuls_own_loop_with_these_settings(tmp_path):
    run = watch(tmp_path, bf16=True)[0].run
    measured = run.measurement.measured_peak_allocated_bytes
    assert run.estimate.predicted_peak_allocated_bytes == pytest.approx(measured, rel=0.03)


def test_watching_changes_nothing_of_the_run(tmp_path):
    import torch

    _, watched = watch(tmp_path / "watched")
    plain = trainer(tmp_path / "plain")
    plain.train()
    losses = [[row.get("loss") for row in t.state.log_history] for t in (watched, plain)]
    assert losses[0] == losses[1]
    pairs = zip(watched.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert "training_step" not in vars(watched)
    watched.train()  # again, after the pretend GPU was there


def test_verdict_and_page_are_written_and_read_back(usual):
    from brimful.report.watched_run import read_watched

    callback, folder, said = usual
    assert callback.report == folder / "brimful" / "report.html"
    page = callback.report.read_text("utf-8")
    assert "LlamaForCausalLM by Trainer" in page
    assert "Not simulated" not in page
    assert read_watched(folder / "brimful") == callback.run
    assert [row.step for row in callback.run.rows] == [1, 2, 3, 4]
    assert all(row.loss for row in callback.run.rows)
    assert callback.run.rows[0].step_s is None  # metered
    assert callback.run.rows[3].step_s > 0
    assert "peak allocated" in said


def test_report_reads_a_watched_folder(usual, capsys):
    from brimful.cli.main import main

    _, folder, _ = usual
    capsys.readouterr()
    assert main(["report", str(folder / "brimful"), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["peak allocated"]["simulated"] == pytest.approx(
        rows["peak allocated"]["measured"], rel=0.002
    )


@pytest.mark.long  # runs of more steps are compared above
def test_a_run_of_one_step_is_compared_too(tmp_path):
    run = watch(tmp_path, max_steps=1)[0].run
    assert {p.phase for p in run.measurement.phases} == {"load", "step 1"}
    measured = run.measurement.measured_peak_allocated_bytes
    assert run.simulation.simulated_peak_allocated_bytes == pytest.approx(measured, rel=0.002)


def test_what_the_pretend_gpu_does_not_serve_is_said_and_the_run_goes_on(tmp_path):
    from transformers import Trainer

    class Looks(Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            loss = super().compute_loss(model, inputs, **kwargs)
            return loss * (1.0 + len(loss[None].detach().nonzero()))

    callback, watched = watch(tmp_path, kind=Looks)
    assert watched.state.global_step == 4
    assert callback.run.simulation is None
    assert callback.run.not_simulated
    assert callback.run.measurement.measured_peak_allocated_bytes > 0
    assert "Not simulated" in callback.report.read_text("utf-8")


def test_a_failure_of_the_watching_is_a_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("brimful.watch.hf_trainer.this_machine", lambda: 1 / 0)
    with caplog.at_level(logging.WARNING, "brimful.watch"):
        callback, watched = watch(tmp_path)
    assert watched.state.global_step == 4
    assert callback.run is None
    assert "ZeroDivisionError" in caplog.text


def test_measuring_alone_is_possible(tmp_path):
    from brimful.watch import MemoryCallback

    callback = MemoryCallback(tmp_path / "here", simulate=False)
    trainer(tmp_path, callbacks=[callback]).train()
    assert callback.run.simulation is None
    assert callback.run.not_simulated == "simulate=False was asked for"
    assert (tmp_path / "here" / "watched.json").is_file()


@pytest.mark.long
def test_what_brimfuls_own_loop_has_not_is_not_predicted(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 2000}
    dropped = watch(tmp_path / "a", model=GPT2LMHeadModel(GPT2Config(**shape)))[0].run
    assert "pdrop is on" in dropped.not_predicted
    plain = watch(tmp_path / "b", optim="sgd")[0].run
    assert plain.not_predicted == "optim sgd has no counterpart in Brimful's own loop"


@pytest.mark.long  # predictions of checkpointed blocks are in tests/cost
def test_checkpointing_that_the_model_was_told_is_predicted(tmp_path):
    model = llama()
    name = checkpointing_name().replace("checkpointing", "checkpointing_enable")
    getattr(model, name)({"use_reentrant": False})
    run = watch(tmp_path, model=model)[0].run
    measured = run.measurement.measured_peak_allocated_bytes
    assert run.estimate.predicted_peak_allocated_bytes == pytest.approx(measured, rel=0.03)
