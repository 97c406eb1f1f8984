"""The frozen parameters of blocks, of which copies are brought where they are on the host."""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from brimful.cost.expert_shards import EXPERTS
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.trained import (
    adapter_shapes_of,
    block_kinds,
    first_blocks,
    frozen_element,
    loaded_element,
    packed_shape,
    trained_recipe,
)
from brimful.models.layout import Parameter
from brimful.models.targets import LINEAR, PACKED
from brimful.values.job import QUANTIZED, Job

NUM_PASSES = 2
"""Of a micro-batch, in which blocks are brought: forward and backward."""


class BaseCopy(NamedTuple):
    """A frozen parameter of a block, and what tells that it was read.

    Attributes:
        num_bytes: Of it, as it is held.
        wide: Bytes of the weight that is made of a packed one; 0 of others.
        adapters: Bytes of the gradients of what is beside it, the last one first; empty where there
            is nothing.
        input: Numbers of an input of its layer; 0 of what is no linear layer's.
        is_stack: Whether it is of experts.
    """

    num_bytes: int
    wide: int = 0
    adapters: tuple[int, ...] = ()
    input: int = 0
    is_stack: bool = False


def base_copies(job: Job) -> tuple[tuple[BaseCopy, ...], ...]:
    """Return the frozen parameters of every kind of block, in the order they are brought."""
    return tuple(tuple(_copy_of(job, each) for each in some) for some in block_kinds(job.model))


def tells_reads(job: Job) -> bool:
    """Whether a profile shows when matrices are read: of blocks that hold the same.

    Adapters tell it of all plain weights; what is made of packed ones tells it of these, if the
    last of a block has adapters, behind which computing it again ends.
    """
    kinds = base_copies(job)
    layers = [copy for copy in kinds[0] if copy.input]
    has_all = all(bool(copy.adapters) for copy in layers if not copy.wide)
    return len(kinds) == 1 and bool(layers) and has_all and bool(layers[-1].adapters)


def base_sizes(job: Job, num_blocks: int | None = None) -> Iterator[int]:
    """Yield the bytes of every frozen parameter of the first blocks.

    ``num_blocks``: how many; None: all.
    """
    made = dict(zip(block_kinds(job.model), base_copies(job), strict=True))
    for parameters in first_blocks(job.model, num_blocks):
        yield from (copy.num_bytes for copy in made[parameters])


def _copy_of(job: Job, parameter: Parameter) -> BaseCopy:
    adapter, size, element = job.adapter, parameter.num_elements, trained_recipe(job).gradient
    assert adapter is not None
    if parameter.kind not in LINEAR:
        is_wide = adapter.upcast == "norms" and parameter.kind == "norm"
        num_bytes = size * (FP32_BYTES if is_wide else frozen_element(job))
        return BaseCopy(num_bytes, is_stack=parameter.kind == EXPERTS)
    is_packed = adapter.base in QUANTIZED and parameter.kind in PACKED
    shapes = adapter_shapes_of(job, parameter)
    first, last = parameter.shape
    return BaseCopy(
        num_bytes=prod(packed_shape(parameter)) if is_packed else size * frozen_element(job),
        wide=size * loaded_element(job) if is_packed else 0,
        adapters=tuple(prod(shape) * element for shape in reversed(shapes)),
        input=first if parameter.kind == "conv1d" else last,
    )
