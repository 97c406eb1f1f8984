"""Hot experts, planted: the alarm, and the peak of every device beside its simulation.

A part of the tokens of one block is made to choose given experts. Each process is metered, and
simulated with the rows that its experts got when they got most, which is what a run keeps
(``ExpertRow.received``). Beside them runs without anything planted, in which nothing may be said.
"""

from itertools import groupby
from typing import Any

from cases import Case
from evidence import Summary, describe_case, relative, spread_of
from group import Plant, Told, Turn, answers
from group_rows import RoutingRow
from progress import shown
from ranks_part import PLAIN, case_of
from sampler import cluster_of

from brimful.models.config import experts_of
from brimful.simulate.run import simulate
from brimful.techniques.parallel.routing import Routing
from brimful.train.expert_load import loads_of
from brimful.values.strategy import Strategy, world_size

BAR = 0.01
NUM_READINGS = 2
NUM_QUICK_CASES = 1
_BLOCK = 1
_PACKINGS = ("none", "wrapped")
"""Rows with padding, which all goes one way and is not counted, and full ones, in turn."""
_ALL, _MOST = (Plant(block=_BLOCK, experts=(5,), share=share) for share in (1.0, 0.75))
_TWO = Plant(block=_BLOCK, experts=(5, 2), share=1.0)
_WAYS: tuple[tuple[str, dict[str, Any], tuple[Plant | None, ...]], ...] = (
    ("mixtral", {"ep": 2, "dp_shard": 2, "zero": 3}, (None, _ALL, _MOST, _TWO)),
    ("mixtral", {"ep": 2, "tp": 2}, (None, _ALL)),
    (
        "qwen3_moe",
        {"ep": 2, "dp_shard": 2, "zero": 2, "activation_checkpointing": "full"},
        (None, _ALL),
    ),
    ("deepseek_v3", {"ep": 2, "dp_shard": 2, "zero": 3, "loss_chunks": 4}, (None, _ALL)),
    ("gpt_oss", {"ep": 2, "dp_shard": 2, "zero": 3, "attention": "eager"}, (None, _ALL)),
    ("mixtral", {"ep": 4, "dp_shard": 4, "zero": 3}, (None, _ALL, _MOST, _TWO)),
    ("qwen3_moe", {"ep": 4, "tp": 2, "dp_shard": 2, "zero": 3}, (None, _ALL)),
    ("mixtral", {"ep": 2, "dp_shard": 2, "zero": 3, "pp": 2, "accumulate": "hold"}, (None, _ALL)),
)


def cases() -> list[tuple[Case, Plant | None]]:
    """List every layout with everything that is planted in it."""
    return [
        (case_of(kind, {**PLAIN, **ways}, {"packing": _PACKINGS[place % 2]}), planted)
        for place, (kind, ways, plants) in enumerate(_WAYS)
        for planted in plants
    ]


def run(*, seed: int, quick: bool) -> tuple[list[RoutingRow], Summary]:
    """Meter every process of every case, then simulate each rank; nothing is drawn."""
    del seed
    every = cases()
    rows = compare(every[:NUM_QUICK_CASES] if quick else every)
    return rows, _summarize(rows)


def compare(chosen: list[tuple[Case, Plant | None]]) -> list[RoutingRow]:
    """Meter cases, those of as many devices in one group, and simulate each rank."""
    rows = []
    by_size = sorted(chosen, key=_size)
    for size, group in groupby(by_size, key=_size):
        turns = [
            Turn(
                case=case,
                num_steps=0,
                num_readings=NUM_READINGS,
                planted=planted,
                watches_experts=True,
            )
            for case, planted in group
        ]
        told = answers(turns, num_processes=size)
        for turn, of in shown(f"{size} ranks", list(zip(turns, told, strict=True))):
            rows += [_row(turn, rank, seen) for rank, seen in enumerate(of)]
    return rows


def _size(pair: tuple[Case, Plant | None]) -> int:
    return world_size(pair[0].strategy)


def _row(turn: Turn, rank: int, seen: Told) -> RoutingRow:
    assert seen.experts is not None
    assert seen.peak_bytes is not None
    case, received = turn.case, seen.experts.received[rank]
    asked = (case.job, cluster_of(case.kernels), case.strategy)
    simulated, received = max(
        (simulate(*asked, rank=rank, routing=way).simulated_peak_allocated_bytes, way.received)
        for way in _ways(case.strategy, received)
    )
    balanced = simulate(*asked, rank=rank)
    return RoutingRow(
        case=case,
        rank=rank,
        planted_block=None if turn.planted is None else turn.planted.block,
        planted_experts=() if turn.planted is None else turn.planted.experts,
        planted_share=0.0 if turn.planted is None else turn.planted.share,
        received=received,
        troubles=tuple(
            f"{load.trouble} {load.block}" for load in loads_of(seen.experts) if load.trouble
        ),
        alarms=seen.alarms,
        simulated_peak_allocated_bytes=simulated,
        simulated_balanced_bytes=balanced.simulated_peak_allocated_bytes,
        measured_peak_allocated_bytes=seen.peak_bytes,
        peak_error=relative(simulated, seen.peak_bytes),
    )


def _ways(strategy: Strategy, received: tuple[tuple[int, ...], ...]) -> list[Routing]:
    """Return the routing of each metered step; of a pipeline that of the heaviest."""
    if strategy.pp > 1:
        return [Routing(received=received)]
    steps = range(len(received[0]))
    return [Routing(received=tuple(rows[n : n + 1] for rows in received)) for n in steps]


def _summarize(rows: list[RoutingRow]) -> Summary:
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("peak", [row.peak_error for row in rows]),
            spread_of("balanced", [_balanced_error(row) for row in rows]),
        ),
        bars=(
            f"each process's peak within {BAR:.0%} of the simulation of the routing that it saw",
            "every planted expert is named, and nothing is said where none is planted",
        ),
        findings=("`balanced` is what the simulation of balanced routing would be off by",),
        missed=tuple(
            f"{what}, rank {row.rank}: {describe_case(row.case)}"
            for row in rows
            for what in _missed(row)
        ),
    )


def _balanced_error(row: RoutingRow) -> float:
    return relative(row.simulated_balanced_bytes, row.measured_peak_allocated_bytes)


def _missed(row: RoutingRow) -> list[str]:
    found = [] if abs(row.peak_error) <= BAR else [f"{row.peak_error:+.2%}"]
    if is_named(row):
        return found
    return [*found, f"said {row.alarms} of experts {row.planted_experts}"]


def is_named(row: RoutingRow) -> bool:
    """Whether the alarm names the planted block and expert and no other; silence where none is."""
    if row.planted_block is None:
        return not row.alarms
    # All that a token may choose leaves its router nothing else to do.
    num_choices = experts_of(row.case.job.model).num_experts_per_token
    kind = "collapsed" if len(row.planted_experts) >= num_choices else "hot"
    said = " ".join(row.alarms)
    names = any(f"expert {expert}" in said for expert in row.planted_experts)
    return row.troubles == (f"{kind} {row.planted_block}",) and names
