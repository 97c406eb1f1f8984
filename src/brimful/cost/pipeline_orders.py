"""In which order each device of a pipeline works, for every schedule: plain lists.

The orders of ``torch.distributed.pipelining``, which the tests compare operation by operation, so
that a step can be replayed where there is no torch. Devices and stages are counted from 0; p
devices, m micro-batches, v stages (chunks) on each device.

Sources: Huang et al. 2018 (arXiv:1811.06965); Narayanan et al. 2019 and 2021 (arXiv:2006.09503,
arXiv:2104.04473); Qi et al. 2023 and 2024 (arXiv:2401.10241, arXiv:2405.15362); DualPipe of
DeepSeek-AI 2024 (arXiv:2412.19437) and its V of Qi et al.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from brimful.techniques.parallel.stages import Schedule

Kind = Literal["forward", "backward", "input", "weight"]


class Operation(NamedTuple):
    """One thing that a device does.

    Attributes:
        kind: ``forward``; ``backward`` of inputs and weights; ``input`` and ``weight``: its halves.
        micro_batch: Which.
        chunk: Which of the device's stages, in the order of the model.
        is_overlapped: Whether it is one thing with the next one: torch's DualPipeV sends results
            of both once both are there.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0
    is_overlapped: bool = False


class Row(NamedTuple):
    """The shape of a pipeline.

    Attributes:
        devices: p.
        num_micro_batches: m.
        chunks: v.
    """

    devices: int
    num_micro_batches: int
    chunks: int

    @property
    def per_round(self) -> int:
        """Micro-batches that pass one chunk before the next has its turn."""
        return self.num_micro_batches // max(1, self.num_micro_batches // self.devices)


def order_of(schedule: Schedule, row: Row, device: int) -> list[Operation]:
    """List what one device does in a step."""
    return _ORDERS[schedule](row, device)


def _gpipe(row: Row, _device: int) -> list[Operation]:
    every = range(row.num_micro_batches)
    return [Operation(kind, n) for kind in ("forward", "backward") for n in every]


def _in_turns(row: Row, device: int) -> list[Operation]:
    """Warm up, then one forward and one backward in turn: 1F1B, and round the devices again."""
    hops = 2 if row.chunks > 1 else 1
    warm = (row.chunks - 1) * row.per_round + hops * (row.devices - 1 - device)
    return list(_one_and_one(row, warm))


def _one_and_one(row: Row, warm: int) -> Iterator[Operation]:
    total = row.num_micro_batches * row.chunks
    warm = min(total, warm)
    for place in range(total + warm):
        if place < total:
            yield _turn(row, "forward", place)
        if place >= warm:
            yield _turn(row, "backward", place - warm)


def _turn(row: Row, kind: Kind, place: int) -> Operation:
    """Return what comes at a place: a round of micro-batches through each chunk, then the next."""
    rounds, within = divmod(place, row.per_round * row.chunks)
    chunk, micro = divmod(within, row.per_round)
    chunk = chunk if kind == "forward" else row.chunks - 1 - chunk
    return Operation(kind, rounds * row.per_round + micro, chunk)


def _zero_bubble(row: Row, device: int) -> list[Operation]:
    """ZB-H1: device i leaves the gradients of the weights of i micro-batches for later."""
    warm = (row.chunks - 1) * row.per_round + row.devices - 1 - device
    order: list[Operation] = []
    waiting: list[Operation] = []
    for operation in _one_and_one(row, warm):
        if operation.kind == "forward":
            order.append(operation)
            continue
        order.append(operation._replace(kind="input"))
        waiting.append(operation._replace(kind="weight"))
        if len(waiting) > device:
            order.append(waiting.pop(0))
    return order + waiting


