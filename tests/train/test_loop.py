import json
import math
import os
import signal
import subprocess
import sys
import threading

import msgspec
import pytest

import processes
from brimful.errors import DataError, InputError, RunError
from brimful.models.config import read_config
from brimful.values.plan import write_yaml

pytestmark = pytest.mark.torch

EXACT = (
    "kind",
    "step",
    "loss",
    "learning_rate",
    "grad_norm",
    "num_targets",
    "heldout_loss",
    "perplexity",
    "is_best",
)


class Recorder:
    """Remembers what it is told; can act on a step."""

    def __init__(self, *, at_step=None, act=None):
        self.reports, self.evals, self.checkpoints, self.messages = [], [], [], []
        self.stages = []
        self.experts = []
        self.num_closed = 0
        self._at_step, self._act = at_step, act

    def on_stage(self, text):
        self.stages.append(text)

    def on_step(self, report):
        self.reports.append(report)
        if report.row.step == self._at_step:
            self._act()

    def on_eval(self, row):
        self.evals.append((row.step, row.heldout_loss))

    def on_experts(self, row):
        self.experts.append(row)

    def on_checkpoint(self, step, path):
        self.checkpoints.append((step, path))

    def on_message(self, text):
        self.messages.append(text)

    def close(self):
        self.num_closed += 1


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


class RecordingMeter:
    """Remembers at which step of the metrics it was started and stopped."""

    def __init__(self, metrics):
        self._metrics = metrics
        self.calls = []

    def start(self):
        self.calls.append(("start", self._metrics.exists()))

    def begin_again(self, program):
        self.calls.append(("begin again", bool(program.optimizer.state)))

    def stop(self, program):
        self.calls.append(("stop", len(self._metrics.read_text().splitlines())))
        assert program.optimizer.state

    def abandon(self):
        pass


@pytest.fixture(scope="module")
def run(text_folder, tmp_path_factory):
    import torch

    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.settings import plain_settings

    cache = tmp_path_factory.mktemp("cache")
    num_threads = torch.get_num_threads()
    # Tiny tensors gain nothing from threads, and threads that wait for busy cores are slow.
    torch.set_num_threads(1)

    def start(plan, out, *, observer=None, meter=None, **changes):
        settings = plain_settings(
            out=out,
            data=text_folder,
            cache=cache,
            resume=False,
            checkpoint_every_steps=5,
            eval_every_steps=4,
            num_eval_tokens=256,
        )
        settings = msgspec.structs.replace(settings, **changes)
        return train(plan, settings, observer=observer or Recorder(), meter=meter or NullMeter())

    yield start
    torch.set_num_threads(num_threads)


