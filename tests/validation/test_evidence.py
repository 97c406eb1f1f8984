"""The committed evidence is whole and meets its bars, and a sample of it is made again."""

import datetime as dt
import itertools
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import aged
import architectures_part
import compiled_part
import deepspeed_predicted_part
import examples_part
import fuzz_part
import kept_clean
import laws_of_costs
import measured_part
import msgspec
import packages_part
import plans_hold_part
import predicted_part
import programs_by_hand
import programs_part
import published_part
import pytest
import sampler
import scale_ceiling
import scale_experts_part
import scale_part
import tables
import timed_part
import watched_part
from bridge_speeds import read_speeds
from deepspeed_cases import every_case
from evidence import (
    PARTS,
    RICH_SHARE,
    all_strata,
    describe_case,
    in_all,
    path_of,
    read_evidence,
    write_evidence,
)
from examples_part import CASES, Example
from megatron_records import read_records

from brimful.errors import FileFormatError
from brimful.models.config import check_model
from brimful.process.versions import versions
from brimful.published.rows import published_runs
from brimful.techniques.runnable import check_strategy
from brimful.values.job import check_job
from brimful.values.strategy import world_size

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[2] / "validation"
LEAST_ROWS = {
    "predicted_vs_simulated": 300,
    "simulated_vs_measured": 40,
    "step_time": 8,
    "resume": 50,
    "pretend_examples": 6,
    "published": 80,
    "published_predicted": 300,
    "parity": 221,
    "techniques": 56,
    "quality": 21,
    "hf_trainer": 7,
    "parallel_parity": 220,
    "ranks": 120,
    "reshard": 28,
    "lost_workers": 30,
    "deepspeed": 43,
    "deepspeed_simulated": 24,
    "deepspeed_predicted": 30,
    "precision": 92,
    "recipes": 14,
    "bubbles": 14,
    "routing": 50,
    "rehearsals": 7,
    "mixtures": 3,
    "offload": 44,
    "dpo": 20,
    "ladder": 26,
    "watched": 12,
    "packages": 6,
    "exporters": 79,
    "scale": 45,
    "scale_experts": 8,
    "moonshot": 15,
    "fuzz": 12,
    "soak": 3,
    "laws": 26,
    "reserved": 300,
    "plans_hold": 200,
    "small_spaces": 20,
    "products": 400,
    "architectures": 252,
    "programs": 14,
    "megatron_records": 827,
    "bridge_speeds": 310,
    "torchtitan": 37,
    "compiled": 14,
}


def committed(part):
    if not (FOLDER / f"{part}.json").is_file():
        pytest.fail(
            f"validation/{part}.json is missing; make it with: "
            f"python validation/prove.py --part {part}"
        )
    return read_evidence(part, FOLDER)


@pytest.fixture(params=PARTS)
def evidence(request):
    return committed(request.param)


def of_figures(part, missed):
    """Leave out that a machine was not quiet, where the evidence is listed to be made again."""
    if part not in kept_clean.known():
        return missed
    return tuple(text for text in missed if not text.startswith(("median known to", "disturbed:")))


def test_it_meets_its_bars_with_enough_cases(evidence):
    assert of_figures(evidence.part, evidence.summary.missed) == ()
    assert len(evidence.rows) == evidence.summary.num_cases >= LEAST_ROWS[evidence.part]


def test_old_evidence_and_other_versions_are_told_and_fail_nothing():
    made = committed("parity").provenance
    day = dt.date.fromisoformat(made.date)
    just = day + dt.timedelta(days=aged.MAX_AGE_DAYS)
    one = {"parity": committed("parity")}
    with tempfile.TemporaryDirectory() as name:
        write_evidence(one["parity"], Path(name))
        assert list(aged.aged(Path(name), just, made.versions)) == []
        (old,) = aged.aged(Path(name), just + dt.timedelta(days=1), made.versions)
        assert old.startswith("parity is 91 days old")
        (other,) = aged.aged(Path(name), just, ("torch 9.0",))
        assert "made with" in other


def test_it_says_how_it_was_made(evidence):
    provenance = evidence.provenance
    assert len(provenance.commit) == 40
    assert provenance.seed
    assert "validation/prove.py" in provenance.command
    assert provenance.machine.num_cores >= 1
    assert (evidence.calibration is not None) == (evidence.part == "step_time")


def watched_names(rows):
    named = {(case.name, watched_part.settings_of(case)) for case in watched_part.CASES}
    assert {(row.name, row.settings) for row in rows} == named


def package_commands(rows):
    assert {row.command for row in rows} == {*packages_part.every_command(), ""}


def scale_sizes(rows):
    asked = set(itertools.product(scale_part.MODELS, scale_part.SIZES))
    assert {(row.model, row.num_gpus) for row in rows} == asked