class _Writer:
    """Writes an order down: micro-batches of each kind of work and chunk come one by one."""

    def __init__(self) -> None:
        self.order: list[Operation] = []
        self._next: Counter[tuple[str, int]] = Counter()
        self._waiting: list[Operation] = []

    def __call__(self, *work: tuple[Kind, int]) -> None:
        """Write operations of these kinds and chunks; a ``backward`` counts as both its halves."""
        for kind, chunk in work:
            counted = "input" if kind == "backward" else kind
            micro = self._next[counted, chunk]
            self._next[counted, chunk] += 1
            self.order.append(Operation(kind, micro, chunk))
            if kind == "backward":
                self._next["weight", chunk] += 1

    def both(self, forward: int, backward: int) -> None:
        """Write a forward of one chunk and a backward of another as one."""
        self(("forward", forward))
        self.order[-1] = self.order[-1]._replace(is_overlapped=True)
        self(("backward", backward))

    def later(self, chunk: int) -> None:
        """Write an ``input`` whose weights come with ``weights``."""
        self._waiting.append(Operation("weight", self._next["input", chunk], chunk))
        self(("input", chunk))

    def weights(self) -> None:
        """Write the gradients of weights that have waited longest, if any has."""
        if self._waiting:
            self.order.append(self._waiting.pop(0))

    def count(self, kind: str, chunk: int) -> int:
        """Return how many of a kind have been written."""
        return self._next[kind, chunk]


_DOWN, _UP = 0, 1
"""The chunk of a V on the way to the last device, and back."""


def _zbv(row: Row, device: int) -> list[Operation]:
    """ZB-V: as many micro-batches in flight as 1F1B, and idle at the ends only."""
    micro = max(2 * row.devices - 1, row.num_micro_batches)
    near, write = row.devices - device, _Writer()
    for _ in range(2 * near - 1):
        write(("forward", _DOWN))
    for _ in range(device):
        write(("forward", _UP), ("forward", _DOWN))
    for _ in range(near):
        write(("forward", _UP), ("input", _UP), ("weight", _UP))
    while write.count("forward", _UP) < max(write.count("forward", _DOWN), micro):
        if write.count("forward", _DOWN) < micro:
            write(("forward", _DOWN))
        write(("input", _DOWN), ("weight", _DOWN))
        write(("forward", _UP), ("input", _UP), ("weight", _UP))
    _drain_zbv(row, device, write)
    return [op for op in write.order if op.micro_batch < row.num_micro_batches]


def _drain_zbv(row: Row, device: int, write: _Writer) -> None:
    for _ in range(device):
        write(("input", _DOWN), ("input", _UP))
    for _ in range(row.devices - device):
        write(("input", _DOWN), ("weight", _DOWN))
    for chunk in (_UP, _DOWN):
        while write.count("weight", chunk) < write.count("input", chunk):
            write(("weight", chunk))


def _dualpipev(row: Row, device: int) -> list[Operation]:
    """DualPipeV: forwards of one half beside backwards of the other."""
    far, write = row.devices - device - 1, _Writer()
    for _ in range(2 * far):
        write(("forward", _DOWN))
    for _ in range(device + 1):
        write(("forward", _DOWN), ("forward", _UP))
    for _ in range(far):
        write.later(_UP)
        write.weights()
        write(("forward", _UP))
    for place in range(row.num_micro_batches - row.devices - far):
        if place == far == 0:
            write(("forward", _DOWN), ("backward", _UP))
        else:
            write.both(_DOWN, _UP)
        write.both(_UP, _DOWN)
    for _ in range(far):
        write(("backward", _UP))
        write.both(_UP, _DOWN)
    _drain_dualpipev(row, device, write)
    return write.order


def _drain_dualpipev(row: Row, device: int, write: _Writer) -> None:
    """Write what is left: from the middle on weights wait."""
    half, splits = (device + 1) // 2, False
    for place in range(device + 1):
        for chunk, is_odd in ((_UP, 1), (_DOWN, 0)):
            splits = splits or (place == half and device % 2 == is_odd)
            write.later(chunk) if splits else write(("backward", chunk))
    for _ in range(row.devices - device - 1):
        write.weights()
        write.later(_DOWN) if splits else write(("backward", _DOWN))
    for _ in range(device + 1):
        write.weights()


_ORDERS: dict[Schedule, Callable[[Row, int], list[Operation]]] = {
    "gpipe": _gpipe,
    "1f1b": _in_turns,
    "interleaved": _in_turns,
    "zero-bubble": _zero_bubble,
    "zbv": _zbv,
    "dualpipev": _dualpipev,
}