def curve(out):
    """Every number of the curve that a resumed run must repeat, as text: bit for bit."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] in {"train", "eval"}]
    return [json.dumps({key: row[key] for key in EXACT if key in row}) for row in rows]


@pytest.fixture(scope="module")
def whole_curve(run, plan_with, tmp_path_factory):
    """The curve of an undisturbed run of the standard plan."""
    out = tmp_path_factory.mktemp("whole")
    run(plan_with(), out)
    return curve(out)


def test_the_allocator_is_set_as_the_plan_says(run, plan_with, tmp_path):
    from torch import _C  # where torch.cuda.memory sends those who ask

    plan = plan_with(num_steps=1, warmup_steps=0)
    run(plan, tmp_path / "plain")
    before = _C._accelerator_getAllocatorSettings()
    strategy = msgspec.structs.replace(plan.strategy, allocator="expandable_segments:True")
    try:
        run(msgspec.structs.replace(plan, strategy=strategy), tmp_path / "grown")
        assert _C._accelerator_getAllocatorSettings() == "expandable_segments:True"
    finally:
        _C._accelerator_setAllocatorSettings(before or "expandable_segments:False")


def test_a_run_learns_and_leaves_its_files(run, plan_with, tmp_path):
    observer = Recorder()
    result = run(plan_with(num_steps=30), tmp_path / "out", observer=observer)
    assert result.num_steps == 30
    assert not result.interrupted
    assert result.heldout_loss < observer.evals[0][1] - 0.2
    assert result.final_loss < observer.reports[0].row.loss - 0.5
    assert [step for step, _ in observer.evals] == [4, 8, 12, 16, 20, 24, 28, 30]
    assert [step for step, _ in observer.checkpoints] == [5, 10, 15, 20, 25, 30]
    assert observer.num_closed == 1
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("plan.yaml", "source.json", "settings.json", "metrics.jsonl", "data.json"),
        *("checkpoints", "model"),
    }
    kept = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert kept == ["step-00000025", "step-00000030"]
    summary = json.loads((tmp_path / "out" / "data.json").read_text())
    assert summary["unigram_entropy"] == result.unigram_entropy > 0


def test_saving_in_the_background_changes_no_bit(run, plan_with, tmp_path, whole_curve):
    observer = Recorder()
    run(plan_with(), tmp_path / "out", observer=observer, checkpoint="async")
    assert curve(tmp_path / "out") == whole_curve
    assert [step for step, _ in observer.checkpoints] == [5, 10, 12]
    kept = sorted(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert kept == ["step-00000010", "step-00000012"]


def test_a_run_keeps_as_many_as_asked_and_its_best(run, plan_with, tmp_path):
    changes = {"checkpoint_every_steps": 1, "eval_every_steps": 1, "num_kept": 1}
    observer = Recorder()
    run(plan_with(), tmp_path / "out", observer=observer, keep_best=True, **changes)
    best = min(observer.evals, key=lambda judged: judged[1])[0]
    kept = {path.name for path in (tmp_path / "out" / "checkpoints").iterdir()}
    assert kept == {f"step-{best:08d}", "step-00000012"}


def test_a_failed_save_in_the_background_ends_the_run(run, plan_with, tmp_path, monkeypatch):
    import resource

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would cut it, too

    def no_more_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    observer = Recorder(at_step=9, act=no_more_room)
    try:
        with pytest.raises(RunError, match=r"step-00000010 cannot be written \(File too large\)"):
            run(plan_with(), tmp_path / "out", observer=observer, checkpoint="async")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert observer.checkpoints[-1][0] == 5
    assert run(plan_with(), tmp_path / "out", resume=True).resumed_from == 5


def test_the_result_agrees_with_the_curve(run, plan_with, tmp_path):
    result = run(plan_with(), tmp_path / "out")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    steps = [row for row in rows if row["kind"] == "train"]
    steady = sorted(row["step_s"] for row in steps[2:])
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert result.final_loss == steps[-1]["loss"]
    assert result.heldout_loss == rows[-1]["heldout_loss"]
    assert result.median_step_s == (steady[4] + steady[5]) / 2
    evals = [row for row in rows if row["kind"] == "eval"]
    best = min(evals, key=lambda row: row["heldout_loss"])
    assert (result.best_heldout_loss, result.best_step) == (best["heldout_loss"], best["step"])
    assert result.perplexity == rows[-1]["perplexity"] == math.exp(result.heldout_loss)
    assert (result.num_targets, result.num_skipped) == (12 * 128, 0)
    assert result.accuracy is None
    assert steps[0]["tokens_per_s"] == 128 / steps[0]["step_s"]


def test_the_best_so_far_is_noted_as_it_comes(run, plan_with, tmp_path):
    run(plan_with(learning_rate=0.3), tmp_path / "out", eval_every_steps=1)
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    evals = [row for row in map(json.loads, lines) if row["kind"] == "eval"]
    losses = [row["heldout_loss"] for row in evals]
    best = [loss < min(losses[:i], default=math.inf) for i, loss in enumerate(losses)]
    assert [row.get("is_best", False) for row in evals] == best
    assert set(best) == {True, False}


def test_what_is_done_before_the_first_step_is_said(run, plan_with, tmp_path):
    observer = Recorder()
    run(plan_with(num_steps=1), tmp_path / "out", observer=observer)
    assert observer.stages == ["reading the data", "building the model", "running the first step"]


def test_an_observer_is_closed_after_an_error_before_the_first_step(run, plan_with, tmp_path):
    observer, short = Recorder(), tmp_path / "short.txt"
    short.write_text("a few words\n")
    with pytest.raises(DataError):
        run(plan_with(), tmp_path / "out", data=short, observer=observer)
    assert (observer.stages, observer.num_closed) == (["reading the data"], 1)


def test_an_unknown_logger_is_refused_before_anything_is_written(run, plan_with, tmp_path):
    with pytest.raises(InputError, match="unknown logger 'mlflow'"):
        run(plan_with(), tmp_path / "out", track=("mlflow",))
    assert not (tmp_path / "out").exists()


def test_reports_say_memory_and_progress(run, plan_with, tmp_path):
    observer = Recorder()
    run(plan_with(), tmp_path / "out", observer=observer)
    assert [report.row.step for report in observer.reports] == list(range(1, 13))
    assert all(report.num_steps == 12 for report in observer.reports)
    rows = [report.row for report in observer.reports]
    assert all(0 < row.used_bytes <= row.peak_bytes * 1.01 for row in rows)
    assert observer.reports[0].limit_bytes == 2**31
    assert observer.reports[0].remaining_s > 0
    assert observer.reports[-1].remaining_s == 0


def test_micro_batch_changes_only_the_last_bits(run, plan_with, tmp_path):
    losses = {}
    for micro_batch in (1, 2, 4):
        observer = Recorder()
        out = tmp_path / str(micro_batch)
        run(plan_with(micro_batch=micro_batch, num_steps=5), out, observer=observer)
        losses[micro_batch] = [report.row.loss for report in observer.reports]
    assert losses[1] == pytest.approx(losses[4], rel=1e-4)
    assert losses[2] == pytest.approx(losses[4], rel=1e-4)


def test_the_model_can_be_loaded_and_is_the_trained_one(run, plan_with, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from brimful.build.assemble import build_program
    from brimful.train.checkpoint import load_checkpoint, newest_checkpoint

    plan = plan_with()
    result = run(plan, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(result.model)
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    program = build_program(plan.job, plan.strategy, torch.device("cpu"))
    load_checkpoint(newest_checkpoint(tmp_path / "out" / "checkpoints"), program)
    weights = dict(program.model.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in model.named_parameters())
    assert len(tokenizer) == model.config.vocab_size == 300
    assert model.config.eos_token_id == tokenizer.eos_token_id
    text = "def train(plan):\n    return 1\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_meter_sees_building_and_two_steps(run, plan_with, tmp_path):
    meter = RecordingMeter(tmp_path / "out" / "metrics.jsonl")
    run(plan_with(), tmp_path / "out", meter=meter)
    assert meter.calls == [("start", False), ("stop", 2)]


def test_the_meter_sees_a_run_of_one_step(run, plan_with, tmp_path):
    meter = RecordingMeter(tmp_path / "out" / "metrics.jsonl")
    result = run(plan_with(num_steps=1), tmp_path / "out", meter=meter)
    assert meter.calls == [("start", False), ("stop", 1)]
    assert result.median_step_s is None


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_ctrl_c_saves_and_says_how_to_go_on(run, plan_with, tmp_path, whole_curve, how):
    out = tmp_path / "out"
    observer = Recorder(at_step=7, act=lambda: os.kill(os.getpid(), signal.SIGINT))
    result = run(plan_with(), out, observer=observer, checkpoint=how)
    assert (result.interrupted, result.num_steps, result.model) == (True, 7, None)
    assert observer.checkpoints[-1][0] == 7
    *_, stopped, summed_up = observer.messages
    assert stopped.startswith("stopped after step 7, which is saved; go on with: ")
    assert f"--out {out} --resume" in stopped
    assert summed_up.startswith("7 steps, 896 tokens learnt from, median step ")
    assert not (out / "model").exists()
    meter = RecordingMeter(out / "metrics.jsonl")
    result = run(plan_with(), out, resume=True, meter=meter)
    assert (result.interrupted, result.num_steps, result.resumed_from) == (False, 12, 7)
    assert curve(out) == whole_curve
    *_, (last, num_rows) = meter.calls  # nothing was measured of it yet
    assert (meter.calls[0], last) == (("begin again", True), "stop")
    assert num_rows == 11  # nine steps and two held-out losses


def test_what_was_measured_is_not_measured_again(run, plan_with, tmp_path):
    out = tmp_path / "out"
    run(plan_with(), out, observer=Recorder(at_step=7, act=interrupt))
    (out / "measurement.json").write_text('{"measured_peak_allocated_bytes": 12345}')
    meter, observer = RecordingMeter(out / "metrics.jsonl"), Recorder()
    result = run(plan_with(), out, resume=True, meter=meter, observer=observer)
    assert meter.calls == []
    assert {report.measured_peak_bytes for report in observer.reports} == {12345}
    assert result.measured_peak_bytes == 12345
    assert "peak 12.06 KiB, process memory " in observer.messages[-1]


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    run, plan_with, tmp_path, whole_curve
):
    from brimful.report.html import write_report
    from brimful.report.run_folder import read_run_folder

    out = tmp_path / "out"
    run(plan_with(), out, observer=Recorder(at_step=11, act=interrupt))
    tensors = out / "checkpoints" / "step-00000011" / "__0_0.distcp"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    observer = Recorder()
    result = run(plan_with(), out, resume=True, observer=observer)
    assert result.resumed_from == 10
    assert curve(out) == whole_curve
    (told,) = [message for message in observer.messages if "damaged" in message]
    assert "step 11" in told
    assert "goes on from step 10" in told
    (row,) = read_run_folder(out).events
    assert (row.step, row.taken) == (11, 10)
    assert (out / row.folder / "__0_0.distcp").read_bytes() == content
    assert "checkpoint of step 11 is damaged" in write_report(out).read_text()


def test_a_second_ctrl_c_ends_at_once_and_the_run_can_go_on(run, plan_with, tmp_path, whole_curve):
    def interrupt_twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    observer = Recorder(at_step=7, act=interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        run(plan_with(), tmp_path / "out", observer=observer)
    assert observer.num_closed == 1
    assert run(plan_with(), tmp_path / "out", resume=True).resumed_from == 5
    assert curve(tmp_path / "out") == whole_curve


def test_a_run_that_drops_draws_the_same_masks_once_it_goes_on(run, plan_with, tmp_path):
    """Behind its first checkpoint nothing hangs on what was drawn before."""
    model = plan_with().job.model
    fields = {**model.hf_config, "model_type": "llama", "attention_dropout": 0.5}
    plan = plan_with(model=read_config("tiny", fields), num_steps=8, dropout="model")
    run(plan, tmp_path / "whole")
    run(plan, tmp_path / "cut", observer=Recorder(at_step=7, act=interrupt))
    assert run(plan, tmp_path / "cut", resume=True).resumed_from == 7
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    run(plan_with(model=read_config("tiny", fields), num_steps=8), tmp_path / "off")
    assert curve(tmp_path / "off") != curve(tmp_path / "whole")


def test_a_finished_run_resumes_to_the_same_result(run, plan_with, tmp_path):
    first = run(plan_with(), tmp_path / "out")
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    observer = Recorder()
    again = run(plan_with(), tmp_path / "out", observer=observer, resume=True)
    assert (again.final_loss, again.heldout_loss) == (first.final_loss, first.heldout_loss)
    assert "already at step 12 of 12: nothing is left to train" in observer.messages
    assert "running the first step" not in observer.stages
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before


def test_a_loss_that_is_no_number_names_the_step(run, plan_with, tmp_path):
    observer = Recorder()
    with pytest.raises(RunError, match=r"became (nan|inf) in step [23] of 12 with learning_rate="):
        run(plan_with(learning_rate=1e30), tmp_path / "out", observer=observer)
    assert observer.num_closed == 1
    assert len(observer.reports) < 3
    # What was written can be read: no row holds a number that JSON has no word for.
    assert len(curve(tmp_path / "out")) == len(observer.reports)


def test_a_used_folder_is_refused(run, plan_with, tmp_path):
    run(plan_with(num_steps=1), tmp_path / "out")
    with pytest.raises(InputError, match="is not empty"):
        run(plan_with(num_steps=1), tmp_path / "out")


def test_another_plan_is_refused(run, plan_with, tmp_path):
    run(plan_with(), tmp_path / "out")
    with pytest.raises(InputError, match=r"job\.learning_rate=0\.01 and the plan now says 0\.5"):
        run(plan_with(learning_rate=0.5), tmp_path / "out", resume=True)


def test_other_data_is_refused(run, plan_with, tmp_path, text_folder):
    run(plan_with(), tmp_path / "out")
    other = tmp_path / "other.txt"
    other.write_text("\n".join(path.read_text() for path in sorted(text_folder.iterdir())))
    with pytest.raises(InputError, match=r"started with data \w+ and this is \w+; give the --data"):
        run(plan_with(), tmp_path / "out", resume=True, data=other)


def test_data_that_is_too_short_leaves_the_folder_usable(run, plan_with, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a few words\n")
    with pytest.raises(DataError, match="one step of global_batch=4 needs 129"):
        run(plan_with(), tmp_path / "out", data=short)
    assert run(plan_with(num_steps=1), tmp_path / "out").num_steps == 1


def test_a_full_disk_ends_the_run_with_one_sentence(run, plan_with, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=700k", "none", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small disk needs root: {error}")
    try:
        with pytest.raises(RunError, match="no space left on the disk"):
            run(plan_with(), disk / "out")
        kept = [path.name for path in (disk / "out" / "checkpoints").iterdir()]
        assert kept == ["step-00000005"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_run_in_another_thread_works(run, plan_with, tmp_path):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(run(plan_with(num_steps=2), tmp_path / "out"))
    )
    thread.start()
    thread.join()
    assert results[0].num_steps == 2


# Killed for good: each of these processes dies by SIGKILL at another place.

DRIVER = """
import os, signal, sys
from pathlib import Path

