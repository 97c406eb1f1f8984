"""Scale on paper: the page is that of the evidence, and what is said of each size holds."""

import json
import runpy
from pathlib import Path

import msgspec
import pytest
import scale_ceiling
import scale_experts
import scale_experts_part
import scale_part
from evidence import read_evidence

from brimful.hardware.devices import gpus
from brimful.models.config import load_model, read_config
from brimful.simulate.attempt import step_work
from brimful.simulate.messages import collectives_of_step
from brimful.simulate.run import trace
from brimful.values.strategy import num_micro_batches, world_size
from other_decoders import CONFIGS
from samples import make_job, make_strategy

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(DOCS / "generate_scale.py"))


@pytest.fixture(scope="module")
def rows():
    return read_evidence("scale", ROOT / "validation").rows


def test_page_and_plot_are_those_of_the_evidence(generator):
    told = "run python docs/generate_scale.py"
    assert (DOCS / "scale.md").read_text("utf-8") == generator["page"](), told
    assert (DOCS / "scale" / "efficiency.svg").read_text("utf-8") == generator["plot"](), told


@pytest.mark.long  # goldens.py compare plans as many GPUs anew, search/test_grid.py rows of several
def test_one_size_planned_anew_is_the_committed_one(rows):
    (there,) = [r for r in rows if (r.model, r.num_gpus) == ("llama-3.1-8b", 8)]
    here = scale_part.plan_of("llama-3.1-8b", 8)
    assert here.strategy == there.strategy
    assert here.cost.step_s == pytest.approx(there.cost.step_s)


def test_plans_use_all_gpus_and_steps_get_shorter(rows):
    for model in scale_part.MODELS:
        own = [row for row in rows if row.model == model and row.fits]
        assert [world_size(row.strategy) for row in own] == [row.num_gpus for row in own]
        steps = [row.cost.step_s for row in own]
        assert steps == sorted(steps, reverse=True)


def test_what_costs_most_is_named(generator, rows):
    limit_of = generator["limit_of"]
    row = rows[-1]
    cost = dict.fromkeys(("again_s", "exchange_s", "bubble_s", "exposed_s", "update_s"), 0.0)
    for field, letter in zip(cost, "RTBGU", strict=True):
        costs = msgspec.structs.replace(row.cost, **{**cost, field: row.cost.step_s / 2})
        assert limit_of(msgspec.structs.replace(row, cost=costs)) == letter
    nothing = msgspec.structs.replace(row.cost, **cost)
    assert limit_of(msgspec.structs.replace(row, cost=nothing)) == "K"


def test_bytes_to_experts_are_those_that_the_pretend_gpu_counts():
    rows = json.loads((ROOT / "validation" / "mixtures.json").read_bytes())["rows"]
    (row,) = [row for row in rows if row["name"] == "DeepSeek-V3 on 2,048"]
    job, strategy = row["case"]["job"], row["case"]["strategy"]
    place = row["balanced"][1]
    assert place["device"] == 8
    tokens = job["global_batch"] * job["seq_len"] / strategy["dp_shard"]
    per_layer = place["all_to_all_bytes"] / tokens / 4  # the blocks of a stage between
    ours = scale_ceiling.sent_bytes(num_layers=1, passes=3)  # all blocks recomputed there
    assert ours == pytest.approx(per_layer, rel=1e-3)


def test_the_weights_of_the_bounds_are_those_of_the_model():
    """37 billion of 671 are active, as the report says; the embedding is a look-up."""
    embedding = 129280 * load_model("deepseek-v3").hidden_size
    assert scale_ceiling.product_weights() + embedding == pytest.approx(37.5e9, rel=0.01)
    bounds = scale_ceiling.ceiling()
    assert 0 < bounds.mfu_low < bounds.mfu_high < 1


@pytest.fixture(scope="module")
def layouts():
    return read_evidence("scale_experts", ROOT / "validation").rows


def test_layouts_of_experts_fit_where_they_say_so_and_get_faster(layouts):
    rows = [row for row in layouts if row.model == scale_experts_part.MODEL and row.fits]
    assert rows, "some size fits"
    limit = 80 * 2**30
    assert all(row.least_bytes < row.simulated_peak_allocated_bytes < limit for row in rows)
    steps = [row.cost.step_s for row in rows]
    assert steps == sorted(steps, reverse=True)


def test_least_bytes_are_sixteen_of_each_parameter(layouts):
    for row in layouts:
        assert row.least_bytes * row.num_gpus == pytest.approx(671e9 * 16, rel=1e-3)


def test_messages_to_experts_have_a_letter_of_their_own(generator, layouts):
    row = layouts[-1]
    waiting = msgspec.structs.replace(row.cost, exchange_s=row.cost.step_s)
    assert generator["limit_of"](msgspec.structs.replace(row, cost=waiting)) == "A"


@pytest.mark.long
def test_what_a_device_gathers_and_sends_is_what_the_simulation_counts():
    """A small DeepSeek of 4 blocks: closed forms and blocks' differences beside its own tape."""
    config = {
        **CONFIGS["deepseek_v3"], "model_type": "deepseek_v3", "num_hidden_layers": 4,
        "first_k_dense_replace": 2,
    }  # fmt: skip
    job = make_job(
        model=read_config("tiny-deepseek", config), precision="bf16-mixed", global_batch=12
    )
    strategy = make_strategy(
        activation_checkpointing="full", micro_batch=1, zero=3, dp_shard=4, ep=2
    )
    recording = trace(
        job, strategy, imitate="cuda", count_costs=True, count_messages=True
    ).recording
    num = num_micro_batches(job, strategy)
    told = {
        one.kind: one.num_bytes
        for one in collectives_of_step(recording, step=2, num_micro_batches=num)
    }
    (own,) = scale_experts.parts_of(job, strategy)
    assert num * sum(part.counted.sent_bytes for part in own) == told["all-to-all"]
    gathered, reduced = scale_experts.traffic_bytes(job, own, strategy, num)
    assert gathered == pytest.approx(told["all-gather"], rel=0.02)
    assert reduced == pytest.approx(told["reduce-scatter"], rel=0.02)
    work = step_work(recording, num, gpus()["h100-80gb"])
    for place in (0, 1):  # products, attention
        counted = num * sum(part.counted.work[place] for part in own)
        assert counted == pytest.approx(float(work[place][0]))
