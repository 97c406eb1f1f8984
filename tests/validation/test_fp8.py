"""Products in fp8 where parameters are sharded or replicated, in real processes."""

from functools import cache

import group_worker
import parallel_part
import pytest
import ranks_part
import torch
from cases import Case
from group import Turn, answers

from brimful.build.assemble import build_program
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import Strategy
from float8 import WHY

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason=WHY)

LOSS, NORM, PEAK = 1e-5, 1e-4, 0.005
GATHERED = 1e-3
"""FSDP2 gathers weights in bf16, and what is rounded twice is not what is rounded once."""
NUM_STEPS = 4
REPLICATED = ({"dp_replicate": 2}, {"dp_shard": 2, "zero": 1})
SHARDED = ({"dp_shard": 2, "zero": 2, "activation_checkpointing": "full"},
    {"dp_shard": 2, "zero": 3})  # fmt: skip


def case_of(layout):
    strategy = Strategy(**{**parallel_part._PLAIN, **layout})
    job = parallel_part.tiny_job("llama", 2 * strategy.micro_batch, {"precision": "fp8"})
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


@cache
def losses():
    """Return the losses and norms of every layout, and those of one process."""
    cases = [case_of(layout) for layout in (*REPLICATED, *SHARDED)]
    told = answers([Turn(case=case, num_steps=NUM_STEPS) for case in cases], num_processes=2)
    alone = Strategy(**parallel_part._PLAIN)
    program = build_program(cases[0].job, alone, torch.device("cpu"))
    right = [group_worker._step_alone(program, step) for step in range(NUM_STEPS)]
    return [list(zip(of[0].losses, of[0].norms, strict=True)) for of in told], right


def farthest(steps, right, column):
    pairs = zip(steps, right, strict=True)
    return max(abs(mine[column] / other[column] - 1) for mine, other in pairs)


@pytest.mark.long
def test_replicas_are_one_device():
    found, right = losses()
    for steps in found[: len(REPLICATED)]:
        assert farthest(steps, right, 0) <= LOSS
        assert farthest(steps, right, 1) <= NORM


def test_shards_round_their_weights_to_bf16_first():
    found, right = losses()
    two, three = found[len(REPLICATED) :]
    assert farthest(two, three, 0) <= LOSS
    assert 0 < farthest(three, right, 0) <= GATHERED
    assert farthest(three, right, 1) <= 10 * GATHERED


@pytest.mark.long
def test_each_process_takes_what_its_rank_takes_in_simulation():
    plain, changes = ranks_part.PLAIN, {"precision": "fp8"}
    layouts = (REPLICATED[0], SHARDED[1])
    rows = ranks_part.compare(
        [ranks_part.case_of("llama", {**plain, **layout}, changes) for layout in layouts]
    )
    assert len(rows) == 2 * len(layouts)
    for row in rows:
        assert abs(row.peak_error) <= PEAK, row
        assert ranks_part.other_messages(row) == []
