"""When in a step a device of a pipeline may be at its fullest: what it holds as each work begins.

Of the works of one kind those that begin with more of everything are the fullest, so that a few
situations stand for a step of any length. Knows orders (``pipeline_orders.py``) and no bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice, repeat
from operator import le
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.pipeline_orders import Row, order_of
from brimful.cost.stage_runs import REDUCES, Act, Phase
from brimful.techniques.parallel.stages import LOOPED, Schedule
from brimful.values.strategy import Zero

_ROUNDS = 3
"""Rounds of micro-batches after which a schedule repeats itself: warming up, and two in turn."""


_MAX_ACTIVE = 3
"""Stages of a device that are whole, or are gathered ahead (``max_active_stages``)."""


class Turn(NamedTuple):
    """Which stages a device gives up before a work, and which it gathers ahead."""

    evicted: list[int]
    fetched: list[int]


_NO_TURN = Turn([], [])


class Situation(NamedTuple):
    """What a device holds when a work begins; tuples have one value per stage of the device.

    Attributes:
        chunk: The stage that works, among the device's.
        act: What it does.
        in_flight: Micro-batches whose activations are kept; a backward's own is among them.
        gathered: Whether the stage's blocks are whole.
        begun: Whether what is in no block has been gathered.
        made: Whether the stage has whole gradients.
        reduced: Whether it has shards of them instead.
        ahead: Whether buffers of all of the stage's parameters are filled, ahead of its turn.
        num_sent: Messages that live although they were sent.
    """

    chunk: int
    act: Act
    in_flight: tuple[int, ...]
    gathered: tuple[bool, ...]
    begun: tuple[bool, ...]
    made: tuple[bool, ...]
    reduced: tuple[bool, ...]
    ahead: tuple[bool, ...]
    num_sent: int


@cache
def situations(
    schedule: Schedule, row: Row, device: int, zero: Zero, *, keeps_waited: bool
) -> tuple[Situation, ...]:
    """List the situations of a device's step that no other one contains.

    ``schedule``: the order of work; without split backwards. ``keeps_waited``: whether what was
    sent lives as long as its work (gloo), and not only until that was waited for (NCCL).
    """
    short = shortened(schedule, row)
    found: dict[Situation, list[tuple[int, ...]]] = {}
    for one in every_situation(schedule, short, device, zero, keeps_waited=keeps_waited):
        is_late = all(x or y for x, y in zip(one.made, one.reduced, strict=True))
        later = (row.num_micro_batches - short.num_micro_batches) * is_late
        sent = one.num_sent + later * num_kept(schedule, row, device)
        kind = one._replace(in_flight=(), num_sent=0)
        found.setdefault(kind, []).append((*one.in_flight, sent))
    return tuple(
        kind._replace(in_flight=most[:-1], num_sent=most[-1])
        for kind, held in found.items()
        for most in _largest(held)
    )


@cache
def multiples(every: tuple[Situation, ...]) -> NDArray[np.float64]:
    """Count what is there in each situation: messages, then six things of every stage.

    Returns [situations, 1 + 6 x stages]: micro-batches in flight, then flags in the order of the
    value.
    """
    return np.array([
        [now.num_sent, *chain.from_iterable(zip(*now[2:8], strict=True))] for now in every
    ], dtype=np.float64)  # fmt: skip


def shortened(schedule: Schedule, row: Row) -> Row:
    """Return a shorter step in which a device is as full."""
    micro, devices = row.num_micro_batches, row.devices
    if schedule == "gpipe" or (schedule in LOOPED and micro % devices):
        return row
    return row._replace(num_micro_batches=min(micro, _ROUNDS * devices))


def _largest(held: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return those that are not within another one."""
    every, largest = set(held), list[tuple[int, ...]]()
    for one in sorted(every, key=sum, reverse=True):  # what holds another one comes before it
        if not any(all(map(le, one, other)) for other in largest):
            largest.append(one)
    return [one for one in every if one in largest]


