"""Modules kept in fp32 where parameters are sharded or replicated, in real processes."""

from typing import Any

import group_worker
import msgspec
import parallel_part
import pytest
import ranks_part
import torch
from cases import Case
from group import Turn, answers

from brimful.build.assemble import build_program
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import Strategy, gathers

pytestmark = pytest.mark.torch

LOSS, NORM, PEAK = 1e-5, 1e-4, 0.005
NUM_STEPS = 4
ALL: dict[str, Any] = {"keep_fp32": ("model", "lm_head"), "precision": "bf16-mixed"}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"dp_replicate": 2},
    {"dp_shard": 2, "zero": 1},
    {"dp_shard": 2, "zero": 2, "activation_checkpointing": "full"},
    {"dp_shard": 2, "zero": 3},
    {"dp_shard": 2, "zero": 3, "accumulate": "hold"},
)
SOME: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"dp_shard": 2, "zero": 3}, {"precision": "bf16-mixed", "keep_fp32": ("norm", "mlp")}),
    ({"dp_shard": 2, "zero": 2, "loss_chunks": 4},
        {"precision": "bf16-master", "keep_fp32": ("lm_head", "layers.1")}),
    ({"dp_shard": 2, "zero": 3, "activation_checkpointing": "full"},
        {"precision": "bf16", "keep_fp32": ("input_layernorm", "down_proj")}),
    ({"dp_replicate": 2}, {"precision": "bf16", "keep_fp32": ("norm", "o_proj")}),
)  # fmt: skip


def parity_case(layout, changes=ALL):
    strategy = Strategy(**{**parallel_part._PLAIN, **layout})
    each = 3 if strategy.accumulate == "hold" else 1
    job = parallel_part.tiny_job("llama", 2 * strategy.micro_batch * each, changes)
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


def alone(job, precision):
    """Take the steps in one process: everything in fp32, or all but the states before the head.

    That is what is left to 16 bits where both modules are kept: bf16 hands the last states on in
    them, and so does FSDP2, which gathers for a mixed recipe what is not kept in 16 bits.
    """
    keep = ALL["keep_fp32"] if precision == "bf16" else ()
    same = msgspec.structs.replace(job, precision=precision, keep_fp32=keep)
    program = build_program(same, Strategy(**parallel_part._PLAIN), torch.device("cpu"))
    return [group_worker._step_alone(program, step) for step in range(NUM_STEPS)]


def errors(case, told):
    right = alone(case.job, "bf16" if gathers(case.strategy) else "fp32")
    pairs = zip(right, told.losses, told.norms, strict=True)
    shares = [(abs(loss / a - 1), abs(norm / b - 1)) for (a, b), loss, norm in pairs]
    return max(loss for loss, _ in shares), max(norm for _, norm in shares)


@pytest.mark.long
def test_everything_kept_is_what_one_device_makes_of_it():
    left = parity_case(LAYOUTS[3], {"precision": "bf16-mixed"})
    cases = [left, *(parity_case(layout) for layout in LAYOUTS)]
    told = answers([Turn(case=case, num_steps=NUM_STEPS) for case in cases], num_processes=2)
    found = [errors(case, of[0]) for case, of in zip(cases, told, strict=True)]
    assert found[0][1] > 10 * NORM  # where nothing is kept
    for case, (loss, norm) in zip(cases[1:], found[1:], strict=True):
        assert loss <= LOSS, case.strategy
        assert norm <= NORM, case.strategy


@pytest.mark.long
def test_each_process_takes_what_its_rank_takes_in_simulation():
    plain = ranks_part.PLAIN
    cases = [ranks_part.case_of("llama", {**plain, **ways}, changes) for ways, changes in SOME]
    rows = ranks_part.compare(cases)
    assert len(rows) == 2 * len(SOME)
    for row in rows:
        assert abs(row.peak_error) <= PEAK, row
        assert ranks_part.other_messages(row) == []
