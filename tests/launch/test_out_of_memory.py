"""Memory that runs out does not end a run: the next exact strategy takes over, to the same end."""

import json
import shutil
from contextlib import contextmanager
from functools import partial

import msgspec
import planted_shortage as planted
import pytest
import torch
from safetensors.torch import load_file
from tests.launch import watchers

from brimful.build import phases
from brimful.errors import RunError
from brimful.launch.alone import run_alone
from brimful.launch.local import Group, launch
from brimful.measure.meter import CpuMeter
from brimful.measure.verdict import judge
from brimful.report.run_folder import read_run_folder
from brimful.simulate.ladder import next_plan
from brimful.simulate.run import simulate
from brimful.train.settings import plain_settings
from brimful.values.job import LossScale
from brimful.values.plan import PLAN_SCHEMA, Plan, read_plan
from brimful.values.run_files import TakeoverRow
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

VOCAB, NUM_STEPS = 300, 5
NAIVE = {"micro_batch": 8}
MOST_APART = 1e-4
"""Of one number. AdamW divides a gradient by its own size, so that of a gradient that is next to
nothing the rounding is what is learnt: one number in a thousand is left out of a tensor's norm. On
a processor without AVX-512 one of 5,120 is 1.7e-5 apart, and its tensor 1.1e-5 of its norm."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(
        "\n\n".join(f"the {n} brown foxes jump over {n * n} lazy dogs" for n in range(900))
    )
    return path


def plan_of(num_devices=1, *, limit_bytes=None, job=None, **strategy):
    model = make_model(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2)
    job = make_job(model=model, num_steps=NUM_STEPS, seq_len=32, global_batch=8, **(job or {}))
    cluster = make_cluster()
    if limit_bytes is not None:
        device = msgspec.structs.replace(cluster.device, usable_bytes=limit_bytes)
        cluster = msgspec.structs.replace(cluster, device=device)
    devices = {"num_devices": num_devices, "devices_per_node": num_devices}
    return Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=msgspec.structs.replace(cluster, **devices),
        strategy=make_strategy(**{**NAIVE, **strategy}),
        estimate=None,
    )


def settings_of(out, text, **changes):
    fields = {"checkpoint_every_steps": 2, "eval_every_steps": 5, "num_eval_tokens": 64, **changes}
    return plain_settings(out=out, data=text, cache=out.parent / "cache", **fields)


def run(plan, settings, *, following=next_plan):
    return run_alone(plan, settings, observer=watchers.plain, next_plan=following)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, text):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    run(plan_of(), settings_of(out, text))
    return out


def rows(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def curve(out):
    """List losses and held-out losses by step."""
    named = {"train": "loss", "eval": "heldout_loss"}
    found = [row for row in rows(out) if row["kind"] in named]
    return {(row["kind"], row["step"]): row[named[row["kind"]]] for row in found}


def assert_same(out, other, kinds=("train", "eval")):
    """Of another micro-batch from the start the held-out sample may be another one."""
    ours, theirs = ({k: v for k, v in curve(x).items() if k[0] in kinds} for x in (out, other))
    assert ours == pytest.approx(theirs, rel=1e-5)
    ours, theirs = (load_file(x / "model" / "model.safetensors") for x in (out, other))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        apart = (ours[name] - tensor).abs().flatten().sort().values
        assert apart[-1] <= MOST_APART, name
        assert apart[: len(apart) - len(apart) // 1000].norm() <= 1e-5 * tensor.norm(), name


@contextmanager
def failing(place, step):
    """Run out of memory once, at the beginning of a phase (its end: of an update) of a step."""
    seen = planted.Plant(place, step)
    with phases.listening(seen.listen):
        yield
    assert seen.is_done


@pytest.mark.few(1)
@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_failed_pass_is_taken_again_in_place(place, step, undisturbed, text, tmp_path):
    out = tmp_path / "run"
    with failing(place, step):
        ended = run(plan_of(), settings_of(out, text))
    assert_same(out, undisturbed)
    assert ended.result.num_takeovers == 1
    assert ended.result.resumed_from == 0
    (row,) = read_run_folder(out).takeovers
    assert (row.step, row.phase, row.in_place) == (step, place, True)
    assert row.failed == plan_of().strategy
    assert row.taken != row.failed
    assert read_plan(out / "plan.yaml").strategy == row.taken
    assert planted.PLANTED in row.reason


@pytest.mark.few(1)
@pytest.mark.parametrize("step", [1, 3])
def test_an_update_that_was_made_is_undone_from_the_checkpoint(step, undisturbed, text, tmp_path):
    out = tmp_path / "run"
    with failing("optimizer", step):
        ended = run(plan_of(), settings_of(out, text))
    assert_same(out, undisturbed)
    assert ended.result.resumed_from == {1: 0, 3: 2}[step]  # saved every second step
    (row,) = read_run_folder(out).takeovers
    assert (row.step, row.phase, row.in_place) == (step, "optimizer", False)


@pytest.mark.long  # train/test_program_state.py goes on from every kind of state
def test_loss_scale_and_masters_go_on_where_they_were(text, tmp_path):
    scale = LossScale(initial_scale=256.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2)
    job = {"precision": "fp16-master", "loss_scale": scale}
    plain, out = tmp_path / "plain", tmp_path / "run"
    run(plan_of(job=job), settings_of(plain, text))
    with failing("backward", 3):
        run(plan_of(job=job), settings_of(out, text))
    assert curve(out) == pytest.approx(curve(plain), rel=2e-3)  # sums of 16-bit gradients
    scales = [[row.get("loss_scale") for row in rows(each)] for each in (out, plain)]
    assert [x for x in scales[0] if x] == [x for x in scales[1] if x]
    assert len(set(filter(None, scales[1]))) > 1  # it grew meanwhile


def test_the_verdict_is_on_the_strategy_that_ran_to_the_end(text, tmp_path):
    out = tmp_path / "run"
    with failing("backward", 1):
        ended = run(plan_of(), settings_of(out, text))
    folder = read_run_folder(out)
    simulated = simulate(folder.plan.job, folder.plan.cluster, folder.plan.strategy)
    measured = ended.reading.measured_peak_allocated_bytes
    assert measured == pytest.approx(simulated.simulated_peak_allocated_bytes, rel=0.02)
    first = simulate(plan_of().job, plan_of().cluster, plan_of().strategy)
    assert measured < 0.9 * first.simulated_peak_allocated_bytes
    verdict = judge(folder.plan, simulated, None, takeovers=folder.takeovers)
    assert len(verdict.takeovers) == 1
    assert "step 1, backward" in verdict.takeovers[0]


@pytest.mark.long  # the verdict after a fallback is in the test of the strategy that ran to the end
def test_a_fallback_after_a_resume_is_measured_again(text, tmp_path):
    out = tmp_path / "run"
    run(plan_of(), settings_of(out, text, num_kept=3))
    for step in (4, 5):  # it was killed after step 3
        shutil.rmtree(out / "checkpoints" / f"step-{step:08d}")
    for name in ("measurement.json", "simulation.json", "search.json"):
        (out / name).write_text('{"measured_peak_allocated_bytes": 1}')
    with failing("backward", 3):
        ended = run(plan_of(), settings_of(out, text, resume=True))
    assert (ended.result.resumed_from, ended.result.num_takeovers) == (2, 1)
    folder = read_run_folder(out)
    assert (folder.measurement, folder.simulation, folder.search) == (None, None, None)
    simulated = simulate(folder.plan.job, folder.plan.cluster, folder.plan.strategy)
    measured = ended.reading.measured_peak_allocated_bytes
    assert measured == pytest.approx(simulated.simulated_peak_allocated_bytes, rel=0.02)
    assert ended.result.measured_peak_bytes == measured


def test_a_limit_40_percent_under_the_first_plan_is_kept(undisturbed, text, tmp_path):
    """Nothing is planted: a real limit, enforced, and the ladder down to what keeps it."""
    out, plan = tmp_path / "run", plan_of()
    peak = simulate(plan.job, plan.cluster, plan.strategy).simulated_peak_allocated_bytes
    limit = round(0.6 * peak)
    settings = settings_of(out, text, enforces_limit=True)
    ended = run(plan_of(limit_bytes=limit), settings)
    assert_same(out, undisturbed)
    assert ended.result.num_takeovers >= 1
    assert ended.reading.measured_peak_allocated_bytes <= limit * 1.001 + 2**12
    for row in read_run_folder(out).takeovers:
        assert row.limit_bytes == limit


def test_without_a_formula_the_ladder_is_simulated(text, tmp_path):
    """Packed documents have none."""
    job = {"packing": "documents"}
    plain, out = tmp_path / "plain", tmp_path / "run"
    run(plan_of(job=job, attention="eager"), settings_of(plain, text))
    with failing("backward", 2):
        run(plan_of(job=job, attention="eager"), settings_of(out, text))
    assert_same(out, plain)
    (row,) = read_run_folder(out).takeovers
    assert row.in_place


@pytest.mark.long
def test_where_nothing_is_left_it_says_so_and_keeps_no_strategy_twice(text, tmp_path):
    out, plan = tmp_path / "run", plan_of(limit_bytes=2**15)
    with pytest.raises(RunError, match=r"out of memory in .*no exact one is left"):
        run(plan, settings_of(out, text, enforces_limit=True))
    took = [row for row in map(json.dumps, rows(out)) if "takeover" in row]
    failed = [json.loads(row)["failed"] for row in took]
    assert len(failed) == len({json.dumps(each) for each in failed})


def test_a_run_that_may_do_nothing_ends_as_before(text, tmp_path):
    out = tmp_path / "run"
    with failing("forward", 2), pytest.raises(RunError, match="more memory than there is"):
        run(plan_of(), settings_of(out, text), following=None)


PLACES = [("forward", 2), ("backward", 2), ("optimizer", 1), ("optimizer", 3), ("all-gather", 2)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("place", "step"), PLACES)
def test_of_two_processes_all_start_again(place, step, undisturbed, text, tmp_path):
    out = tmp_path / "run"
    plan = plan_of(2, micro_batch=4, zero=3, dp_shard=2)
    group = Group(max_restarts=0, timeout_s=60, next_plan=next_plan)
    observer = partial(planted.planting, place, step, tmp_path / "done")
    end = launch(plan, settings_of(out, text), group, observer=observer)
    assert end.failure is None
    assert end.result.num_takeovers == 1
    assert (tmp_path / "done").exists()
    assert_same(out, undisturbed, kinds=("train",))
    (row,) = read_run_folder(out).takeovers
    assert (row.step, row.in_place) == (step, False)
    assert isinstance(row, TakeoverRow)
    assert not list((out / ".out-of-memory").glob("*"))


def test_a_measurement_that_begins_late_counts_what_was_there():
    """The same steps, metered from the start and from the second on."""
    from brimful.build.assemble import build_program
    from brimful.build.batch import Batch
    from brimful.build.step import train_step

    plan, peaks = plan_of(), []
    ids = torch.zeros((8, 32), dtype=torch.int64)
    for is_late in (False, True):
        meter = CpuMeter()
        if not is_late:
            meter.start()
        program = build_program(plan.job, plan.strategy, torch.device("cpu"))
        for step in range(3 if is_late else 2):
            if is_late and step == 1:
                meter.begin_again(program)
            train_step(program, [Batch(ids, ids)], num_targets=256, learning_rate=1e-3)
        meter.stop(program)
        items = {item.name: item.num_bytes for item in meter.reading.items}
        peaks.append((meter.reading.measured_peak_allocated_bytes, items))
        phases = {peak.phase for peak in meter.reading.phases}
        assert ("load" in phases) is not is_late  # what it did not see is no load
    assert peaks[0][0] == pytest.approx(peaks[1][0], rel=1e-3)
    for name in ("parameters", "optimizer state", "buffers"):
        assert peaks[0][1][name] == peaks[1][1][name]
