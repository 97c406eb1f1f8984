"""What one of several devices has of a block's experts that they part among them.

A device has every ``ep``-th part of a block's experts and shards them with those that have the same
ones: by expert where each gets as many, else by the rows of every expert where those come out even,
else by expert with padding. Tested equal to what ``build.parallel.shard`` makes.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import Piece
from brimful.cost.family import Family, family_micro_batches, family_shards
from brimful.cost.programs import HALF
from brimful.cost.recipes import RECIPES, Recipe
from brimful.cost.shapes import Shape
from brimful.cost.trained import block_kinds, frozen_element
from brimful.models.layout import Parameter
from brimful.techniques.optimizers import Updated
from brimful.values.job import Job

Array = NDArray[np.float64]
HALF_BYTES = 2
EXPERTS = "experts"
_NOTHING = Recipe(parameter=0, gradient=0, master=0)
"""Bytes of what is frozen."""
PIECES = (
    Piece.EXPERTS_CAST, Piece.EXPERTS_GATHERED, Piece.EXPERTS, Piece.EXPERTS_TURNED,
    Piece.EXPERTS_KEPT, Piece.EXPERTS_BUFFER, Piece.EXPERTS_LAST, Piece.EXPERTS_DIVIDED,
    Piece.EXPERTS_SHARD, Piece.EXPERTS_GRADIENTS, Piece.EXPERTS_HELD, Piece.EXPERTS_AMONG,
)  # fmt: skip
"""In the order of ``_bytes_of``."""


def own_shape(parameter: Parameter, ep: int) -> Shape:
    """Return the shape of a device's part of a parameter: all of what is no expert's."""
    first, *others = parameter.shape
    return (first // ep, *others) if parameter.kind == EXPERTS else parameter.shape


def same_experts(family: Family) -> Array:
    """Count the devices that have the same experts: [strategies]."""
    return family_shards(family) * family.tp / family.ep


def is_by_rows(shape: Shape, num_same: int) -> bool:
    """Whether so many devices cut a stack of experts by the rows of each."""
    return bool(shape[0] % num_same and len(shape) > 1 and shape[1] % num_same == 0)


def shard_shape(shape: Shape, num_same: int) -> Shape:
    """Return what the first of these devices holds of a stack of experts."""
    first, *others = shape
    if is_by_rows(shape, num_same):
        rows, *rest = others
        return (first, rows // num_same, *rest)
    return (-(-first // num_same), *others)


def part_experts(job: Job, ep: int) -> list[list[Shape]]:
    """List the shapes of a device's experts in each block that holds others; none in dense ones."""
    kinds = block_kinds(job.model)
    return [[own_shape(p, ep) for p in block if p.kind == EXPERTS] for block in kinds]


def parted_parts(job: Job, family: Family) -> frozenset[int]:
    """Return which of the blocks that hold others have experts that devices part among them."""
    if family.ep == 1:
        return frozenset()
    return frozenset(part for part, each in enumerate(part_experts(job, family.ep)) if each)


def held_shape(parameter: Parameter, family: Family, num_shards: int) -> Shape:
    """Return what a device holds of a parameter.

    ``num_shards``: devices that share one copy of all that is no expert's.
    """
    if parameter.kind == EXPERTS:
        num_same = num_shards * family.tp // family.ep
        return shard_shape(own_shape(parameter, family.ep), num_same)
    first, *others = parameter.shape
    return (-(-first // num_shards), *others)


def held_shapes(parameters: Sequence[Parameter], family: Family, num_shards: int) -> list[Shape]:
    """List the shards that a device holds: of what is no expert's, then of its experts.

    ``num_shards``: devices that share one copy of all that is no expert's.
    """
    every = [(each.kind == EXPERTS, held_shape(each, family, num_shards)) for each in parameters]
    return [shape for is_expert, shape in sorted(every, key=lambda each: each[0])]


def held_groups(
    parameters: Sequence[Parameter],
    trained: Sequence[Updated],
    family: Family,
    num_shards: int,
) -> tuple[list[Updated], list[Updated]]:
    """List the same apart: an optimizer updates parameters of one mesh at a time.

    But for matrices of blocks, where its rule tells them from others. ``trained``: the same
    parameters as an optimizer sees them.
    """
    every = [
        (
            each.kind == EXPERTS and not seen.is_hidden,
            Updated(
                held_shape(each, family, num_shards), seen.is_hidden, own_shape(each, family.ep)
            ),
        )
        for each, seen in zip(parameters, trained, strict=True)
    ]
    return (
        [each for is_apart, each in every if not is_apart],
        [each for is_apart, each in every if is_apart],
    )


def padded_experts(stacks: Sequence[Shape], num_same: Array) -> Array:
    """Count the numbers of a block's experts over all that have the same, padding too."""
    each = [sum(prod(shard_shape(stack, int(n))) for stack in stacks) * int(n) for n in num_same]
    return np.array(each, dtype=np.float64)


def expert_pieces(job: Job, family: Family, stacks: list[Shape]) -> Array:
    """Return the bytes of the pieces of one block's experts: [``PIECES``, strategies].

    ``stacks``: those that a device has of the block, in order, biases too; at least one.
    """
    each = zip(family_shards(family), same_experts(family), strict=True)
    columns = [
        _bytes_of(job, family._replace(num_shards=num), stacks, int(same)) for num, same in each
    ]
    return np.array(columns, dtype=np.float64).T


def _bytes_of(job: Job, family: Family, stacks: list[Shape], num_same: int) -> list[float]:
    """Return the bytes of every piece where so many devices have the same experts.

    One device alone copies each stack into place, and divides what it does not reduce, by one. Of
    several the last gradient is let go of last, and the last that was put in the order of rows:
    names in ``foreach_reduce`` hold them.
    """
    recipe = RECIPES[job.precision] if job.adapter is None else _NOTHING
    held, narrow = frozen_element(job), job.precision in HALF
    computed = HALF_BYTES if narrow else held
    narrows = narrow and held > HALF_BYTES
    sizes = [prod(stack) for stack in stacks]
    padded = float(padded_experts(stacks, np.array([num_same]))[0])
    several, last = num_same > 1, stacks[-1]
    by_rows = [s for s, stack in zip(sizes, stacks, strict=True) if is_by_rows(stack, num_same)]
    turned = sum(by_rows) if several else narrows * _cast_beside(sizes)
    buffer, shard = padded * recipe.gradient, padded * recipe.gradient / num_same
    reduced = recipe.gradient if _waits(job, family) else computed
    reduced *= several * (job.adapter is None)
    return [
        several * narrows * padded / num_same * computed,
        several * padded * computed,
        padded * computed,
        turned * computed,
        reduced * sum(by_rows[-1:]),
        buffer,
        reduced * prod(last) * (not is_by_rows(last, num_same)),
        (not several) * buffer,
        shard,
        sum(sizes) * computed * (job.adapter is None),
        sum(sizes) * recipe.gradient,
        shard * (family.num_data_parallel > np.max(family_shards(family))),
    ]


def _cast_beside(sizes: Sequence[int]) -> int:
    """Return how many numbers there are at most beside whole stacks while these are cast in turn.

    A stack is cast beside the last one's cast, and copied into place.
    """
    most, there, before = 0, 0, 0
    for size in sizes:
        most = max(most, there + before + size, there + size + size)
        there, before = there + size, size
    return most - there


def _waits(job: Job, family: Family) -> bool:
    """Whether gradients are held in the type that they are reduced in until the last of several."""
    return family.accumulate == "hold" and family_micro_batches(job, family) > 1
