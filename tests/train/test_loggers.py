import importlib.util
import json
import os
import signal
import struct
import time

import pytest

import processes
from brimful.errors import UnknownNameError, UnsupportedError
from brimful.train.loggers import LOGGERS, check_loggers
from brimful.train.loggers.base import scalars_of
from brimful.values.plan import write_yaml
from brimful.values.run_files import EvalRow
from train.reports import make_row

pytestmark = pytest.mark.torch

DRIVER = """
import os, signal, sys
from pathlib import Path

plan_path, data, out, cache, where, track = sys.argv[1:]

from brimful.values.plan import read_plan
from brimful.train.loop import train
from brimful.train.metering import NullMeter
from brimful.train.settings import plain_settings
from brimful.train.observers import PlainObserver

class Killer(PlainObserver):
    def on_step(self, report):
        if where == f"kill at {report.row.step}":
            os.kill(os.getpid(), signal.SIGKILL)
        if where == f"fail at {report.row.step}":
            raise OSError("the observer fails")

settings = plain_settings(out=Path(out), data=Path(data), cache=Path(cache), resume=True,
    checkpoint_every_steps=5, eval_every_steps=4, num_eval_tokens=256, track=tuple(track.split()))
Path(out, "metrics.jsonl").touch()
train(read_plan(Path(plan_path)), settings, observer=Killer(), meter=NullMeter())
"""


@pytest.fixture
def drive(text_folder, tmp_path, plan_with):
    write_yaml(plan_with(), tmp_path / "plan.yaml")
    (tmp_path / "out").mkdir()

    def start(where, track):
        arguments = [tmp_path / "plan.yaml", text_folder, tmp_path / "out", tmp_path / "cache"]
        environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path)}
        return processes.run(["-c", DRIVER, *arguments, where, track], env=environment)

    return start


def logged(out):
    """What metrics.jsonl says, by name and step, as the loggers name it."""
    found = {}
    for line in (out / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        names = {"train/loss": "loss", "train/grad_norm": "grad_norm"}
        if row["kind"] == "eval":
            names = {"eval/loss": "heldout_loss", "eval/perplexity": "perplexity"}
        for name, key in names.items():
            found.setdefault(name, []).append((row["step"], row[key]))
    return found


def tensorboard_events(folder):
    """Read event files back with TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    return tags, {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in tags["scalars"]
    }


def wandb_records(path):
    """Read a W&B transaction log: LevelDB's log format with protobuf records."""
    from wandb.proto import wandb_internal_pb2

    content, at, parts = path.read_bytes(), 7, []
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts.append(content[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def wandb_history(folder):
    (path,) = folder.glob("offline-run-*/run-*.wandb")
    found, run_id = {}, None
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "run":
            run_id = record.run.run_id
        if record.WhichOneof("record_type") == "history":
            items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            step = record.history.step.num
            for name, value in items.items():
                if not name.startswith("_"):
                    found.setdefault(name, []).append((step, json.loads(value)))
    return run_id, found


def test_a_killed_run_has_every_step_once_in_every_logger(drive, tmp_path):
    out, both = tmp_path / "out", "tensorboard wandb"
    died = drive("kill at 8", both)
    assert died.returncode == -signal.SIGKILL, died.stderr
    before = [path.name for path in (out / "wandb").glob("offline-run-*")]
    finished = drive("nowhere", both)
    assert finished.returncode == 0, finished.stderr
    expected = logged(out)
    assert [step for step, _ in expected["train/loss"]] == list(range(1, 13))

    tags, events = tensorboard_events(out / "tensorboard")
    for name, pairs in expected.items():
        assert [step for step, _ in events[name]] == [step for step, _ in pairs]
        wanted = [value for _, value in pairs]
        assert [value for _, value in events[name]] == pytest.approx(wanted, rel=1e-6)
    assert events["memory/peak_bytes"]
    assert "plan/text_summary" in tags["tensors"]

    run_id, history = wandb_history(out / "wandb")
    for name, pairs in expected.items():
        assert history[name] == pairs
    assert len(before) == 1
    assert before[0].endswith(f"-{run_id}")
    assert not (out / "wandb" / before[0]).exists()
    assert "wandb" not in finished.stdout


def test_an_error_closes_the_loggers(drive, tmp_path):
    failed = drive("fail at 3", "tensorboard wandb")
    assert "the observer fails" in failed.stderr
    _, events = tensorboard_events(tmp_path / "out" / "tensorboard")
    assert [step for step, _ in events["train/loss"]] == [1, 2]
    (path,) = (tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb")
    exits = list[int]()
    for _ in range(100):  # its own process writes the end, on a busy machine after ours is over
        exits = [
            record.exit.exit_code
            for record in wandb_records(path)
            if record.WhichOneof("record_type") == "exit"
        ]
        if exits:
            break
        time.sleep(0.1)
    assert exits == [1]


def test_rows_are_named_as_people_expect_and_what_is_unknown_is_left_out():
    named = scalars_of(make_row(3, loss=None, grad_norm=None, loss_scale=8.0, skipped=True))
    assert named["train/loss_scale"] == 8.0
    assert named["train/skipped"] == 1.0
    assert not {"train/loss", "train/grad_norm", "train/mfu"} & set(named)
    assert "train/skipped" not in scalars_of(make_row(3))
    assert scalars_of(EvalRow(step=3, heldout_loss=1.0, accuracy=0.5)) == {
        "eval/loss": 1.0,
        "eval/accuracy": 0.5,
    }


def test_an_unknown_logger_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown logger 'tensorbord'; did you mean tens"):
        check_loggers(["tensorbord"])


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "brimful.train.loggers.find_spec", lambda other: None if other == name else found(other)
    )
    with pytest.raises(UnsupportedError, match=rf"{name}.*pip install brimful\[track\]"):
        check_loggers([name])
    check_loggers([])