def expert_sizes(rows):
    asked = {(scale_experts_part.MODEL, size) for size in scale_experts_part.SIZES}
    asked.add((scale_experts_part.REPORTED, scale_ceiling.REPORTED_GPUS))
    assert {(row.model, row.num_gpus) for row in rows} == asked


def fuzz_kinds(rows):
    assert {row.kind for row in rows} == set(fuzz_part.KINDS)
    assert sum(row.num_examples for row in rows) >= 10_000


def soak_quantities(rows):
    assert {row.what for row in rows} == {"resident", "live", "disk"}
    assert all(row.num_steps >= 2000 for row in rows)
    assert all(row.num_evals >= 20 for row in rows)


def law_names(rows):
    assert [row.law for row in rows] == [law.name for law in laws_of_costs.ALL_LAWS]


def planned_jobs(rows):
    assert sum(row.predicted == "fits" for row in rows) >= plans_hold_part.NUM_PLANS


def tried_spaces(rows):
    assert all(row.num_strategies > 1 for row in rows)
    assert any(0 < row.num_holding < row.num_strategies for row in rows)


def program_names(rows):
    assert {row.program for row in rows} == set(programs_by_hand.DERIVED)
    for row in rows:
        derived = programs_by_hand.DERIVED[row.program]()
        assert [(item.name, item.num_bytes) for item in row.derived] == derived
        assert row.arguments == programs_part.arguments_of(row.program)


def published_ids(rows):
    assert {row.id for row in rows} == {run.id for run in published_runs()}


def published_families(rows):
    assert {row.family for row in rows} == set(published_part.FAMILIES)


def example_scripts(rows):
    assert {Example(row.script, row.arguments) for row in rows} == set(CASES)


def compiled_cases(rows):
    assert {row.arguments for row in rows} == set(compiled_part.CASES)


def deepspeed_names(rows):
    """Scripts that train by DeepSpeed: those that are run again are these."""
    assert [row.case for row in rows] == [
        case for case in every_case() if case.num_processes == 2
    ] + [case for case in every_case() if case.num_processes != 2]


def deepspeed_flags(rows):
    """What ``brimful estimate`` is told."""
    assert [row.flags for row in rows] == list(deepspeed_predicted_part.CASES)


def megatron_records(rows):
    assert [(row.name, row.published_peak_allocated_bytes) for row in rows] == [
        (each.name, each.published_peak_allocated_bytes) for each in read_records()
    ]


def bridge_speeds(rows):
    assert [row.published_tokens_per_s for row in rows] == [
        each.tokens_per_s_per_gpu for each in read_speeds()
    ]


def torchtitan_runs(rows):
    """All that are carried, with what their programs were told."""
    runs = published_runs("torchtitan")
    assert [(row.id, row.command, row.published_reserved_gib) for row in rows] == [
        (run.id, run.command, run.reserved_gib) for run in runs
    ]


def product_numbers(rows):
    """Which draws of the seed they are."""
    assert [row.number for row in rows] == list(range(len(rows)))


def architecture_types(rows):
    """Every type that has a head for text; of one without a prediction why."""
    assert [row.model_type for row in rows] == architectures_part.architectures()
    assert all(bool(row.cause) != (len(row.peaks) == 2) for row in rows)


CASELESS = {
    "torchtitan": torchtitan_runs,
    "megatron_records": megatron_records,
    "bridge_speeds": bridge_speeds,
    "deepspeed_simulated": deepspeed_names,
    "deepspeed_predicted": deepspeed_flags,
    "published_predicted": published_ids,
    "published": published_families,
    "lost_workers": list,  # one run, whose command stands in the provenance
    "pretend_examples": example_scripts,
    "watched": watched_names,
    "packages": package_commands,
    "scale": scale_sizes,
    "scale_experts": expert_sizes,
    "fuzz": fuzz_kinds,
    "soak": soak_quantities,
    "laws": law_names,
    "plans_hold": planned_jobs,
    "small_spaces": tried_spaces,
    "products": product_numbers,
    "architectures": architecture_types,
    "programs": program_names,
    "compiled": compiled_cases,
}
"""Parts whose rows hold no job: what their rows are instead."""


def test_its_cases_can_be_run_again(evidence):
    if evidence.part in CASELESS:
        CASELESS[evidence.part](evidence.rows)
        return
    for row in evidence.rows:
        check_model(row.case.job.model)
        check_strategy(check_job(row.case.job), row.case.strategy)


