"""Optimizers of other programs: that update inside backward, or keep their state in managed memory.

Updated inside backward, a gradient goes as soon as it is there, and its parameter's update is all
that there is of one. Managed memory is not the allocator's: the driver moves it as it is touched.
"""

from collections.abc import Iterator
from math import prod

from brimful.cost.memory import StepMemory
from brimful.cost.profiles import EventKind
from brimful.cost.sections import Event, Section, apart, ended
from brimful.models.config import layout_of
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.optimizers.base import Settings, Updated
from brimful.techniques.optimizers.blockwise import LEAST_PAGED
from brimful.values.job import Job
from brimful.values.results import GRADIENTS, ITEM_NAMES, TRANSIENTS

EARLY = "optimizer in backward"
"""What ``PublishedRun.unlike`` says of such an update; sharded ones are not told."""
_GRADIENT, _TRANSIENT = ITEM_NAMES.index(GRADIENTS), ITEM_NAMES.index(TRANSIENTS)
_PROBE = Updated((1024, 1024))
"""A parameter that shows whether an update has a temporary as large as what it updates."""
_SETTINGS = Settings(
    num_bytes=2, kernels="cuda", momentum=0.9, decay=0.1, num_shards=1, partial_sums=lambda *_: 0
)


def with_early_updates(sections: list[Section], job: Job) -> list[Section]:
    """Return a micro-batch whose gradients go as soon as they are there.

    ``job``: what is trained: its optimizer may have a temporary as large as a gradient.
    """
    moments = OPTIMIZERS[job.optimizer].moments([_PROBE], _SETTINGS)
    own = _PROBE.num * _SETTINGS.num_bytes
    is_rooted = any(moment.num_bytes >= own for moment in moments)
    return [
        section._replace(
            events=tuple(e for event in section.events for e in _updated(event, is_rooted))
        )
        for section in sections
    ]


def _updated(event: Event, is_rooted: bool) -> Iterator[Event]:  # noqa: FBT001
    yield event
    kind = event.kind
    if event.piece is not None or kind.item != _GRADIENT or kind.terms[0].coefficient < 0:
        return
    if is_rooted:
        root = apart(EventKind(kind.terms, _TRANSIENT, kind.origin))
        yield Event(root)
        yield Event(ended(root))
    yield Event(ended(kind))


def without_gradients(memory: StepMemory) -> StepMemory:
    """Return a step that ends without gradients and without an update of its own."""
    return memory._replace(
        states=memory.states._replace(gradients=0), updates=memory.updates._replace(transient=0)
    )


def with_managed_state(memory: StepMemory, job: Job) -> StepMemory:
    """Return a step without the optimizer state that is managed memory; of full training."""
    shapes = list(_shapes(job))
    small = sum(num * times for num, times in shapes if num < LEAST_PAGED)
    share = small / sum(num * times for num, times in shapes)
    held = round(memory.states.optimizer_state * share)
    return memory._replace(states=memory.states._replace(optimizer_state=held))


def _shapes(job: Job) -> Iterator[tuple[int, int]]:
    """Yield how many numbers a parameter has, and how many such there are."""
    layout = layout_of(job.model)
    for parameter in (*layout.embedding, *layout.final, *layout.head):
        yield prod(parameter.shape), 1
    for run in layout.blocks:
        for parameter in run.parameters:
            yield prod(parameter.shape), run.num_blocks
