"""A pipeline's step replayed operation by operation: slow, obvious, what closed forms are held to.

Each stage works through its own list in order; an operation begins when the stage is free and what
it needs has arrived. Messages travel beside the kernels.
"""

from collections.abc import Sequence
from typing import NamedTuple

from brimful.cost.pipeline import WEIGHT_SHARE
from brimful.cost.pipeline_orders import Operation, Row, order_of
from brimful.techniques.parallel.stages import Schedule, Split, stages_of_device

Ends = dict[tuple[str, int, int], float]
"""When the work of a kind on a micro-batch was done by a stage."""


class Done(NamedTuple):
    """One operation of a replay.

    Attributes:
        device: Which one did it.
        operation: What it did.
        start_s: When it began.
        end_s: When it was done.
    """

    device: int
    operation: Operation
    start_s: float
    end_s: float


class Replay(NamedTuple):
    """What happened.

    Attributes:
        total_s: Until the last device is done.
        busy_s: Of each device.
        in_flight: Micro-batches that each device kept at its fullest, in whole devices.
        done: Every operation, those of one device in order.
    """

    total_s: float
    busy_s: tuple[float, ...]
    in_flight: tuple[float, ...]
    done: tuple[Done, ...]

    @property
    def bubble_share(self) -> float:
        """The idle share of all devices' time, 0 to 1."""
        return 1 - sum(self.busy_s) / (len(self.busy_s) * self.total_s)


def replay(
    schedule: Schedule,
    *,
    num_micro_batches: int,
    stage_s: Sequence[tuple[float, float]],
    send_s: float,
    chunks: int = 1,
) -> Replay:
    """Run one step.

    ``stage_s``: seconds of forward and backward of one micro-batch through each device's stages.
    Returns when it ended, and what each device did and held.
    """
    row = Row(len(stage_s), num_micro_batches, chunks)
    line = _Line(Split(row.devices, schedule, chunks, ()), send_s if row.devices > 1 else 0.0)
    orders = [order_of(schedule, row, device) for device in range(row.devices)]
    waiting, free = [list(order) for order in orders], [0.0] * row.devices
    done: list[Done] = []
    while any(waiting):
        before = len(done)
        for device, order in enumerate(waiting):
            while order and (ready := line.ready_s(order[0], device)) is not None:
                operation = order.pop(0)
                start = max(free[device], ready)
                free[device] = start + _duration_s(operation.kind, stage_s[device]) / chunks
                line.note(operation, device, free[device])
                done.append(Done(device, operation, start, free[device]))
        assert len(done) > before, "the orders wait for each other"
    busy = tuple(num_micro_batches * (forward + backward) for forward, backward in stage_s)
    fullest = tuple(_fullest(order) / chunks for order in orders)
    return Replay(max(free), busy, fullest, tuple(sorted(done, key=lambda d: (d.device, d.end_s))))


class _Line:
    """What has been done along the line of stages, and when it reaches the next one."""

    def __init__(self, split: Split, send_s: float) -> None:
        self._num = split.num_stages
        self._places = [stages_of_device(split, device) for device in range(split.pp)]
        self._send_s = send_s
        self._ends: Ends = {}
        self._sent_s: Ends = {}
        self._kept: dict[int, list[tuple[str, int, int]]] = {}

    def note(self, operation: Operation, device: int, end_s: float) -> None:
        """Note when an operation was done, and what it then sends."""
        kind = "backward" if operation.kind == "input" else operation.kind
        what = (kind, operation.micro_batch, self._places[device][operation.chunk])
        self._ends[what] = end_s
        kept = self._kept.setdefault(device, [])
        kept.append(what)
        if not operation.is_overlapped:
            self._sent_s.update(dict.fromkeys(kept, end_s))
            kept.clear()

    def ready_s(self, operation: Operation, device: int) -> float | None:
        """Return when what an operation needs is there; None: not known yet."""
        kind, micro = operation.kind, operation.micro_batch
        place = self._places[device][operation.chunk]
        if kind == "weight":
            return self._ends.get(("backward", micro, place))
        if kind == "forward":
            return self._sent("forward", micro, place - 1, place) if place else 0.0
        if place == self._num - 1:
            return self._ends.get(("forward", micro, place))
        return self._sent("backward", micro, place + 1, place)

    def _sent(self, kind: str, micro: int, source: int, place: int) -> float | None:
        what = (kind, micro, source)
        if any(source in places and place in places for places in self._places):
            return self._ends.get(what)
        sent_s = self._sent_s.get(what)
        return None if sent_s is None else sent_s + self._send_s


def _duration_s(kind: str, stage_s: tuple[float, float]) -> float:
    forward, backward = stage_s
    return {
        "forward": forward,
        "backward": backward,
        "input": backward * (1 - WEIGHT_SHARE),
        "weight": backward * WEIGHT_SHARE,
    }[kind]


def _fullest(order: list[Operation]) -> int:
    """Count the chunks kept at most: from their forward until all their gradients are there."""
    held = fullest = 0
    for operation in order:
        held += {"forward": 1, "input": 0}.get(operation.kind, -1)
        fullest = max(fullest, held)
    return fullest