def test_it_survives_being_written(evidence, tmp_path):
    write_evidence(evidence, tmp_path)
    assert read_evidence(evidence.part, tmp_path) == evidence
    written = path_of(evidence.part, tmp_path).read_bytes()
    # Cases of before lack the fields that a strategy has since, which then have their defaults.
    stored = msgspec.json.decode(path_of(evidence.part, FOLDER).read_bytes())
    assert _is_among(stored, msgspec.json.decode(written))
    write_evidence(read_evidence(evidence.part, tmp_path), tmp_path)
    assert path_of(evidence.part, tmp_path).read_bytes() == written


def _is_among(old, new):
    """Whether everything in one document is in the other, in the same place."""
    if isinstance(old, dict):
        return old.keys() <= new.keys() and all(_is_among(old[key], new[key]) for key in old)
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_is_among, old, new))
    return old == new


@pytest.mark.parametrize(
    ("part", "module"),
    [("predicted_vs_simulated", predicted_part), ("simulated_vs_measured", measured_part)],
)
def test_the_summary_is_that_of_the_rows(part, module):
    evidence = committed(part)
    summary = evidence.summary
    drawn = sampler.Drawn((), summary.num_drawn, summary.refusals)
    made = msgspec.structs.replace(summary, findings=())  # how rows were replaced, if they were
    assert module.summarize(list(evidence.rows), drawn) == made
    refused = sum(refusal.num_draws for refusal in summary.refusals)
    assert summary.num_drawn == len(evidence.rows) + refused


def test_the_errors_are_those_of_the_figures():
    for row in committed("predicted_vs_simulated").rows:
        said, simulated = row.predicted_peak_allocated_bytes, row.simulated_peak_allocated_bytes
        assert row.peak_error == (said - simulated) / simulated
    for row in committed("simulated_vs_measured").rows:
        difference = row.simulated_peak_allocated_bytes - row.measured_peak_allocated_bytes
        assert row.difference_bytes == difference
        assert abs(difference) <= max(2**20, 0.005 * row.measured_peak_allocated_bytes)


def test_unmodified_scripts_peak_where_they_really_do():
    evidence = committed("pretend_examples")
    assert examples_part.summarize(list(evidence.rows)) == evidence.summary
    for row in evidence.rows:
        said, truth = row.simulated_peak_allocated_bytes, row.measured_peak_allocated_bytes
        assert row.peak_error == (said - truth) / truth
        assert abs(said - truth) <= 0.01 * truth
        assert 256 * 2**20 <= truth <= 2**30
        assert row.simulated_other_bytes > RICH_SHARE * truth


def test_published_runs_are_simulated_near_what_was_measured():
    evidence = committed("published")
    assert published_part.summarize(list(evidence.rows)) == evidence.summary
    counted = [row for row in evidence.rows if row.is_eligible]
    assert {row.id for row in counted} == published_part.eligible()
    assert published_part.share_within(counted, 0.05) >= 0.8
    assert published_part.share_within(counted, 0.02) >= 0.6
    far = [row for row in evidence.rows if not published_part.is_near(row, 0.05)]
    assert all(row.explanation for row in far)


def test_the_cases_are_drawn_as_they_should_be():
    rows = committed("predicted_vs_simulated").rows
    covered = {pair for cell in map(cell_of, rows) for pair in sampler.pairs_of(cell)}
    assert sampler.possible_pairs(sampler.ALL_FACTORS) <= covered
    shares = [row.simulated_other_bytes / row.simulated_peak_allocated_bytes for row in rows]
    assert sum(share > RICH_SHARE for share in shares) >= len(rows) / 2
    worlds = [world_size(row.case.strategy) for row in rows]
    assert min(worlds) == 1
    assert max(worlds) > 512
    registry_share = sum(row.case.job.model.name != "drawn" for row in rows) / len(rows)
    assert 1 / 6 < registry_share < 1 / 2
    for row in committed("simulated_vs_measured").rows:
        assert 250 * 2**20 < row.measured_peak_allocated_bytes < 1550 * 2**20
        assert row.measured_other_bytes > 0.39 * row.measured_peak_allocated_bytes


def cell_of(row):
    return {factor: all_strata(row.case)[factor] for factor in sampler.ALL_FACTORS}


def test_the_seed_decides_the_draw():
    def draw(seed):
        return sampler.draw_cases(
            random.Random(seed),  # noqa: S311 - cases, not secrets
            20,
            sampler.FACTORS,
            predicted_part.SHAPES,
            lambda _case, _estimate: None,
        )

    assert draw(1) == draw(1)
    assert draw(1).cases != draw(2).cases


def test_runs_were_killed_at_all_kinds_of_moments():
    rows = committed("resume").rows
    assert sum(row.was_saving for row in rows) >= 15
    assert len({row.killed_at_step for row in rows}) >= len(rows) / 3
    assert all(row.resumed_from <= row.killed_at_step for row in rows)


