"""When in a step a device of a pipeline may be at its fullest: what it holds as each work begins.

Of the works of one kind those that begin with more of everything are the fullest, so that a few
situations stand for a step of any length. Knows orders (``pipeline_orders.py``) and no bytes.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from brimful.cost.pipeline_orders import Row, order_of
from brimful.cost.stage_runs import Act
from brimful.pipeline_split import LOOPED, Schedule
from brimful.strategy import Zero

_ROUNDS = 3
"""Rounds of micro-batches after which a schedule repeats itself: warming up, and two in turn."""


class Situation(NamedTuple):
    """What a device holds when a work begins; tuples have one value per stage of the device.

    Attributes:
        chunk: The stage that works, among the device's.
        act: What it does.
        in_flight: Micro-batches whose activations are kept; a backward's own is among them.
        gathered: Whether the stage's blocks are whole.
        begun: Whether what is in no block has been gathered.
        made: Whether the stage has gradients.
        num_sent: Messages that live although they were sent.
    """

    chunk: int
    act: Act
    in_flight: tuple[int, ...]
    gathered: tuple[bool, ...]
    begun: tuple[bool, ...]
    made: tuple[bool, ...]
    num_sent: int


@cache
def situations(schedule: Schedule, row: Row, device: int, zero: Zero) -> tuple[Situation, ...]:
    """List the situations of a device's step that no other one contains.

    Args:
        schedule: The order of work; without split backwards.
        row: The shape of the pipeline.
        device: Which one.
        zero: Which states are sharded.
    """
    found: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for one in _walk(schedule, _shortened(schedule, row), device, zero):
        key = (one.chunk, one.act, one.gathered, one.begun, one.made, one.num_sent)
        found.setdefault(key, []).append(one.in_flight)
    return tuple(
        Situation(chunk, act, most, gathered, begun, made, sent)  # type: ignore[arg-type]
        for (chunk, act, gathered, begun, made, sent), held in found.items()
        for most in _largest(held)
    )


def _shortened(schedule: Schedule, row: Row) -> Row:
    """Return a shorter step in which a device is as full."""
    micro, devices = row.num_micro_batches, row.devices
    if schedule == "gpipe" or (schedule in LOOPED and micro % devices):
        return row
    return row._replace(num_micro_batches=min(micro, _ROUNDS * devices))


def _largest(held: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return those that are not within another one."""
    every = set(held)
    return [
        one for one in every
        if not any(one != other and all(a <= b for a, b in zip(one, other, strict=True))
                   for other in every)
    ]  # fmt: skip


def _walk(schedule: Schedule, row: Row, device: int, zero: Zero) -> Iterable[Situation]:
    num, is_sharded = row.chunks, zero in {2, 3}
    in_flight, gathered = [0] * num, [False] * num
    begun, made = [False] * num, [False] * num
    num_sent = 0
    sends_back = device > 0 or num > 1
    for operation in order_of(schedule, row, device):
        chunk, is_forward = operation.chunk, operation.kind == "forward"
        first = is_sharded and not begun[chunk] if is_forward else not made[chunk]
        act = Act(
            "forward" if is_forward else "backward", not is_sharded or gathered[chunk], first
        )
        yield Situation(
            chunk, act, tuple(in_flight), tuple(gathered), tuple(begun), tuple(made), num_sent
        )
        in_flight[chunk] += 1 if is_forward else -1
        gathered[chunk] = is_sharded and (not is_forward or zero == 2)  # noqa: PLR2004 - ZeRO-2
        begun[chunk] = is_sharded
        made[chunk] = made[chunk] or not is_forward
        if not is_forward and sends_back:
            num_sent = _sent(schedule, num_sent)


def _sent(schedule: Schedule, before: int) -> int:
    """Count the gradients that were sent and live: until the next one is, or until all are.

    1F1B keeps the list of what it sends until it makes the next one; GPipe waits for all at the
    end; what interleaved stages send is dropped before the next work.
    """
    return {"gpipe": before + 1, "1f1b": 1}.get(schedule, 0)
