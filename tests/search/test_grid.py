"""A grid of strategies says of each what an estimate of it alone says, on one device and many."""

import random
from collections import Counter

import msgspec
import numpy as np
import pytest

from brimful.cost.estimate import estimate
from brimful.hardware.gpus import load_cluster
from brimful.hardware.links import network_names
from brimful.search.solve import tabulate
from brimful.search.space import grids
from brimful.search.table import strategy_at
from brimful.techniques.runnable import check_strategy
from brimful.values.job import QUANTIZED
from brimful.values.strategy import world_size
from cost.test_parted_experts import mixture
from samples import make_adapter, make_job, make_model
from search.test_solve import FREE, draw, on_devices

NUM_DRAWS = 40
NUM_ROWS = 60
DEVICES = (1, 2, 4, 6, 8)
SECONDS_SHARE = 1e-9


def table_of(job, cluster):
    space = grids(job, FREE, attention="sdpa", cluster=cluster)
    return tabulate(job, cluster, "sdpa", space)


def assert_rows_are_estimates(job, cluster, table, rows):
    for row in rows:
        strategy = strategy_at(job, table, int(row), "sdpa")
        assert check_strategy(job, strategy) == strategy
        assert world_size(strategy) == cluster.num_devices
        alone = estimate(job, cluster, strategy)
        assert round(table.peak_bytes[row]) == alone.predicted_peak_allocated_bytes, strategy
        assert table.step_s[row] == pytest.approx(alone.predicted_step_s, rel=SECONDS_SHARE)


def sampled(number, table):
    rows = np.random.default_rng(number).permutation(len(table.peak_bytes))
    return rows[:NUM_ROWS]


@pytest.mark.few(2)
@pytest.mark.parametrize("number", range(NUM_DRAWS))
def test_a_row_is_an_estimate(number):
    num_devices = DEVICES[number % len(DEVICES)]
    job, cluster = on_devices(*draw(number), num_devices)
    table = table_of(job, cluster)
    assert_rows_are_estimates(job, cluster, table, sampled(number, table))


