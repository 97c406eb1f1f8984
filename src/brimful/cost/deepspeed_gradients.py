"""How the gradients of a backward go where DeepSpeed reduces them: through a bucket.

One that fits is copied into it and goes. Where it does not fit beside those that are there, these
are reduced first, out of a flat copy; one that fits no bucket waits for the next to come.

Source: ``reduce_independent_p_g_buckets_and_remove_grads`` of ``stage_1_and_2.py`` and of
``stage3.py`` in ``runtime/zero`` of DeepSpeed 0.19.8.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from msgspec.structs import replace

from brimful.cost.family import Family, family_counts
from brimful.cost.profiles import Dimensions, EventKind, Run
from brimful.cost.sections import Event, Section, ended, of_bytes
from brimful.cost.trajectory import middles
from brimful.values.job import Job
from brimful.values.results import GRADIENTS, ITEM_NAMES, REDUCED

_GRADIENT, _ON_ITS_WAY = ITEM_NAMES.index(GRADIENTS), ITEM_NAMES.index(REDUCED)


class Reducing(NamedTuple):
    """What decides how gradients are reduced.

    Attributes:
        dims: Sizes of the model and of a micro-batch.
        counts: Of every group of runs, how often its middle one happens.
        bucket_bytes: Of the bucket.
        copied: The class of the flat copy that gradients are reduced out of; None: of none.
        copies_one: Whether one alone is copied too.
        is_tied: Whether the head's gradient stays until that of the embedding comes.
    """

    dims: Dimensions
    counts: Mapping[str, int]
    bucket_bytes: int
    copied: int | None
    copies_one: bool
    is_tied: bool

    def num_bytes(self, kind: EventKind) -> float:
        """Return the size of what comes."""
        return float(
            sum(
                term.coefficient * prod(getattr(self.dims, each) for each in term.factors)
                for term in kind.terms
            )
        )

    def times(self, run: Run) -> int:
        """Return how often a run happens."""
        return max(0, self.counts.get(run.group, 1)) if run.role == "middle" else 1


def counts_of(job: Job, family: Family, sections: Sequence[Section]) -> dict[str, int]:
    """Count how often the middle run of every group happens."""
    every = middles(family_counts(job, family), tuple(section.run for section in sections))
    return {group: int(numbers[0]) for group, numbers in every.items()}


def all_reduced(sections: list[Section], how: Reducing) -> list[Section]:
    """Return a micro-batch whose gradients go as they are reduced."""
    num_before = sum(section.run.phase == "forward" for section in sections)
    found, bucket = sections[:num_before], _Bucket(how)
    for section in sections[num_before:]:
        found.append(section._replace(events=tuple(bucket.through(section))))
    found[-1] = found[-1]._replace(events=(*found[-1].events, *bucket.emptied()))
    if how.is_tied:
        _keep_head(found, num_before)
    return found


class _Bucket:
    """What is in the bucket."""

    def __init__(self, how: Reducing) -> None:
        self._how, self._filled, self._num = how, 0.0, 0

    def through(self, section: Section) -> Iterator[Event]:
        """Yield a run's events, with those of its gradients; of a run that is often there the most.

        A flat copy comes at each gradient at which one does in any of the times.
        """
        num_bytes = [self._how.num_bytes(each.kind) for each in _coming(section.events)]
        copies = self._fill(num_bytes, self._how.times(section.run))
        waits, place = None, 0
        for event in section.events:
            if not is_gradient(event):
                yield event
                continue
            if event.kind.terms[0].coefficient < 0:  # nobody else lets go of it
                continue
            yield from _copied(copies[place], self._how.copied)
            yield from _gone(waits)
            yield event
            waits = event
            if num_bytes[place] <= self._how.bucket_bytes:
                yield from _gone(event)
                waits = None
            place += 1
        if waits is not None:
            yield from self.emptied()
            yield from _gone(waits)

    def emptied(self) -> Iterator[Event]:
        """Yield how what is there is reduced."""
        yield from _copied(self._reduced(), self._how.copied)

    def _reduced(self) -> int:
        """Return the bytes of the flat copy of what is there, which is there no more."""
        is_copied = self._num > 1 or self._how.copies_one
        num_bytes, self._filled, self._num = round(self._filled * is_copied), 0.0, 0
        return num_bytes

    def _fill(self, num_bytes: Sequence[float], times: int) -> Counter[int]:
        """Return the bytes that are reduced before each of some gradients."""
        copies = Counter[int]()
        for place, each in [*enumerate(num_bytes)] * times:
            if self._filled + each > self._how.bucket_bytes:
                copies[place] = max(copies[place], self._reduced())
            self._filled += each
            self._num += 1
        return copies


def _copied(num_bytes: int, item: int | None) -> Iterator[Event]:
    if num_bytes and item is not None:
        copy = of_bytes(num_bytes, item)
        yield Event(copy)
        yield Event(ended(copy))


def on_its_way(section: Section) -> Section:
    """Return a run whose gradients are on their way to another stream."""
    lent = (
        event._replace(kind=replace(event.kind, item=_ON_ITS_WAY)) if is_gradient(event) else event
        for event in section.events
    )
    return section._replace(events=tuple(lent))


def is_gradient(event: Event) -> bool:
    """Whether an event is that of a gradient."""
    return event.piece is None and event.kind.item == _GRADIENT and not event.kind.mark


def _coming(events: Sequence[Event]) -> Iterator[Event]:
    return (e for e in events if is_gradient(e) and e.kind.terms[0].coefficient > 0)


def _gone(gradient: Event | None) -> Iterator[Event]:
    if gradient is not None:
        yield Event(ended(gradient.kind))


def _keep_head(found: list[Section], first: int) -> None:
    """Let the gradient of a tied head stay until backward has come to the embedding.

    ``first``: the run with which backward begins: the head's gradient is the first that comes.
    """
    for place in range(first, len(found)):
        events = list(found[place].events)
        head = next((event for event in events if is_gradient(event)), None)
        if head is not None:
            gone = Event(ended(head.kind))
            events.remove(gone)
            found[place] = found[place]._replace(events=tuple(events))
            found[-1] = found[-1]._replace(events=(*found[-1].events, gone))
            return
