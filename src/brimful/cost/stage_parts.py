"""What one stage of a pipeline holds of a model: its blocks' parameters, and those of its ends.

Adapters are in blocks, so that no end of a frozen base trains, and a stage trains its own blocks'.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.pieces import piece_shape
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.shapes import Shape
from brimful.cost.states import held_numbers
from brimful.cost.trained import (
    Frozen,
    Part,
    adapter_shapes_of,
    frozen_element,
    nf4_constants,
    packed_shape,
    trained_parts,
    trained_recipe,
)
from brimful.job import QUANTIZED, Job
from brimful.models.config import layout_of
from brimful.models.layout import Parameter
from brimful.models.targets import LINEAR

Array = NDArray[np.float64]


class StageParts(NamedTuple):
    """Parameters of one stage.

    Attributes:
        block: Of each of its blocks.
        rest: Of what is in no block.
        trained: Shapes of all that trains, in the order of ``Module.parameters()``.
        every: Shapes of all parameters of the base, likewise.
        parameters: Each of the base, and whether it is a block's.
    """

    block: Part
    rest: Part
    trained: list[Shape]
    every: list[Shape]
    parameters: tuple[tuple[Parameter, bool], ...]


def stage_parts(job: Job, num_blocks: int, *, is_first: bool, is_last: bool, tp: int) -> StageParts:
    """Return the parameters of a stage.

    Args:
        job: What is trained; a head that is tied to the embedding is another weight here.
        num_blocks: Of the stage.
        is_first: Whether it has the embedding.
        is_last: Whether it has the last norm and the head.
        tp: Devices that share every matrix; the shapes are those of the first one's pieces.
    """
    layout = layout_of(job.model)
    before = layout.embedding if is_first else ()
    behind = (*layout.final, *layout.head) if is_last else ()
    inside = [*layout.blocks[0].parameters] * num_blocks
    start, blocks, end = (
        [piece_shape(parameter, tp) for parameter in some] for some in (before, inside, behind)
    )
    block, *_ = trained_parts(job, tp)
    every, ends = [*start, *blocks, *end], [*start, *end]
    own = every if job.adapter is None else [*block.trained] * num_blocks
    where = [(before, False), (inside, True), (behind, False)]
    return StageParts(
        block=block,
        rest=Part(ends, ends if job.adapter is None else []),
        trained=own,
        every=every,
        parameters=tuple((each, in_block) for some, in_block in where for each in some),
    )


def frozen_of(job: Job, parts: StageParts, shards: Array, *, whole: bool) -> Frozen:
    """Return the bytes of a base that a stage holds; nothing where everything trains.

    Args:
        job: What is trained.
        parts: Of the stage.
        shards: [1], devices that share them.
        whole: Whether each holds all of them. What decodes weights in 4 bits always is.
    """
    if job.adapter is None:
        return Frozen(0, 0)
    sizes: dict[int, list[Shape]] = {}
    for element, shape in _held(job, parts):
        sizes.setdefault(element, []).append(shape)
    num_bytes = sum(
        element * float(held_numbers(shapes, shards, whole=whole)[0])
        for element, shapes in sizes.items()
    )
    constants = sum(
        nf4_constants(each.num_elements)
        for each, in_block in parts.parameters
        if _is_packed(job, each, in_block=in_block)
    )
    return Frozen(round(num_bytes), constants)


def _held(job: Job, parts: StageParts) -> Iterator[tuple[int, Shape]]:
    """Yield the bytes of an element, and the shape, of what each parameter of a base is held as."""
    assert job.adapter is not None
    for parameter, in_block in parts.parameters:
        if _is_packed(job, parameter, in_block=in_block):
            yield 1, packed_shape(parameter)
        elif job.adapter.upcast == "norms" and parameter.kind == "norm":
            yield FP32_BYTES, parameter.shape
        else:
            yield frozen_element(job), parameter.shape


def _is_packed(job: Job, parameter: Parameter, *, in_block: bool) -> bool:
    assert job.adapter is not None
    return job.adapter.base in QUANTIZED and in_block and parameter.kind in LINEAR


def drawn_bytes(job: Job, parts: StageParts) -> Iterator[int]:
    """Yield the bytes of every weight that is drawn: of a base, and A of each adapter."""
    element, wide = frozen_element(job), trained_recipe(job).parameter
    for parameter, in_block in parts.parameters:
        if job.adapter is None or not _is_packed(job, parameter, in_block=in_block):
            yield parameter.num_elements * element
        if in_block and (adapter := adapter_shapes_of(job, parameter)):
            yield prod(adapter[0]) * wide
