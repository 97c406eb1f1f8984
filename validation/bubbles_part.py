"""How long devices of a pipeline wait: the replay of a schedule beside real processes.

Stages are slowed down (each sleeps in its forward and backward), so that what two cores can do
matters little; what a message takes is measured beforehand. torch's own schedules run them.
"""

from itertools import groupby
from typing import Any

from cases import Case
from evidence import Summary, describe_case, relative, spread_of
from group import Told, Turn, answers
from group_rows import BubbleRow
from parallel_part import size_of, tiny_job

from brimful.cost.pipeline_orders import Operation
from brimful.cost.pipeline_replay import Replay, replay
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import Strategy

BAR = 0.1
SECONDS = (0.8, 1.6)
"""Of one micro-batch through a device, forward and backward."""
_ROWS: tuple[dict[str, Any], ...] = (
    {"pp_schedule": "gpipe"},
    {"pp_schedule": "1f1b"},
    {"pp_schedule": "interleaved", "stages_per_device": 2},
    {"pp_schedule": "zero-bubble", "stages_per_device": 2},
    {"pp_schedule": "zbv", "stages_per_device": 2},
    {"pp_schedule": "dualpipev", "stages_per_device": 2},
)
_SLOWER = 1.5
NUM_QUICK_CASES = 2


def cases() -> list[tuple[Case, tuple[tuple[float, float], ...]]]:
    """List pipelines of two and of four devices, and how long each device works."""
    found = []
    for devices in (2, 4):
        even = (SECONDS,) * devices
        found += [(_case(devices, row), even) for row in _ROWS]
        slow = tuple(_SLOWER * seconds for seconds in SECONDS)
        found.append((_case(devices, _ROWS[1]), (SECONDS, slow, *even[2:])))
    return found


def _case(devices: int, row: dict[str, Any]) -> Case:
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa",
        pp=devices, **row,
    )  # fmt: skip
    job = tiny_job("tied row", 2 * devices, {})
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


def run(*, seed: int, quick: bool) -> tuple[list[BubbleRow], Summary]:
    """Time every case and replay it; nothing is drawn."""
    del seed
    every = cases()
    rows = compare(every[:NUM_QUICK_CASES] if quick else every)
    return rows, _summarize(rows)


def compare(chosen: list[tuple[Case, tuple[tuple[float, float], ...]]]) -> list[BubbleRow]:
    """Time cases, those of as many devices in one group."""
    rows = []
    ordered = sorted(chosen, key=lambda pair: size_of(pair[0]))
    for size, group in groupby(ordered, key=lambda pair: size_of(pair[0])):
        turns = [Turn(case=case, num_steps=0, slowed_s=slowed) for case, slowed in group]
        told = answers(turns, num_processes=size)
        rows += [_row(turn, of) for turn, of in zip(turns, told, strict=True)]
    return rows


def _row(turn: Turn, told: list[Told]) -> BubbleRow:
    strategy = turn.case.strategy
    ran = replay(
        strategy.pp_schedule,
        num_micro_batches=turn.case.job.global_batch,
        stage_s=turn.slowed_s,
        send_s=told[0].message_s,
        chunks=strategy.stages_per_device,
    )
    step_s = max(one.step_s for one in told)
    busy_s = sum(op.end_s - op.start_s for one in told for op in one.happened)
    measured = 1 - busy_s / (step_s * len(told))
    return BubbleRow(
        case=turn.case,
        slowed_s=turn.slowed_s,
        message_s=told[0].message_s,
        predicted_bubble_share=ran.bubble_share,
        measured_bubble_share=measured,
        share_error=relative(ran.bubble_share, measured),
        predicted_step_s=ran.total_s,
        measured_step_s=step_s,
        has_same_order=_has_same_order(ran, told),
    )


def _has_same_order(ran: Replay, told: list[Told]) -> bool:
    """Whether every device did what the replay says, in its order."""
    predicted = [
        [d.operation._replace(is_overlapped=False) for d in ran.done if d.device == i]
        for i in range(len(told))
    ]
    measured = [
        [Operation(op.kind, op.micro_batch, op.chunk) for op in one.happened]  # type: ignore[arg-type]
        for one in told
    ]
    return predicted == measured


def _summarize(rows: list[BubbleRow]) -> Summary:
    steps = [relative(row.predicted_step_s, row.measured_step_s) for row in rows]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("bubble", [row.share_error for row in rows]),
            spread_of("step", steps),
        ),
        bars=(
            f"the idle share of a step within {BAR:.0%} of the measured one",
            "every device does what the replay says, in its order",
        ),
        findings=(),
        missed=tuple(
            f"{what}: {describe_case(row.case)}" for row in rows for what in _other_than(row)
        ),
    )


def _other_than(row: BubbleRow) -> list[str]:
    found = [] if abs(row.share_error) <= BAR else [f"bubble {row.share_error:+.1%}"]
    return found if row.has_same_order else [*found, "another order"]
