"""What is offloaded: its bytes in host memory, and what a step copies and updates there.

Exact but for the optimizer's steps, of 4 bytes each. Pinned is what copies run with; what the rule
keeps is plain memory.

Source: ``build/offload/optimizer.py`` and ``build/offload/gradients.py``.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from brimful.cost.base_copies import NUM_PASSES, base_sizes
from brimful.cost.brought import NUM_ON_THE_WAY
from brimful.cost.copied import Copied
from brimful.cost.expert_shards import EXPERTS, held_shape
from brimful.cost.family import Family, family_micro_batches, parting_of
from brimful.cost.leaving import holds_gradients
from brimful.cost.resident import num_shards_of, updated
from brimful.cost.saved import pinned_bytes
from brimful.cost.sent_activations import NOTHING_SENT, SentActivations
from brimful.cost.shapes import Shape
from brimful.cost.states import away_numbers, device_update
from brimful.cost.step import traffic_of_update
from brimful.cost.trained import trained_recipe
from brimful.cost.update import Updater
from brimful.files.remembered import once_for_each
from brimful.models.config import layout_of
from brimful.models.layout import all_parameters
from brimful.values.job import Job


class OnHost(NamedTuple):
    """Bytes of one device's part of host memory.

    Attributes:
        parameters: Copies of what trains, which the host updates.
        gradients: Of them.
        passing: The most that comes and goes: gradients of later micro-batches that are about to be
            added, or what the update takes.
        optimizer_state: What the rule keeps, masters included.
        base: A frozen base of blocks.
        activations: What blocks keep for their backward pass.
    """

    parameters: int = 0
    gradients: int = 0
    passing: int = 0
    optimizer_state: int = 0
    activations: int = 0
    base: int = 0


def on_host(
    job: Job, family: Family, *, pins: bool, sent: SentActivations = NOTHING_SENT
) -> OnHost:
    """Count what one device has offloaded: of what is sharded its shards.

    ``pins``: whether what copies run with is pinned, each tensor in a block of a power of two.
    """
    taken = pinned_bytes if pins else sum
    activations, base = int(taken(sent.sizes)), 0
    if family.away.frozen:
        base = _base(job, pins, family.away.parameters)
    if not family.away.optimizer:
        return OnHost(activations=activations, base=base)
    num_shards = num_shards_of(family)
    parting = parting_of(family, num_shards)
    held = _held(job, parting, pins)
    update = device_update(job, family, Updater("cpu", num_shards=num_shards))
    adds_up = family_micro_batches(job, family) > 1 and not holds_gradients(job, family)
    return OnHost(
        parameters=held,
        gradients=held,
        passing=max(_passing(job, parting, pins) if adds_up else 0, int(update.transient)),
        optimizer_state=int(update.kept),
        activations=activations,
        base=base,
    )


@once_for_each
def _base(job: Job, pins: bool, num_blocks: int) -> int:  # noqa: FBT001 - a key of what is kept
    """Count the bytes of a frozen base of the first blocks."""
    return int((pinned_bytes if pins else sum)(list(base_sizes(job, num_blocks))))


@once_for_each
def _held(job: Job, family: Family, pins: bool) -> int:  # noqa: FBT001 - a key of what is kept
    """Count the bytes of the parameters that one device updates."""
    element, taken = trained_recipe(job).parameter, pinned_bytes if pins else sum
    return int(taken([element * each.num for each in updated(job, family)]))


@once_for_each
def _passing(job: Job, family: Family, pins: bool) -> int:  # noqa: FBT001 - a key of what is kept
    """Count the bytes of the largest gradients that are on their way together."""
    element, taken = trained_recipe(job).parameter, pinned_bytes if pins else sum
    return int(taken([element * num for num in _staged(_arriving(job, family))]))


def _arriving(job: Job, family: Family) -> list[Shape]:
    """List the shapes of gradients in the order in which they come.

    Those of units that are reduced come backwards by block, each in the order of its parameters and
    parted experts first; what is in no block last. Others come in the order of matrices, backwards;
    vectors come between others and are left out, but for the norm before the head.
    """
    shapes = [each.shape for each in updated(job, family)]
    if not family.gathers:
        norm = len(shapes) - 2
        return [x for place, x in enumerate(shapes) if len(x) > 1 or place == norm][::-1]
    if job.adapter is not None:
        return shapes
    layout, num = layout_of(job.model), num_shards_of(family)
    parameters = list(all_parameters(layout))
    if family.ep > 1:
        shapes = [held_shape(parameter, family, num) for parameter in parameters]
    every, first = list(zip(parameters, shapes, strict=True)), len(layout.embedding)
    blocks, rest = list[list[Shape]](), list(shapes[:first])
    for run in layout.blocks:
        for _ in range(run.num_blocks):
            block = every[first : first + len(run.parameters)]
            if family.ep > 1:
                block = sorted(block, key=lambda each: each[0].kind != EXPERTS)
            blocks.append([shape for _, shape in block])
            first += len(run.parameters)
        rest += shapes[first : first + len(run.after)]
        first += len(run.after)
    return [*chain.from_iterable(reversed(blocks)), *rest, *shapes[first:]]


def _staged(arriving: Sequence[Shape]) -> list[int]:
    """Count the numbers of the largest gradients that are on their way together."""
    sizes, num = [prod(shape) for shape in arriving], NUM_ON_THE_WAY + 1
    windows = (sizes[start : start + num] for start in range(max(1, len(sizes) - num + 1)))
    return max(windows, key=sum)


def copied_of(job: Job, family: Family, sent: SentActivations = NOTHING_SENT) -> Copied:
    """Return what a step copies between device and host, and what the host's update moves."""
    every = family_micro_batches(job, family)
    held = on_host(job, family, pins=False)
    to_device = (sent.to_device + NUM_PASSES * held.base) * every
    if not family.away.optimizer:
        return Copied(to_host=float(sum(sent.sizes) * every), to_device=float(to_device))
    brought = trained_recipe(job).parameter * away_numbers(job, family)
    times = 1 if holds_gradients(job, family) else every
    return Copied(
        to_host=float(held.gradients * times + sum(sent.sizes) * every),
        to_device=float(NUM_PASSES * brought * times + to_device),
        updated=float(held.parameters - brought),
        host_traffic=traffic_of_update(
            gradients=held.gradients, kept=held.parameters + held.optimizer_state
        ),
    )
