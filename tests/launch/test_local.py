"""Groups of workers on this machine, started for real."""

import json
from functools import partial

import msgspec
import pytest
from safetensors.torch import load_file
from tests.launch import watchers

from brimful.errors import DataError
from brimful.launch.local import Group, launch
from brimful.measure.meter import CpuMeter
from brimful.report.html import write_report
from brimful.report.run_folder import read_run_folder
from brimful.simulate.run import simulate
from brimful.train.loop import train
from brimful.train.metering import NullMeter
from brimful.train.refit import refitted
from brimful.train.settings import plain_settings
from brimful.values.plan import PLAN_SCHEMA, Plan
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

SHARDED = {"zero": 3, "dp_shard": 2, "micro_batch": 1}
VOCAB = 300


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(
        "\n\n".join(f"the {n} brown foxes jump over {n * n} lazy dogs" for n in range(900))
    )
    return path


def plan_of(num_devices=2, **changes):
    job = make_job(model=make_model(vocab_size=VOCAB), num_steps=6, seq_len=16)
    devices = {"num_devices": num_devices, "devices_per_node": num_devices}
    cluster = msgspec.structs.replace(make_cluster(), **devices)
    strategy = make_strategy(**{**SHARDED, **changes} if num_devices > 1 else {})
    return Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)


def settings_of(out, text, **changes):
    fields = {"checkpoint_every_steps": 2, "eval_every_steps": 3, "num_eval_tokens": 64, **changes}
    return plain_settings(out=out, data=text, cache=out.parent / "cache", **fields)


def curve(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [r for r in rows if r["kind"] in {"train", "eval"}]
    return {(r["kind"], r["step"]): r.get("loss", r.get("heldout_loss")) for r in rows}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text):
    """The same job in one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(plan_of(1), settings_of(out, text), observer=watchers.plain(), meter=NullMeter())
    return out


@pytest.fixture(scope="module")
def lost(tmp_path_factory, text):
    """A run on two devices of which one is lost after step 3: it goes on from step 2."""
    out = tmp_path_factory.mktemp("lost") / "run"
    end = launch(
        plan_of(), settings_of(out, text), Group(max_restarts=3, timeout_s=60),
        observer=partial(watchers.Lost, out.parent / "lost"),
    )  # fmt: skip
    return out, end


def test_a_lost_worker_changes_nothing_but_time(lost, alone):
    out, end = lost
    assert end.failure is None
    assert end.result.resumed_from == 2
    assert end.result.num_steps == 6
    assert (out.parent / "lost").exists()
    ours, plain = curve(out), curve(alone)
    assert ours.keys() == plain.keys()
    assert ours == pytest.approx(plain, rel=1e-5)


def test_a_lost_worker_is_told(lost):
    out, end = lost
    assert end.result.num_restarts == 1
    (row,) = read_run_folder(out).events
    assert (row.step, row.num_processes, row.restart) == (3, 2, 1)
    assert (out.parent / "told").read_text().startswith("a process was lost after step 3")
    assert "a process was lost after step 3" in write_report(out).read_text()


def test_the_model_is_handed_over_whole(lost, alone):
    ours, plain = (load_file(out / "model" / "model.safetensors") for out in (lost[0], alone))
    assert ours.keys() == plain.keys()
    for name, tensor in plain.items():  # as a whole: AdamW blows up one gradient that is rounding
        assert (ours[name] - tensor).norm() <= 1e-5 * tensor.norm(), name


def test_a_run_of_two_goes_on_alone(lost, alone, text, tmp_path):
    """Its last checkpoint but one is loaded by one process, which does the last steps again."""
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (lost[0] / "checkpoints" / "step-00000004").rename(out / "checkpoints" / "step-00000004")
    for name in ("plan.yaml", "metrics.jsonl"):
        (out / name).write_bytes((lost[0] / name).read_bytes())
    for name in ("measurement.json", "search.json"):  # of two
        (out / name).write_text('{"measured_peak_allocated_bytes": 1}')
    settings = settings_of(out, text, resume=True)
    plan, meter = refitted(plan_of(), 1), CpuMeter()
    result = train(plan, settings, observer=watchers.plain(), meter=meter)
    assert result.resumed_from == 4
    peak = simulate(plan.job, plan.cluster, plan.strategy).simulated_peak_allocated_bytes
    assert meter.reading.measured_peak_allocated_bytes == pytest.approx(peak, rel=0.02)
    assert result.measured_peak_bytes == meter.reading.measured_peak_allocated_bytes
    assert not {"measurement.json", "search.json"} & {path.name for path in out.iterdir()}
    assert curve(out) == pytest.approx(curve(alone), rel=1e-5)


def test_what_is_wrong_is_said_once_and_not_tried_again(tmp_path):
    settings = settings_of(tmp_path / "run", tmp_path / "nothing.txt")
    with pytest.raises(DataError, match=r"nothing\.txt"):
        launch(plan_of(), settings, Group(max_restarts=3), observer=watchers.plain)


def test_a_plan_for_fewer_devices_keeps_its_job():
    told = "expandable_segments:True"
    plan = refitted(plan_of(4, zero=3, dp_shard=4, allocator=told), 2)
    assert plan.strategy.allocator == told
    assert plan.job == plan_of().job
    assert plan.cluster.num_devices == 2
    assert msgspec.structs.asdict(plan.strategy)["micro_batch"] in {1, 2}
