"""``brimful train``: what a run keeps of its flags, and what goes wrong around it."""

import json
import re

import pytest
import torch
import yaml

from brimful.cli.main import main
from samples import TINY_LLAMA

pytestmark = pytest.mark.torch

RUN = (
    "train", "tiny.json", "--out", "run", "--data", "text.txt", "--seq-len", "32",
    "--global-batch", "2", "--micro-batch", "2", "--ac", "none", "--loss-chunks", "1",
    "--precision", "fp32",
)  # fmt: skip


@pytest.fixture
def brimful(tmp_path, capsys, monkeypatch):
    """Run a command line in a folder with a tiny model and a text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tiny.json").write_text(json.dumps({**TINY_LLAMA, "vocab_size": 300}))
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)

    def run(*argv):
        capsys.readouterr()
        return main(list(argv)), capsys.readouterr()

    return run


def kept(folder):
    return sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())


def test_a_run_goes_on_with_the_settings_it_began_with(brimful, tmp_path):
    code, said = brimful(*RUN, "--steps", "4", "--checkpoint-every", "1", "--keep", "3")
    assert code == 0, said.err
    assert kept(tmp_path) == ["step-00000002", "step-00000003", "step-00000004"]
    (tmp_path / "run" / "checkpoints" / "step-00000004" / "state.json").exists()
    code, said = brimful("train", "run/plan.yaml", "--out", "run", "--resume")
    assert code == 0, said.err
    assert len(kept(tmp_path)) == 3
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert (settings["num_kept"], settings["checkpoint_every_steps"]) == (3, 1)
    code, said = brimful("train", "run/plan.yaml", "--out", "run", "--resume", "--keep", "1")
    assert code == 0, said.err
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["num_kept"] == 1


def test_a_refused_resume_leaves_what_the_run_was_trained_on(brimful, tmp_path):
    assert brimful(*RUN, "--steps", "2")[0] == 0
    source = (tmp_path / "run" / "source.json").read_bytes()
    (tmp_path / "other.txt").write_text("something else altogether, and again. " * 400)
    resume = ("train", "run/plan.yaml", "--out", "run", "--resume")
    code, said = brimful(*resume, "--data", "other.txt")
    assert code == 2
    assert said.err.count("\n") == 1
    assert (tmp_path / "run" / "source.json").read_bytes() == source
    assert brimful(*resume)[0] == 0


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--micro-batch", "1"), "--micro-batch 1 is not what the run began with, 2"),
        (("--ac", "full"), "--activation-checkpointing full is not what the run began with, none"),
        (("--heldout-share", "0.2"), "--heldout-share is given without --data"),
    ],
)
def test_a_run_goes_on_as_it_began_or_says_why_not(brimful, flags, fact):
    assert brimful(*RUN, "--steps", "2")[0] == 0
    without_data = [word for word in RUN if word not in {"--data", "text.txt"}]
    data = () if "--heldout-share" in flags else ("--data", "text.txt")
    code, said = brimful(*without_data, *data, "--steps", "2", "--resume", *flags)
    assert code == 2
    assert fact in said.err


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_running_out_of_memory_is_one_sentence(brimful, monkeypatch, error):
    def refuse(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("brimful.train.loop.train_step", refuse)
    monkeypatch.setattr("brimful.simulate.ladder.next_plan", lambda _plan, _failed: None)
    code, said = brimful(*RUN, "--steps", "2")
    assert code == 2
    assert "out of memory in loading" in said.err
    assert "no exact one is left that needs less" in said.err
    assert "Traceback" not in said.err


def test_a_limit_that_was_asked_for_is_enforced_and_kept_for_a_resume(brimful, tmp_path):
    assert brimful(*RUN, "--steps", "2")[0] == 0
    settings = tmp_path / "run" / "settings.json"
    assert not json.loads(settings.read_bytes())["enforces_limit"]
    limited = [word if word != "run" else "limited" for word in RUN]
    assert brimful(*limited, "--steps", "2", "--memory-limit", "64MiB")[0] == 0
    settings = tmp_path / "limited" / "settings.json"
    assert json.loads(settings.read_bytes())["enforces_limit"]
    assert brimful(*limited, "--steps", "2", "--resume")[0] == 0
    assert json.loads(settings.read_bytes())["enforces_limit"]


UNUSABLE = {
    "no such data": (("--data", "nowhere.txt"), "nowhere.txt does not exist"),
    "empty data": (("--data", "empty.txt"), "empty.txt is empty"),
    "an empty folder": (("--data", "bare"), "bare holds no file with anything in it"),
    "no such held-out data": (("--heldout", "nowhere.txt"), "nowhere.txt does not exist"),
    "a file for a folder": (("--out", "empty.txt"), "empty.txt"),
    "below a file": (("--out", "empty.txt/run"), "empty.txt"),
    "a folder in use": (("--out", "used"), "--out used is not empty"),
    "nothing to go on with": (("--out", "bare", "--resume"), "holds no run to go on with"),
    "no such package": (("--track", "wandb"), "needs the package wandb"),
    "no such weights": (("--weights", "./nothing"), "nothing"),
    "no such job file": (
        "train",
        "nowhere.yaml",
        "--out",
        "run",
        "--data",
        "text.txt",
        "nowhere.yaml",
    ),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_is_no_use_is_refused_before_anything_is_planned(brimful, monkeypatch, tmp_path, what):
    def work(*_args, **_kwargs):
        raise AssertionError("it was planned")

    for name in ("used", "bare"):
        (tmp_path / name).mkdir()
    (tmp_path / "used" / "metrics.jsonl").touch()
    (tmp_path / "empty.txt").touch()
    monkeypatch.setattr("brimful.cli.train._planned", work)
    monkeypatch.setattr("brimful.train.loggers.find_spec", lambda _name: None)
    *flags, said_so = UNUSABLE[what]
    code, said = brimful(*(RUN + flags[0] if len(flags) == 1 else flags))
    assert code == 2
    assert said_so in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_logger_that_cannot_start_ends_no_run(brimful, monkeypatch):
    def refuse(_run):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("brimful.train.loggers.LOGGERS", {"tensorboard": refuse})
    code, said = brimful(*RUN, "--steps", "2", "--track", "tensorboard")
    assert code == 0, said.err
    assert "tensorboard could not start (no route to host)" in said.out


def test_a_plan_that_was_found_by_simulating_keeps_its_simulation(brimful, tmp_path):
    text = [{"text": f"sample {n} of a few words", "label": n % 2} for n in range(60)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in text))
    labels = {"id2label": {"0": "even", "1": "odd"}, "vocab_size": 300}
    bert = {
        "model_type": "bert", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64, **labels,
    }  # fmt: skip
    (tmp_path / "bert.json").write_text(json.dumps(bert))
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({
            "model": "bert.json", "task": "sequence-classification", "data": "data.jsonl",
            "precision": "fp32", "seq_len": 32, "global_batch": 4, "micro_batch": 2, "ac": "none",
            "loss_chunks": 1, "steps": 2, "out": "run",
        })
    )  # fmt: skip
    code, said = brimful("train", "job.yaml")
    assert code == 0, said.err
    read = {
        n: json.loads((tmp_path / "run" / f"{n}.json").read_text())
        for n in ("simulation", "measurement")
    }
    simulated = read["simulation"]["simulated_peak_allocated_bytes"]
    measured = read["measurement"]["measured_peak_allocated_bytes"]
    assert abs(simulated - measured) <= 0.01 * measured


def test_added_tokens_and_classes_get_rows(brimful, tmp_path):
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog,", "and", "again"]
    rows = [{"text": " ".join(words[n % 7 :]), "label": n % 4} for n in range(60)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert brimful(*RUN, "--steps", "2")[0] == 0
    job = (
        "train", "run/model", "--weights", "run/model", "--task", "sequence-classification",
        "--num-labels", "4", "--vocab-size", "320", "--data", "data.jsonl", "--seq-len", "16",
        "--global-batch", "2", "--micro-batch", "2", "--ac", "none", "--loss-chunks", "1",
        "--precision", "fp32", "--steps", "2", "--out", "next",
    )  # fmt: skip
    code, said = brimful(*job)
    assert code == 0, said.err
    config = json.loads((tmp_path / "next" / "model" / "config.json").read_text())
    assert config["vocab_size"] == 320
    assert len(config["id2label"]) == 4


def test_more_steps_go_on_from_the_weights(brimful, tmp_path):
    """The refusal's own flags, typed as they are named, train on: the first loss is the last."""
    steps = ("--steps", "30", "--learning-rate", "1e-2")
    assert brimful(*RUN, *steps)[0] == 0
    code, said = brimful(*RUN, "--steps", "45", "--learning-rate", "1e-2", "--resume")
    assert code == 2
    assert "job.num_steps=30 and the plan now says 45" in said.err
    flags = re.search(r"(--weights \S+ --steps \S+) and another --out", said.err)[1].split()
    assert flags == ["--weights", "run/model", "--steps", "15"]
    again = [word if word != "run" else "more" for word in RUN]
    assert brimful(*again, *flags)[0] == 0
    rows = [(tmp_path / out / "metrics.jsonl").read_text().splitlines() for out in ("run", "more")]
    losses = [[json.loads(row).get("loss") for row in run] for run in rows]
    first, last, anew = losses[0][0], [loss for loss in losses[0] if loss][-1], losses[1][0]
    assert abs(anew - last) < 0.2 * abs(first - last)
    code, said = brimful(*RUN, "--steps", "20", "--learning-rate", "1e-2", "--resume")
    assert "or choose another --out" in said.err