def test_step_times_cover_what_changes_them():
    timings = timed_part.TIMINGS
    assert {timing.precision for timing in timings} == {"fp32", "bf16", "bf16-mixed"}
    rows = committed("step_time").rows
    assert len({describe_case(row.case) for row in rows}) == len(rows)
    assert all(len(row.measured_steps_s) >= timed_part.LEAST_STEPS for row in rows)
    assert all(row.measured_low_s <= row.measured_step_s <= row.measured_high_s for row in rows)
    summary = timed_part.summarize(list(rows), committed("step_time").calibration)
    assert of_figures("step_time", summary.missed) == ()


def test_the_readme_shows_the_figures():
    text = (FOLDER / "README.md").read_text("utf-8")
    shown = text.partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert shown == tables.figures(
        [committed(part) for part in PARTS if path_of(part, FOLDER).is_file()]
    )


# A sample, another one with each evidence, is made again.


def sample_of(part, num_rows):
    evidence = committed(part)
    if evidence.provenance.versions != versions():
        pytest.skip(f"made with {evidence.provenance.versions} and this is {versions()}")
    first = evidence.provenance.seed * num_rows
    return [evidence.rows[(first + i) % len(evidence.rows)] for i in range(num_rows)]


UNCOLLECTED_BYTES = 64
"""Tensors without dimensions that wait for Python's garbage collector, whose moment hangs on all
that the process did before: 8 bytes of 11 GB were seen."""


@pytest.mark.long
def test_a_sample_predicts_and_simulates_to_the_same_bytes():
    for row in sample_of("predicted_vs_simulated", 2):
        again = predicted_part.compare(row.case)
        what = describe_case(row.case)
        assert again.predicted_peak_allocated_bytes == row.predicted_peak_allocated_bytes, what
        simulated = again.simulated_peak_allocated_bytes, row.simulated_peak_allocated_bytes
        assert abs(simulated[0] - simulated[1]) <= UNCOLLECTED_BYTES, what
        assert again.where == row.where, what


def test_a_sample_measures_the_same():
    """To the byte on the two rungs that are computed; real kernels may take other scratch."""
    (row,) = sample_of("simulated_vs_measured", 1)
    again = measured_part.compare(row.case)
    what = describe_case(row.case)
    assert again.predicted_peak_allocated_bytes == row.predicted_peak_allocated_bytes, what
    simulated = again.simulated_peak_allocated_bytes, row.simulated_peak_allocated_bytes
    assert abs(simulated[0] - simulated[1]) <= UNCOLLECTED_BYTES, what
    assert abs(again.difference_bytes) <= again.allowed_bytes


# The machinery itself.


@pytest.mark.long
def test_a_quick_run_makes_evidence(tmp_path):
    command = [sys.executable, str(FOLDER / "prove.py"), "--quick", "--dirty"]
    command += ["--out", str(tmp_path)]
    command += ["--part", "predicted_vs_simulated", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = read_evidence("predicted_vs_simulated", tmp_path)
    assert len(made.rows) == predicted_part.NUM_QUICK_CASES
    assert in_all(made.summary, "peak").num_cases == len(made.rows)
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "every bar is met" in done.stdout


def test_real_runs_know_nothing_of_the_simulator():
    code = "import sys, worker, script_worker, brimful.measure.meter, brimful.build.program as _; "
    code += "print([m for m in sys.modules if '.pretend' in m or '.simulate' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_missed_bar_is_said():
    evidence = committed("predicted_vs_simulated")
    worse = [msgspec.structs.replace(row, peak_error=0.04) for row in evidence.rows]
    missed = predicted_part.summarize(worse, sampler.Drawn((), len(worse), ())).missed
    assert missed[0] == "median error of peak 4.00% > 1%"
    assert len(missed) == 1 + len(worse)
    row = committed("simulated_vs_measured").rows[0]
    far = msgspec.structs.replace(row, difference_bytes=-row.allowed_bytes - 1)
    missed = measured_part.summarize([row, far], sampler.Drawn((), 2, ())).missed
    assert [text.split()[0] for text in missed] == [f"{-row.allowed_bytes - 1:+d}"]


def test_evidence_of_another_schema_is_refused(tmp_path):
    evidence = committed("resume")
    write_evidence(msgspec.structs.replace(evidence, schema="other/2"), tmp_path)
    with pytest.raises(FileFormatError, match=r"in schema 'other/2' and should be resume in"):
        read_evidence("resume", tmp_path)
    path_of("resume", tmp_path).write_text("{")
    with pytest.raises(FileFormatError, match="is not evidence"):
        read_evidence("resume", tmp_path)