plan_path, data, out, cache, where = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def audit(event, arguments):
    path = str(arguments[0]) if event in ("open", "os.rename") else ""
    if where == "tensors" and path.endswith(".step-00000005.tmp/.metadata.tmp"):
        die()
    if where == "rename" and event == "os.rename" and path.endswith(".step-00000010.tmp"):
        die()

sys.addaudithook(audit)

from brimful.values.plan import read_plan
from brimful.train.loop import train
from brimful.train.metering import NullMeter
from brimful.train.settings import plain_settings
from brimful.train.observers import PlainObserver

class Killer(PlainObserver):
    def on_step(self, report):
        if where == f"step {report.row.step}":
            die()

settings = plain_settings(out=Path(out), data=Path(data), cache=Path(cache), resume=True,
    checkpoint_every_steps=5, eval_every_steps=4, num_eval_tokens=256)
Path(out, "metrics.jsonl").touch()
train(read_plan(Path(plan_path)), settings, observer=Killer(), meter=NullMeter())
"""


@pytest.fixture
def drive(text_folder, tmp_path, plan_with):
    write_yaml(plan_with(), tmp_path / "plan.yaml")
    (tmp_path / "out").mkdir()

    def start(where):
        arguments = [tmp_path / "plan.yaml", text_folder, tmp_path / "out", tmp_path / "cache"]
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        return processes.run(["-c", DRIVER, *arguments, where], env=environment)

    return start


def test_a_run_killed_anywhere_repeats_the_same_curve(drive, tmp_path, whole_curve):
    checkpoints = tmp_path / "out" / "checkpoints"

    def names():
        return sorted(path.name for path in checkpoints.iterdir())

    died = drive("tensors")
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert names() == [".step-00000005.tmp"]
    died = drive("step 8")
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert names() == ["step-00000005"]
    died = drive("rename")
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert names() == [".step-00000010.tmp", "step-00000005"]
    finished = drive("nowhere")
    assert finished.returncode == 0, finished.stderr
    assert names() == ["step-00000010", "step-00000012"]
    assert curve(tmp_path / "out") == whole_curve


def test_the_whole_curve_is_the_expected_one(whole_curve):
    assert len(whole_curve) == 12 + 3
    assert len(set(whole_curve)) == 15


def test_a_run_that_keeps_no_model_is_judged_all_the_same(plan_with, text_folder, tmp_path):
    from brimful.train.loop import train
    from brimful.train.metering import NullMeter
    from brimful.train.observers import PlainObserver
    from brimful.train.settings import plain_settings

    results = []
    for keeps_model in (True, False):
        out = tmp_path / f"run-{keeps_model}"
        cache = tmp_path / "cache"
        settings = plain_settings(out=out, data=text_folder, cache=cache, keeps_model=keeps_model)
        done = train(plan_with(num_steps=3), settings, observer=PlainObserver(), meter=NullMeter())
        results.append(done.heldout_loss)
        assert (done.model is not None) == keeps_model
        assert (out / "model").exists() == keeps_model
        checkpoints = out / "checkpoints"
        assert (checkpoints.exists() and any(checkpoints.iterdir())) == keeps_model
    assert results[0] == results[1]
