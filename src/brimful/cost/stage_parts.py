"""What one stage of a pipeline holds of a model: its blocks' parameters, and those of its ends.

Adapters are in blocks, so that no end of a frozen base trains, and a stage trains its own blocks'.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.expert_shards import held_shape, own_shape
from brimful.cost.family import Family
from brimful.cost.pieces import piece_shape
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.stage_first import Ends
from brimful.cost.trained import (
    Part,
    adapter_shapes_of,
    block_kinds,
    frozen_element,
    told,
    told_beside,
    trained_parts,
    trained_recipe,
)
from brimful.models.config import layout_of
from brimful.models.layout import Parameter
from brimful.models.spec import ModelSpec
from brimful.techniques.optimizers import Updated
from brimful.values.job import Job

Array = NDArray[np.float64]


class StageParts(NamedTuple):
    """Parameters of one stage.

    Attributes:
        blocks: Of every kind of block of the model (``block_kinds``), without parted experts.
        parts: Which of these each of its blocks is.
        rest: Of what is in no block.
        trained: All that trains, in the order of ``Module.parameters()``.
        parameters: Each of the base, and whether it is a block's.
    """

    blocks: tuple[Part, ...]
    parts: tuple[int, ...]
    rest: Part
    trained: list[Updated]
    parameters: tuple[tuple[Parameter, bool], ...]

    @property
    def numbers(self) -> list[int]:
        """How many of its blocks are of each kind."""
        return [self.parts.count(part) for part in range(len(self.blocks))]


def parts_of_blocks(model: ModelSpec) -> tuple[int, ...]:
    """Return of every block of a model which of those it is that hold other parameters."""
    kinds = list(block_kinds(model))
    every = ((kinds.index(run.parameters), run.num_blocks) for run in layout_of(model).blocks)
    return tuple(part for part, num in every for _ in range(num))


def stage_parts(
    job: Job, parts: tuple[int, ...], ends: Ends, tp: int, *, ep: int = 1
) -> StageParts:
    """Return the parameters of a stage.

    ``job``: what is trained; a head that is tied to the embedding is another weight here.
    ``parts``: of its blocks (``parts_of_blocks``). ``ends``: of the model: the embedding; the last
    norm and the head. ``tp``: devices that share every matrix; the shapes are those of the first
    one's pieces. ``ep``: devices that part experts, of which the shapes are one's; these are in no
    kind of block.
    """
    layout = layout_of(job.model)
    before = layout.embedding if ends.is_first else ()
    behind = (*layout.final, *layout.head) if ends.is_last else ()
    kinds = list(block_kinds(job.model))
    inside = [parameter for part in parts for parameter in kinds[part]]
    where = [(before, False), (inside, True), (behind, False)]
    every = [
        told(job, each, own_shape(each, ep) if ep > 1 else piece_shape(each, tp), in_block=in_block)
        for some, in_block in where
        for each in some
    ]
    around = [each.shape for each in (*every[: len(before)], *every[len(before) + len(inside) :])]
    *blocks_held, _ = trained_parts(job, tp, apart=ep > 1)
    adapters = [told_beside(job, shape) for part in parts for shape in blocks_held[part].trained]
    own = every if job.adapter is None else adapters
    return StageParts(
        blocks=tuple(blocks_held),
        parts=parts,
        rest=Part(around, around if job.adapter is None else []),
        trained=own,
        parameters=tuple((each, in_block) for some, in_block in where for each in some),
    )


def frozen_bytes_of(job: Job, family: Family, parts: StageParts, num_shards: int) -> int:
    """Return the bytes of a base that a stage holds; none where everything trains.

    ``job``: what is trained; no pipeline runs a base that is quantised.
    """
    if job.adapter is None:
        return 0
    total, shared = 0, num_shards if family.gathers else 1
    for parameter, _ in parts.parameters:
        is_wide = job.adapter.upcast == "norms" and parameter.kind == "norm"
        element = FP32_BYTES if is_wide else frozen_element(job)
        total += element * prod(held_shape(parameter, family, shared))
    return total


def drawn_bytes(job: Job, parts: StageParts) -> Iterator[int]:
    """Yield the bytes of every weight that is drawn: of a base, and A of each adapter."""
    element, wide = frozen_element(job), trained_recipe(job).parameter
    for parameter, in_block in parts.parameters:
        yield parameter.num_elements * element
        if in_block and (adapter := adapter_shapes_of(job, parameter)):
            yield prod(adapter[0]) * wide