def turns_of(order: Sequence[int]) -> Iterator[Turn]:
    """Yield which stages torch's runtime gives up and gathers ahead before each work.

    ``order``: the stage of each work, numbered on the device.

    Source: ``_add_unshard_reshard`` of ``torch/distributed/pipelining/schedules.py``.
    """
    active = set[int]()
    for place in range(len(order)):
        ahead = list(islice(dict.fromkeys(order[place:]), _MAX_ACTIVE))
        turn = Turn(
            evicted=[chunk for chunk in active if chunk not in ahead],
            fetched=[chunk for chunk in ahead if chunk not in active],
        )
        active.difference_update(turn.evicted)
        active.update(turn.fetched)
        yield turn


def every_situation(
    schedule: Schedule, row: Row, device: int, zero: Zero, *, keeps_waited: bool
) -> Iterable[Situation]:
    """Yield what a device does in a step, in order; see ``situations``."""
    num, is_sharded = row.chunks, zero in {2, 3}
    in_flight, gathered = [0] * num, [False] * num
    begun, made, reduced, ahead = ([False] * num for _ in range(4))
    num_sent, left = 0, [row.num_micro_batches] * num
    order = order_of(schedule, row, device)
    is_ahead = is_sharded and schedule in LOOPED
    turns = turns_of([each.chunk for each in order]) if is_ahead else repeat(_NO_TURN)

    def now(chunk: int, act: Act) -> Situation:
        flags = (tuple(gathered), tuple(begun), tuple(made), tuple(reduced), tuple(ahead))
        return Situation(chunk, act, tuple(in_flight), *flags, num_sent)

    for operation, turn in zip(order, turns, strict=False):
        chunk, is_forward = operation.chunk, operation.kind == "forward"
        for given_up in turn.evicted:
            gathered[given_up] = begun[given_up] = False
        for fetched in turn.fetched:
            ahead[fetched] = True
        if ahead[chunk]:
            ahead[chunk], gathered[chunk], begun[chunk] = False, True, True
        first = is_sharded and not begun[chunk] if is_forward else not made[chunk]
        phase: Phase = "forward" if is_forward else "backward"
        yield now(chunk, Act(phase, not is_sharded or gathered[chunk], first))
        in_flight[chunk] += 1 if is_forward else -1
        gathered[chunk] = is_sharded and (not is_forward or zero == 2)  # noqa: PLR2004 - ZeRO-2
        begun[chunk] = is_sharded
        made[chunk] = made[chunk] or not is_forward
        if is_forward:
            continue
        num_sent = _sent(schedule, row, (device, chunk), num_sent)
        left[chunk] -= 1
        done = row.num_micro_batches - left[chunk]
        if keeps_waited and device < row.devices - 1 and schedule not in LOOPED:
            num_sent += _kept_by_work(schedule, row, device, done)
        if is_sharded and not left[chunk]:
            yield now(chunk, REDUCES)
            gathered[chunk] = begun[chunk] = made[chunk] = False
            reduced[chunk] = True


def _sent(schedule: Schedule, row: Row, place: tuple[int, int], before: int) -> int:
    """Count what was sent and lives behind a backward of a device's stage.

    1F1B keeps the gradient that it sends until it sends the next one; GPipe waits for all at the
    end; interleaved stages wait at the end for all that they ever sent, results too.
    """
    device, chunk = place
    goes_back = device > 0 or chunk > 0
    went_on = device < row.devices - 1 or chunk < row.chunks - 1
    if schedule == "1f1b":
        return int(goes_back)
    return before + goes_back + (went_on and schedule in LOOPED)


def _kept_by_work(schedule: Schedule, row: Row, device: int, done: int) -> bool:
    """Whether a finished send keeps the result of a micro-batch that went backward meanwhile.

    GPipe has the works of all forwards until the end, 1F1B that of the last but one of warming up.
    """
    warm = min(row.num_micro_batches, row.devices - device)
    return schedule == "gpipe" or done >= warm - 1


def num_kept(schedule: Schedule, row: Row, device: int) -> int:
    """Count what of a micro-batch lives on behind its backwards."""
    if schedule not in LOOPED:
        return 0
    return sum(_sent(schedule, row, (device, chunk), 0) for chunk in range(row.chunks))
