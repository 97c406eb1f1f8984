"""Cells of the sampler: what goes together, and that a cover has every pair that does."""

import itertools
import random
from collections import Counter

import cells
import pytest
import sampler

from brimful.values.strategy import Strategy, world_size

SOME = {
    "architecture": ("llama", "gpt2-tied"),
    "precision": ("bf16", "bf16-master"),
    "checkpointing": ("none", "selective"),
    "attention": ("sdpa", "eager"),
    "accumulation": ("1", "held"),
    "kernels": ("cpu", "cuda"),
    "method": ("full", "qlora"),
    "optimizer": ("adamw", "adafactor"),
    "axis": (cells.ONE, "zero 1", "zero 3", "tp", "ep"),
}
PLAIN = {
    "architecture": "llama", "precision": "bf16", "checkpointing": "none", "attention": "sdpa",
    "accumulation": "1", "kernels": "cuda", "method": "full", "optimizer": "adamw",
    "axis": cells.ONE,
}  # fmt: skip


def every(factors):
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def test_the_possible_pairs_are_those_of_the_cells_that_are_not_refused():
    slowly = set()
    for cell in every(SOME):
        if not cells.refusal_of(cell):
            slowly |= cells.pairs_of(cell)
    assert cells.possible_pairs(SOME) == slowly


def test_a_cover_has_every_possible_pair_and_no_refused_cell():
    cover = cells.pairwise_cover(random.Random(3), SOME)  # noqa: S311 - cases, not secrets
    assert set().union(*map(cells.pairs_of, cover)) == cells.possible_pairs(SOME)
    assert not any(map(cells.refusal_of, cover))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"axis": "zero 3"}, ""),
        ({"axis": "tp"}, "tp: no formula"),
        ({"axis": "pp"}, "pp: no formula"),
        ({"axis": "ep"}, "ep: not planned by this version"),
        ({"axis": "offload"}, "offload: not planned by this version"),
        ({"accumulation": "held"}, "one device: nothing to hold"),
        ({"axis": "zero 1", "precision": "bf16-master"}, ""),
        ({"axis": "hybrid 2", "method": "qlora"}, ""),
        ({"axis": "zero 2", "optimizer": "adamw-8bit"}, ""),
        ({"axis": "zero 2", "optimizer": "adafactor"}, "its kernels take no shards"),
        (
            {"axis": "zero 3", "precision": "fp16-mixed", "attention": "eager"},
            "ZeRO-2 and 3 of a mixed recipe, written-out attention: no profile",
        ),
        ({"optimizer": "adafactor"}, ""),
        ({"method": "lora", "kernels": "cpu"}, "no profile of such a program"),
    ],
)
def test_a_refusal_has_its_reason(changes, reason):
    found = cells.refusal_of({**PLAIN, **changes})
    assert reason in found
    assert bool(reason) == bool(found)


def test_mixed_recipes_run_what_pure_ones_do_once_gathered():
    mixed = {**PLAIN, "precision": "bf16-mixed"}
    assert cells.program_of_cell({**mixed, "axis": "zero 1"}).precision == "bf16-mixed"
    assert cells.program_of_cell({**mixed, "axis": "hybrid 3"}).precision == "bf16"


@pytest.mark.parametrize("axis", [
    axis for axis in cells.ALL_FACTORS["axis"] if axis not in {"tp", "pp", "ep", "offload"}
])  # fmt: skip
def test_an_axis_is_that_of_its_strategy(axis):
    spread = cells.spread_of(axis, num_shards=4, num_replicas=3)
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa",
        **spread._asdict(),
    )  # fmt: skip
    assert cells.axis_of(strategy) == axis
    sizes = {cells.ONE: 1, "zero 0": 3, "hybrid 2": 12, "hybrid 3": 12}
    assert world_size(strategy) == sizes.get(axis, 4)


def test_worlds_are_drawn_from_2_to_1024():
    rng = random.Random(0)  # noqa: S311 - cases, not secrets
    axes = ("zero 0", "zero 3", "hybrid 2")
    drawn = [sampler._draw_spread(rng, axis) for axis in axes for _ in range(300)]
    sizes = [spread.dp_replicate * spread.dp_shard for spread in drawn]
    assert min(sizes) == 2
    assert 500 < max(sizes) <= 1024
    assert Counter(size < 46 for size in sizes[:600])[True] == pytest.approx(300, abs=60)
