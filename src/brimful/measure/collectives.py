"""What the processes of a real run tell each other, seen by PyTorch's profiler."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from torch.profiler import ProfilerActivity, profile

from brimful.values.results import Collective

_SEEN = {
    "c10d::_allgather_base_": ("all-gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1),
    "gloo:all_reduce": ("all-reduce", 0),
    "gloo:broadcast": ("broadcast", 0),
    "gloo:all_to_all": ("all-to-all", 0),
    "gloo:send": ("send", 0),
    "gloo:recv": ("receive", 0),
}
"""Kind of an event, and which of its tensors is the whole one."""
_SEEN_TWICE = frozenset({"gloo:all_gather"})
"""What gloo does for one of ``_SEEN``; of its other events none may go uncounted."""
_DISPATCHED = "c10d::"
"""How events of operators begin, which a dispatch mode may pass on."""
_ELEMENT = {
    "float": 4, "double": 8, "long int": 8, "int": 4, "unsigned char": 1, "signed char": 1,
    "c10::Half": 2, "c10::BFloat16": 2, "bool": 1,
}  # fmt: skip


class Watched:
    """What was seen in the block of ``watched_collectives``; complete after its end.

    Attributes:
        collectives: By kind, as ``Simulation.collectives``.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self.collectives: tuple[Collective, ...] = ()


@contextmanager
def watched_collectives() -> Iterator[Watched]:
    """Count what this process asks of others by gloo inside the block.

    DDP's reducer asks in C++: its all-reduces are seen by what gloo then does. Gloo reduces and
    scatters by an all-reduce, which is not counted again.
    """
    watched = Watched()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        yield watched
    events = profiler.profiler.kineto_results.events()
    watched.collectives = _added_up(events)


def _outermost(events: list[Any]) -> Iterator[Any]:
    """Yield events but those that lie in one of the same name: a call is seen once more below it.

    What a dispatch mode passes on is dispatched again, as by selective checkpointing. What gloo
    does is done once, and one message's time lies in another's.
    """
    ends: dict[tuple[str, int], int] = {}
    for event in sorted(events, key=lambda each: each.start_ns()):
        place = (event.name(), event.start_thread_id())
        if not event.name().startswith(_DISPATCHED) or event.start_ns() >= ends.get(place, 0):
            ends[place] = event.start_ns() + event.duration_ns()
            yield event


def _added_up(events: list[Any]) -> tuple[Collective, ...]:
    calls: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for event in _outermost(events):
        name = event.name()
        if name in _SEEN or (name.startswith("gloo:") and name not in _SEEN_TWICE):
            kind, which = _SEEN.get(name, (name, 0))
            calls[kind] += 1
            num_bytes[kind] += prod(event.shapes()[which]) * _ELEMENT[event.dtypes()[which]]
    calls["all-reduce"] -= calls["reduce-scatter"]
    num_bytes["all-reduce"] -= num_bytes["reduce-scatter"]
    return tuple(
        Collective(kind=kind, num_calls=calls[kind], num_bytes=num_bytes[kind])
        for kind in sorted(calls)
        if calls[kind]
    )
