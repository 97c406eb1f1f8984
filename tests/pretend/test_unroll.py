"""An unrolled tape is the tape of the whole model, event by event, for every family."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tests import samples
from tests.pretend.deep_models import FAMILIES, make_config, trace

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import replay
from brimful.pretend.blocks import NotPeriodicError, Pattern
from brimful.pretend.unroll import MIN_UNITS, unroll_blocks
from brimful.simulate import run as simulation

pytestmark = pytest.mark.torch

NUM_UNITS = 6
FEWER_UNITS = 6
"""Of two blocks each."""
PERIODS = {"gemma2": 2, "gpt_oss": 2}
PREFIXES = {"deepseek_v3": 2}


def allocations(recording):
    """Everything that a row says, by name instead of by number."""
    columns = [
        recording.num_bytes,
        np.array(recording.items)[recording.item],
        recording.stream,
        np.array(recording.owners)[recording.owner],
        np.array(recording.ops)[recording.op],
        np.array(recording.nodes)[recording.node],
        np.array(recording.lines)[recording.line],
        np.array(recording.phases)[recording.phase],
        [recording.shapes[i] for i in recording.shape_dtype],
        recording.born,
        recording.died,
        recording.in_use_until,
    ]
    return list(zip(*(list(column) for column in columns), strict=True))


def multiset(recording):
    return Counter(row[:4] for row in allocations(recording))


def at_boundaries(recording):
    """Live bytes wherever what happens passes from one module to another."""
    rows = np.where(recording.events >= 0, recording.events, ~recording.events)
    owners = [recording.owners[i] for i in recording.owner[rows]]
    edges = [i for i, (a, b) in enumerate(pairwise(owners)) if a != b]
    return [(owners[i], int(b)) for i, b in zip(edges, recording.live_bytes()[edges], strict=True)]


def reserved_bytes(recording, settings):
    requests = recording.requests()
    return replay(
        requests, settings=parse_settings(settings), capacity_bytes=None
    ).peak_reserved_bytes


def work(recording):
    """Operations, FLOPs and bytes moved, phase by phase and operation by operation."""
    found = Counter()
    for cost in recording.costs:
        place = recording.phases[cost.phase], cost.op
        found[*place, "count"] += 1
        found[*place, "flops"] += cost.matrix_flops + cost.attention_flops
        found[*place, "bytes"] += sum(cost.moved_bytes)
    return found


def assert_same(unrolled, full):
    assert at_boundaries(unrolled) == at_boundaries(full)
    assert unrolled.live_bytes().max() == full.live_bytes().max()
    assert multiset(unrolled) == multiset(full)
    for settings in ("", "expandable_segments:True"):
        expected = reserved_bytes(full, settings)
        assert abs(reserved_bytes(unrolled, settings) - expected) <= 1e-3 * expected
    # And more than was asked for: nothing differs at all.
    assert np.array_equal(unrolled.events, full.events)
    assert allocations(unrolled) == allocations(full)
    assert unrolled.phases == full.phases
    for name in ("phase_starts", "marks", "cache_flushes"):
        assert np.array_equal(getattr(unrolled, name), getattr(full, name)), name
    assert work(unrolled) == work(full)


def unrolled_and_full(family, *, num_units, **how):
    period = PERIODS.get(family, 1)
    num_blocks = PREFIXES.get(family, 0) + num_units * period
    stack = "bert.encoder.layer" if family == "bert" else "model.layers"
    pattern = Pattern(stack=stack, num_prefix=PREFIXES.get(family, 0), period=period)
    deep, shallow = (pattern.num_prefix + rounds * period for rounds in (MIN_UNITS, 1))
    unrolled = unroll_blocks(
        trace(make_config(family, deep), **how),
        shallow=trace(make_config(family, shallow), **how),
        pattern=pattern,
        num_blocks=num_blocks,
    )
    return unrolled, trace(make_config(family, num_blocks), **how)


WAYS = {
    f"{kept}-{sharded}": {"checkpointing": kept == "recomputed", "reshard": reshard}
    for kept in ("kept", "recomputed")
    for sharded, reshard in (("whole", None), ("zero3", True), ("zero2", False))
}


SHOWN = {
    "llama": "recomputed-zero3",
    "deepseek_v3": "kept-whole",
}
"""What ``make test`` unrolls: one kind of block, others before the repeated.

Two that alternate are unrolled in simulate/test_unrolled.py.
"""


@pytest.mark.parametrize(
    ("family", "way"),
    [
        pytest.param(family, way, marks=() if SHOWN.get(family) == way else pytest.mark.long)
        for family in FAMILIES
        for way in WAYS
    ],
)
def test_blocks_unroll_to_the_whole_model(family, way):
    how = WAYS[way]
    num_units = FEWER_UNITS if family in PERIODS else NUM_UNITS
    assert_same(*unrolled_and_full(family, num_units=num_units, **how))


@pytest.mark.long
@pytest.mark.parametrize("reshard", [True, False])
def test_blocks_unroll_in_a_hybrid_mesh_with_several_micro_batches(reshard):
    how = {"reshard": reshard, "mesh_shape": (2, 4), "num_micro_batches": 2}
    assert_same(*unrolled_and_full("llama", num_units=12, **how))


def own_trace(monkeypatch, num_blocks, num_micro_batches, *, num_steps=2, **changes):
    """Trace the program that ``brimful train`` runs, with what each operation costs."""
    monkeypatch.setattr(simulation, "MAX_MICRO_BATCHES", num_micro_batches)
    model = samples.make_model("llama", num_hidden_layers=num_blocks)
    job = samples.make_job(model=model, global_batch=2 * num_micro_batches, **changes)
    return simulation.trace(
        job, samples.make_strategy(), imitate="cuda", count_costs=True, num_steps=num_steps
    ).recording


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_costs_of_blocks_unroll(monkeypatch, precision):
    deep, shallow, whole = (
        own_trace(monkeypatch, n, 2, precision=precision) for n in (4, 1, NUM_UNITS)
    )
    pattern = Pattern(stack="model.layers", num_prefix=0, period=1)
    assert_same(unroll_blocks(deep, shallow=shallow, pattern=pattern, num_blocks=NUM_UNITS), whole)


def test_a_pattern_that_is_not_there_is_refused():
    deep, shallow = (trace(make_config("deepseek_v3", n)) for n in (5, 1))
    pattern = Pattern(stack="model.layers", num_prefix=0, period=1)
    with pytest.raises(NotPeriodicError):  # the shallow one has no block of the repeated kind
        unroll_blocks(deep, shallow=shallow, pattern=pattern, num_blocks=9)
