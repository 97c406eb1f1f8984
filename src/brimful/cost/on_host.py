"""What is offloaded: its bytes in host memory, and what a step copies and updates there.

Exact but for the optimizer's steps, of 4 bytes each. Pinned is what copies run with; what the rule
keeps is plain memory.

Source: ``build/offload/optimizer.py`` and ``build/offload/gradients.py``.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from brimful.cost.brought import NUM_ON_THE_WAY
from brimful.cost.copied import Copied
from brimful.cost.family import Family, family_micro_batches
from brimful.cost.leaving import holds_gradients
from brimful.cost.resident import num_shards_of, updated
from brimful.cost.saved import pinned_bytes
from brimful.cost.sent_activations import NOTHING_SENT, SentActivations
from brimful.cost.shapes import Shape
from brimful.cost.states import away_numbers, device_update
from brimful.cost.step import traffic_of_update
from brimful.cost.trained import trained_recipe
from brimful.job import Job
from brimful.models.config import layout_of


class OnHost(NamedTuple):
    """Bytes of one device's part of host memory.

    Attributes:
        parameters: Copies of what trains, which the host updates.
        gradients: Of them.
        passing: The most that comes and goes: gradients of later micro-batches that are about to be
            added, or what the update takes.
        optimizer_state: What the rule keeps, masters included.
        activations: What blocks keep for their backward pass.
    """

    parameters: int = 0
    gradients: int = 0
    passing: int = 0
    optimizer_state: int = 0
    activations: int = 0


NUM_PASSES = 2
"""Of a micro-batch, in which blocks are brought: forward and backward."""


def on_host(
    job: Job, family: Family, *, pins: bool, sent: SentActivations = NOTHING_SENT
) -> OnHost:
    """Count what one device has offloaded: of what is sharded its shards.

    Args:
        job: What is trained.
        family: One strategy, or several that differ in blocks.
        pins: Whether what copies run with is pinned, each tensor in a block of a power of two.
        sent: What blocks send of a micro-batch.
    """
    taken = pinned_bytes if pins else sum
    activations = int(taken(sent.sizes))
    if not family.away.optimizer:
        return OnHost(activations=activations)
    element, shapes = trained_recipe(job).parameter, updated(job, family)
    sizes = [element * prod(shape) for shape in shapes]
    update = device_update(job, family, "cpu", num_shards=num_shards_of(family))
    adds_up = family_micro_batches(job, family) > 1 and not holds_gradients(job, family)
    staged = _staged(job, shapes, element, in_units=family.gathers) if adds_up else []
    return OnHost(
        parameters=int(taken(sizes)),
        gradients=int(taken(sizes)),
        passing=max(int(taken(staged)), int(update.transient)),
        optimizer_state=int(update.kept),
        activations=activations,
    )


def _staged(job: Job, shapes: Sequence[Shape], element: int, *, in_units: bool) -> list[int]:
    """Return the bytes of the largest gradients that are on their way together.

    They come in the order of matrices, backwards; vectors come between others and are left out, but
    for the norm before the head. Units that are reduced come so, each in the order of its
    parameters, and what is in no block last.
    """
    head = len(shapes) - 1
    sizes = [
        element * prod(shape)
        for place, shape in enumerate(shapes)
        if in_units or len(shape) > 1 or place == head - 1
    ]
    if in_units and job.adapter is None:
        layout = layout_of(job.model)
        first, last = len(layout.embedding), len(layout.final) + len(layout.head)
        sizes = [*sizes[first : len(sizes) - last], *sizes[:first], *sizes[len(sizes) - last :]]
    num = NUM_ON_THE_WAY + 1
    windows = (sizes[start : start + num] for start in range(max(1, len(sizes) - num + 1)))
    return max(windows, key=sum)


def copied_of(job: Job, family: Family, sent: SentActivations = NOTHING_SENT) -> Copied:
    """Return what a step copies between the device and its host, and what the host's update moves.

    Args:
        job: What is trained.
        family: The strategies.
        sent: What blocks send of a micro-batch.
    """
    every = family_micro_batches(job, family)
    if not family.away.optimizer:
        return Copied(
            to_host=float(sum(sent.sizes) * every), to_device=float(sent.to_device * every)
        )
    held = on_host(job, family, pins=False)
    brought = trained_recipe(job).parameter * away_numbers(job, family)
    times = 1 if holds_gradients(job, family) else every
    return Copied(
        to_host=float(held.gradients * times + sum(sent.sizes) * every),
        to_device=float(NUM_PASSES * brought * times + sent.to_device * every),
        updated=float(held.parameters - brought),
        host_traffic=traffic_of_update(
            gradients=held.gradients, kept=held.parameters + held.optimizer_state
        ),
    )
