"""A pipeline's step replayed operation by operation: slow, obvious, what closed forms are held to.

Each stage works through its own list in order; an operation begins when the stage is free and what
it needs has arrived. Messages travel beside the kernels.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from brimful.cost.pipeline import WEIGHT_SHARE, Schedule


class Operation(NamedTuple):
    """One thing that a stage does.

    Attributes:
        kind: ``forward``; ``backward`` of inputs and weights; ``input`` and ``weight``: its halves.
        micro_batch: Which.
        chunk: Which piece of the stage.
    """

    kind: Literal["forward", "backward", "input", "weight"]
    micro_batch: int
    chunk: int = 0


class Replay(NamedTuple):
    """What happened.

    Attributes:
        total_s: Until the last stage is done.
        busy_s: Of each stage.
        in_flight: Micro-batches that each stage kept at its fullest, in whole stages.
    """

    total_s: float
    busy_s: tuple[float, ...]
    in_flight: tuple[float, ...]


def replay(
    schedule: Schedule,
    *,
    num_micro_batches: int,
    stage_s: Sequence[tuple[float, float]],
    send_s: float,
    chunks: int = 1,
) -> Replay:
    """Run one step.

    Args:
        schedule: The order of work.
        num_micro_batches: m; a multiple of the stages where chunks are over 1.
        stage_s: Seconds of forward and backward of one micro-batch through each stage.
        send_s: Seconds of a message.
        chunks: v, pieces of the model on each stage.

    Returns:
        When it ended, and what each stage did and held.
    """
    stages = len(stage_s)
    message_s = send_s if stages > 1 else 0.0
    orders = [_ORDERS[schedule](i, stages, num_micro_batches, chunks) for i in range(stages)]
    ends: dict[tuple[str, int, int], float] = {}
    free, done = [0.0] * stages, [0] * stages
    while any(n < len(order) for n, order in zip(done, orders, strict=True)):
        before = sum(done)
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                operation = order[done[stage]]
                place = operation.chunk * stages + stage
                ready = _ready_s(operation, place, stages * chunks, ends, message_s)
                if ready is None:
                    break
                end = max(free[stage], ready) + _duration_s(operation.kind, stage_s[stage]) / chunks
                free[stage] = ends[_end_of(operation, place)] = end
                done[stage] += 1
        assert sum(done) > before, "the orders wait for each other"
    busy = tuple(num_micro_batches * (forward + backward) for forward, backward in stage_s)
    return Replay(max(free), busy, tuple(_fullest(order) / chunks for order in orders))


def _duration_s(kind: str, stage_s: tuple[float, float]) -> float:
    forward, backward = stage_s
    return {
        "forward": forward,
        "backward": backward,
        "input": backward * (1 - WEIGHT_SHARE),
        "weight": backward * WEIGHT_SHARE,
    }[kind]


def _end_of(operation: Operation, place: int) -> tuple[str, int, int]:
    kind = "backward" if operation.kind == "input" else operation.kind
    return kind, operation.micro_batch, place


def _ready_s(
    operation: Operation,
    place: int,
    places: int,
    ends: dict[tuple[str, int, int], float],
    send_s: float,
) -> float | None:
    """Return when what an operation needs is there; None: not known yet."""
    kind, micro = operation.kind, operation.micro_batch
    if kind == "weight":
        return ends.get(("backward", micro, place))
    if kind == "forward":
        before = ends.get(("forward", micro, place - 1), None if place else -send_s)
    elif place == places - 1:
        return ends.get(("forward", micro, place))
    else:
        before = ends.get(("backward", micro, place + 1))
    return None if before is None else before + send_s


def _fullest(order: list[Operation]) -> int:
    """Count the chunks kept at most: from their forward until all their gradients are there."""
    held = fullest = 0
    for operation in order:
        held += {"forward": 1, "input": 0}.get(operation.kind, -1)
        fullest = max(fullest, held)
    return fullest


def _gpipe(_stage: int, _stages: int, micro: int, _chunks: int) -> list[Operation]:
    forwards = [Operation("forward", n) for n in range(micro)]
    return forwards + [Operation("backward", n) for n in range(micro)]


def _interleaved(stage: int, stages: int, micro: int, chunks: int) -> list[Operation]:
    """Warm up, then one forward and one backward in turn; micro-batches pass chunks p at a time."""
    total = micro * chunks
    forwards = [_turn("forward", k, stages, chunks) for k in range(total)]
    backwards = [_turn("backward", k, stages, chunks) for k in range(total)]
    rounds = 2 if chunks > 1 else 1
    warm = min(total, rounds * (stages - stage - 1) + (chunks - 1) * stages)
    steady = [
        operation
        for pair in zip(forwards[warm:], backwards[: total - warm], strict=True)
        for operation in pair
    ]
    return forwards[:warm] + steady + backwards[total - warm :]


def _turn(kind: Literal["forward", "backward"], count: int, stages: int, chunks: int) -> Operation:
    around, within = divmod(count, stages * chunks)
    chunk, micro = divmod(within, stages)
    return Operation(
        kind, around * stages + micro, chunk if kind == "forward" else chunks - 1 - chunk
    )


def _zero_bubble(stage: int, stages: int, micro: int, chunks: int) -> list[Operation]:
    """ZB-H1: stage i leaves the gradients of the weights of i micro-batches for later."""
    order: list[Operation] = []
    num_inputs = num_weights = 0
    for operation in _interleaved(stage, stages, micro, chunks):
        if operation.kind == "forward":
            order.append(operation)
            continue
        order.append(operation._replace(kind="input"))
        num_inputs += 1
        if num_inputs > stage:
            order.append(Operation("weight", num_weights))
            num_weights += 1
    return order + [Operation("weight", n) for n in range(num_weights, micro)]


_ORDERS: dict[Schedule, Callable[[int, int, int, int], list[Operation]]] = {
    "gpipe": _gpipe,
    "1f1b": _interleaved,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
}
