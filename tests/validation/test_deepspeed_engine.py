"""DeepSpeed's engine by formula: against its own code as it was recorded, and by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deepspeed_predicted_part import WORST_BAR, _words, predicted
from deepspeed_site import SITE, deepspeed_site, has_deepspeed
from evidence import read_evidence

from brimful.cli.main import parser_of
from brimful.cli.resolved import asked
from brimful.cost.deepspeed_engine import _of_rank, fullest_rank
from brimful.cost.deepspeed_pieces import pieces_of
from brimful.cost.estimate import estimate
from brimful.cost.memory import phase_peaks
from brimful.units import MIB
from cost.test_deepspeed_requests import RECORDED, SHORT

VALIDATION = Path(__file__).parents[2] / "validation"
ROWS = read_evidence("deepspeed_predicted", VALIDATION).rows
ASKED = "tinyllama-1.1b --gpus 8xh100-80gb --engine deepspeed --precision bf16-master"


def asked_of(flags):
    return asked(parser_of("estimate").parse_args([*ASKED.split(), *flags.split()]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.flags.replace(" ", "_"))
def test_it_is_what_its_own_code_takes(row):
    assert predicted(row.flags) == pytest.approx(row.simulated_peak_allocated_bytes, rel=WORST_BAR)


def test_the_process_that_was_run_is_the_one_that_holds_most():
    ranks = {row.rank for row in ROWS}
    assert len(ranks) > 1, "which differ"
    for row in ROWS[:8]:
        job, cluster, strategy = asked(
            parser_of("estimate").parse_args([*_words(row.flags), "--engine", "deepspeed"])
        )
        assert fullest_rank(job, strategy, cluster.device) == row.rank


@pytest.mark.parametrize(("rank", "simulated_bytes"), [(0, 6_409_937_168), (1, 6_398_413_824)])
def test_stage_1_makes_its_share_beside_what_did_not_go_through_the_bucket(rank, simulated_bytes):
    """What ``brimful pretend`` said of DeepSpeed 0.19.8 as it is exported, on each process."""
    job, cluster, strategy = asked_of("--zero 1 --seq-len 128 --micro-batch 1 --global-batch 8")
    memory = _of_rank(job, strategy, cluster.device, rank)
    peak = max(phase.num_bytes for phase in phase_peaks(memory))
    assert peak == pytest.approx(simulated_bytes, rel=1e-6)
    assert fullest_rank(job, strategy, cluster.device) == 0


def test_a_share_of_every_parameter_is_updated_in_fp32():
    job, _, strategy = found = asked_of("--zero 1")
    pieces = pieces_of(job, strategy)
    assert pieces.whole - sum(pieces.sizes) < 2 * 8
    items = {item.name: item.num_bytes for item in estimate(*found).items}
    assert items["parameters"] == 2 * pieces.whole
    assert items["optimizer state"] == 12 * pieces.share


def test_stage_1_has_whole_gradients_beside_later_micro_batches():
    one, two = (
        asked_of("--zero 1 --seq-len 2048"),
        asked_of("--zero 1 --seq-len 2048 --global-batch 16"),
    )
    peaks = [estimate(*each).predicted_peak_allocated_bytes for each in (one, two)]
    pieces = pieces_of(one[0], one[2])
    assert peaks[1] - peaks[0] == pytest.approx(2 * pieces.whole, rel=0.01)


def test_shares_touch_every_parameter():
    job, _, strategy = asked_of("--zero 2")
    every = [pieces_of(job, strategy, rank) for rank in range(8)]
    assert sum(each.touched for each in every) >= sum(every[0].sizes)
    assert [each.reached for each in every] == [
        *(["before the last"] * 4), *(["behind the first"] * 3), "first",
    ]  # fmt: skip


@pytest.mark.skipif(
    not has_deepspeed(), reason=f"DeepSpeed is not installed, and {SITE} names no folder with it"
)
def test_its_own_code_reserves_what_was_recorded():
    flags = f"{SHORT} --zero 1"
    words = ["simulate", *flags.split(), "--precision", "bf16-master", "--for", "deepspeed"]
    with deepspeed_site() as site:
        path = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "brimful", *words, "--json"]
        environment = {**os.environ, "PYTHONPATH": path}  # of a new interpreter, not of a fork
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            said, _ = process.communicate()
    (rank,) = json.loads(said)["ranks"]
    recorded = RECORDED[f"{flags} --optimizer adamw-foreach"][0]
    assert rank["simulated_peak_reserved_bytes"] == recorded * MIB
