"""Rehearsals at full size: the page is that of the evidence, and one model costs every layout."""

import runpy
from pathlib import Path

import msgspec
import pytest
from layout_cost import cost_of, seconds_of_devices
from rehearsals_part import LAYOUTS, job_of, num_classes

from brimful.cost.estimate import estimate
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.techniques.runnable import check_strategy
from brimful.values.job import plain_job
from brimful.values.strategy import Strategy, world_size

pytestmark = pytest.mark.torch

DOCS = Path(__file__).parents[2] / "docs"
CLUSTER = load_cluster("8x8xh100-80gb", memory_limit_bytes=None)
JOB = plain_job(load_model("llama-3.1-8b"), precision="bf16-mixed", seq_len=4096, global_batch=64)
PLAIN = Strategy(
    micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa", zero=2,
    accumulate="hold", tp=8, dp_shard=8,
)  # fmt: skip
STAGED = msgspec.structs.replace(PLAIN, pp=4, tp=8, dp_shard=2)
WIDTH = 100


def changed(strategy, **changes):
    return check_strategy(JOB, msgspec.structs.replace(strategy, **changes))


def test_the_page_is_that_of_the_evidence_and_fits_a_screen():
    page = runpy.run_path(str(DOCS / "generate_rehearsals.py"))["page"]()
    written = (DOCS / "rehearsals.md").read_text("utf-8")
    assert written == page, "run python docs/generate_rehearsals.py"
    assert max(map(len, written.splitlines())) <= WIDTH


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_takes_all_gpus_and_says_where_it_is_from(layout):
    strategy = Strategy(loss_chunks=1, attention="sdpa", **layout.ways)
    cluster = load_cluster(layout.gpus, memory_limit_bytes=None)
    assert world_size(check_strategy(job_of(layout), strategy)) == cluster.num_devices
    assert layout.published.source
    assert layout.published.chosen


@pytest.mark.parametrize("checkpointing", ["none", "full", "full:9", "selective"])
@pytest.mark.parametrize("zero", [2, 3])
def test_without_stages_it_is_what_the_first_rung_says(checkpointing, zero):
    strategy = changed(PLAIN, activation_checkpointing=checkpointing, zero=zero)
    ours = cost_of(JOB, CLUSTER, strategy)
    assert ours.bubble_s == pytest.approx(0, abs=1e-9)
    assert ours.step_s == pytest.approx(estimate(JOB, CLUSTER, strategy).predicted_step_s, rel=0.02)


def test_parts_of_a_step_add_up():
    for strategy in (PLAIN, changed(STAGED), changed(STAGED, activation_checkpointing="full")):
        cost = cost_of(JOB, CLUSTER, strategy)
        parts = (cost.work_s, cost.exchange_s, cost.bubble_s, cost.exposed_s, cost.update_s)
        assert cost.step_s == pytest.approx(sum(parts))
        assert 0 <= cost.again_s < cost.work_s


def test_a_row_shares_the_work_of_one_device():
    whole = seconds_of_devices(JOB, CLUSTER, changed(STAGED, pp=1, dp_shard=8))
    row = seconds_of_devices(JOB, CLUSTER, changed(STAGED))
    assert len(row) == STAGED.pp
    assert sum(one.work for one in row) == pytest.approx(whole[0].work)


def test_rounds_wait_less_and_gpipe_as_long():
    def bubble(**changes):
        return cost_of(JOB, CLUSTER, changed(STAGED, **changes)).bubble_share

    in_turn = bubble()
    assert bubble(pp_schedule="interleaved", stages_per_device=2) < in_turn
    assert bubble(pp_schedule="gpipe") == pytest.approx(in_turn, rel=0.1)


def test_devices_of_a_row_differ_in_what_they_keep():
    assert num_classes(JOB, PLAIN) == 1
    assert num_classes(JOB, changed(STAGED)) == STAGED.pp
    assert num_classes(JOB, changed(STAGED, pp_schedule="gpipe")) == 3
