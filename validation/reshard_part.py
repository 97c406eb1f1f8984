"""Checkpoints of one layout that another goes on from: the next losses beside the unstopped run."""

import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cases import Case
from evidence import Summary, describe_case
from group import Told, Turn, answers
from group_rows import ReshardRow
from parallel_part import tiny_job
from parity_part import ADAPTER
from parity_summary import LOSS_BAR, NORM_BAR, farthest, parity_summary

from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.strategy import Strategy, world_size

NUM_BEFORE, NUM_AFTER = 3, 2
NUM_QUICK_PAIRS = 2
GLOBAL_BATCH = 8
_WAYS: dict[str, dict[str, Any]] = {
    "one": {},
    "ddp2": {"dp_replicate": 2},
    "ddp4": {"dp_replicate": 4},
    "zero1x2": {"dp_shard": 2, "zero": 1},
    "zero1x4": {"dp_shard": 4, "zero": 1},
    "zero2x2": {"dp_shard": 2, "zero": 2},
    "zero3x2": {"dp_shard": 2, "zero": 3},
    "zero3x4": {"dp_shard": 4, "zero": 3},
    "zero3x2host": {"dp_shard": 2, "zero": 3, "offload": "optimizer"},
    "hybrid": {"dp_shard": 2, "dp_replicate": 2, "zero": 3},
    "tp2": {"tp": 2},
    "tp2zero3": {"tp": 2, "dp_shard": 2, "zero": 3},
    "pp2": {"pp": 2},
    "pp4": {"pp": 4},
    "pp2zbv": {"pp": 2, "pp_schedule": "zbv", "stages_per_device": 2},
    "pp2zero3": {"pp": 2, "dp_shard": 2, "zero": 3, "accumulate": "hold"},
    "ep2": {"ep": 2, "dp_shard": 2, "zero": 3},
    "ep2x4": {"ep": 2, "dp_shard": 4, "zero": 2},
    "ep4": {"ep": 4, "dp_shard": 4, "zero": 3},
    "ep2tp2": {"ep": 2, "tp": 2},
    "ep2pp2": {"ep": 2, "dp_shard": 2, "zero": 3, "pp": 2, "accumulate": "hold"},
}
_PAIRS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("llama", "ddp4", "tp2", {}),
    ("llama", "zero3x4", "zero1x2", {}),
    ("llama", "zero3x4", "zero3x2", {}),
    ("llama", "zero1x2", "zero3x4", {}),
    ("llama", "zero3x2", "zero1x2", {}),
    ("llama", "ddp2", "one", {}),
    ("llama", "one", "zero3x2", {}),
    ("llama", "hybrid", "ddp2", {}),
    ("llama", "tp2zero3", "zero2x2", {}),
    ("llama", "tp2", "one", {}),
    ("llama", "zero2x2", "tp2zero3", {}),
    ("llama", "zero3x2host", "zero1x2", {}),
    ("llama", "zero3x4", "zero3x2host", {}),
    ("llama", "zero3x2host", "zero3x2host", {"precision": "bf16-master"}),
    ("wide", "zero3x2", "zero3x2", {"optimizer": "adamw-8bit"}),
    ("wide", "zero3x2", "tp2zero3", {"optimizer": "sgd"}),
    ("wide", "zero3x2", "one", {"optimizer": "muon"}),
    ("llama", "zero3x4", "ddp2", {"method": "lora", "adapter": ADAPTER}),
    ("tied row", "pp2", "one", {}),
    ("tied row", "one", "pp4", {}),
    ("tied row", "pp2zero3", "pp2zbv", {}),
    ("tied row", "pp2zbv", "ddp2", {}),
    ("row", "zero3x4", "pp2zero3", {"method": "lora", "adapter": ADAPTER}),
    ("tied row", "pp2", "ddp2", {"method": "lora", "adapter": ADAPTER}),
    ("tied row", "ddp2", "pp2", {"method": "lora", "adapter": ADAPTER}),
    ("gpt2", "zero1x4", "zero3x2", {}),
    ("gpt2", "zero3x2", "zero1x4", {}),
    ("mixtral", "ep4", "one", {}),
    ("mixtral", "zero3x4", "ep2", {}),
    ("mixtral", "ep2tp2", "ep4", {}),
    ("mixtral", "ep2x4", "ep2pp2", {}),
    ("qwen3_moe", "ep2pp2", "zero3x2", {}),
    ("deepseek_v3", "one", "ep2x4", {}),
    ("deepseek_v3", "ep4", "ep2", {}),
)