@pytest.mark.few(1)
@pytest.mark.parametrize(("num_devices", "precision"), [(2, "bf16-mixed"), (8, "bf16")])
def test_a_row_whose_matrices_are_cut_is_an_estimate(num_devices, precision):
    """Several degrees are walked through at once, each with its own sizes."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64}
    model = make_model(**heads, num_hidden_layers=4)
    job = make_job(model=model, precision=precision, global_batch=8)
    job, cluster = on_devices(job, draw(0)[1], num_devices)
    table = table_of(job, cluster)
    assert set(table.tp.tolist()) == {n for n in (1, 2, 4, 8) if n <= num_devices}
    cut = np.flatnonzero(table.tp > 1)
    assert_rows_are_estimates(job, cluster, table, cut[:: len(cut) // NUM_ROWS])


@pytest.mark.few(1)
@pytest.mark.parametrize("architecture", ["mixtral", "qwen3_moe"])
def test_a_row_whose_experts_are_parted_is_an_estimate(architecture):
    model = mixture(random.Random(1), architecture, num_experts=8)  # noqa: S311 - no secret
    job = make_job(model=model, precision="bf16-mixed")
    job, cluster = on_devices(job, draw(0)[1], 4)
    job = msgspec.structs.replace(job, global_batch=8)
    table = table_of(job, cluster)
    assert set(table.ep.tolist()) == {1, 2, 4}
    assert set(table.tp[table.ep > 1].tolist()) == {1}
    assert set(table.zero[table.ep > 1].tolist()) == {2, 3}
    parted = np.flatnonzero(table.ep > 1)
    assert_rows_are_estimates(job, cluster, table, parted[:: len(parted) // (NUM_ROWS // 3)])
    pinned = grids(job, FREE._replace(ep=2), attention="sdpa", cluster=cluster)
    assert {family.ep for grid in pinned for family in grid.batches} == {2}


def test_a_row_of_one_sequence_is_an_estimate():
    """Where attention is written out, one sequence is in a grid of its own."""
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}
    job = make_job(model=make_model(**heads), precision="fp32", global_batch=8)
    job, cluster = on_devices(job, load_cluster("h100-80gb", memory_limit_bytes=None), 2)
    table = table_of(job, cluster)
    for is_one in (True, False):
        rows = np.flatnonzero((table.micro_batch == 1) == is_one)
        assert_rows_are_estimates(job, cluster, table, rows[:: len(rows) // (NUM_ROWS // 3)])


def test_matrices_are_cut_within_a_node_only():
    job, cluster = on_devices(make_job(global_batch=8), draw(0)[1], 4)
    apart = msgspec.structs.replace(
        cluster, num_nodes=4, devices_per_node=1, link="", network=network_names()[0]
    )
    assert set(table_of(job, cluster).tp.tolist()) == {1, 2}
    assert set(table_of(job, apart).tp.tolist()) == {1}


@pytest.mark.few(1)
@pytest.mark.parametrize("base", ["same", "bf16", "nf4-double"])
def test_a_row_with_adapters_is_an_estimate(base):
    """Whose base, in 16 bits, runs another program once parameters are gathered; or is packed."""
    job, cluster = on_devices(*draw(1), 4)
    adapter = make_adapter(base=base)
    method = "qlora" if base in QUANTIZED else "lora"
    job = msgspec.structs.replace(job, precision="bf16-mixed", method=method, adapter=adapter)
    table = table_of(job, cluster)
    assert_rows_are_estimates(job, cluster, table, sampled(0, table))


def test_what_cannot_be_sharded_is_still_spread():
    job = make_job(global_batch=8, precision="bf16", optimizer="adafactor")
    table = table_of(*on_devices(job, draw(0)[1], 4))
    assert set(table.zero.tolist()) == {0, 1}


def test_few_blocks_are_alike_where_one_is_unlike_the_others():
    """With one block of a kind a grid must leave out what stands for no block."""
    job, cluster = on_devices(*draw(2), 4)
    job = make_job(model=make_model(num_hidden_layers=2), global_batch=12, seq_len=64)
    table = table_of(job, cluster)
    rows = np.flatnonzero(table.num_blocks == 1)
    assert_rows_are_estimates(job, cluster, table, rows[:: max(1, len(rows) // NUM_ROWS)])


def test_every_way_of_spreading_is_among_the_rows():
    job, cluster = on_devices(make_job(global_batch=8), draw(0)[1], 4)
    table = table_of(job, cluster)
    strategies = [
        strategy_at(job, table, row, "sdpa")
        for row in np.flatnonzero(np.asarray(table.tp) == 1).tolist()
    ]
    ways = {(s.zero, s.dp_replicate, s.dp_shard, s.accumulate) for s in strategies}
    expected = {(zero, *each) for zero in (1, 2, 3) for each in ((1, 4), (2, 2))} | {(0, 4, 1)}
    assert ways == {(*way, how) for way in expected for how in ("reduce-each", "hold")}
    held = [s for s in strategies if s.accumulate == "hold"]
    assert all(s.micro_batch * 4 < job.global_batch for s in held)
    assert max(Counter(strategies).values()) == 1


def test_holding_gradients_takes_more_where_they_are_sharded_or_in_buckets():
    job, cluster = on_devices(make_job(global_batch=16), draw(0)[1], 4)
    table = table_of(job, cluster)
    peaks = {
        strategy_at(job, table, row, "sdpa"): table.peak_bytes[row]
        for row in range(len(table.peak_bytes))
    }
    held = [s for s in peaks if s.accumulate == "hold"]
    twins = [msgspec.structs.replace(s, accumulate="reduce-each") for s in held]
    assert all(peaks[s] >= peaks[t] for s, t in zip(held, twins, strict=True))
    assert any(peaks[s] > peaks[t] for s, t in zip(held, twins, strict=True))