class Pair(NamedTuple):
    """What saves, and what goes on; their names are the kind of model and the two layouts."""

    names: tuple[str, str, str]
    case: Case
    then: Case


def pairs() -> list[Pair]:
    """List the pairs."""
    return [
        Pair((kind, before, after), _case(job, before), _case(job, after))
        for kind, before, after, changes in _PAIRS
        for job in (tiny_job(kind, GLOBAL_BATCH, changes),)
    ]


def _case(job: Job, ways: str) -> Case:
    plain = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa"
    )
    strategy = check_strategy(job, msgspec.structs.replace(plain, **_WAYS[ways]))
    return Case(job=job, strategy=strategy, kernels="cpu")


def run(*, seed: int, quick: bool) -> tuple[list[ReshardRow], Summary]:
    """Train, save, go on; then load elsewhere and go on; nothing is drawn."""
    del seed
    every = pairs()
    rows = compare(every[:NUM_QUICK_PAIRS] if quick else every)
    return rows, _summarize(rows)


def compare(chosen: list[Pair]) -> list[ReshardRow]:
    """Run both halves of pairs, each half of as many devices in one group."""
    with tempfile.TemporaryDirectory() as name:
        first = [
            Turn(
                case=pair.case,
                num_steps=NUM_BEFORE + NUM_AFTER,
                save_to=str(Path(name) / str(number)),
                save_after=NUM_BEFORE,
            )
            for number, pair in enumerate(chosen)
        ]
        went_on = _all(first)
        second = [
            Turn(
                case=pair.then,
                first_step=NUM_BEFORE,
                num_steps=NUM_AFTER,
                load_from=told.saved,
            )
            for pair, told in zip(chosen, went_on, strict=True)
        ]
        loaded = _all(second)
    return [_row(*of) for of in zip(chosen, went_on, loaded, strict=True)]


def _all(turns: list[Turn]) -> list[Told]:
    """Run turns of any sizes; returns what the first process of each saw, in their order."""
    found: dict[int, Told] = {}
    numbered = sorted(enumerate(turns), key=lambda item: _size(item[1]))
    for size, group in groupby(numbered, key=lambda item: _size(item[1])):
        numbers, of_size = zip(*group, strict=True)
        for number, told in zip(numbers, answers(of_size, num_processes=size), strict=True):
            found[number] = told[0]
    return [found[number] for number in range(len(turns))]


def _size(turn: Turn) -> int:
    return world_size(turn.case.strategy)


def _row(pair: Pair, went_on: Told, loaded: Told) -> ReshardRow:
    return ReshardRow(
        case=pair.case,
        then=pair.then,
        num_steps=NUM_AFTER,
        loss_error=farthest(loaded.losses, went_on.losses[NUM_BEFORE:]),
        norm_error=farthest(loaded.norms, went_on.norms[NUM_BEFORE:]),
    )


def _summarize(rows: list[ReshardRow]) -> Summary:
    return parity_summary(
        rows,
        f"{NUM_AFTER} steps after a checkpoint was loaded into another layout, or into the same "
        f"where moments are rounded or on the host, loss within "
        f"{LOSS_BAR:g} and gradient norm within {NORM_BAR:g} of the run that went on",
        describe=lambda row: f"{describe_case(row.case)} to {describe_case(row.then)}",
    )
