"""What a CUDA reduction over many blocks of threads leaves beside its result. No torch.

A reduction with few outputs and many inputs is split over blocks; each leaves its part in a buffer
of the caching allocator, far larger than the outputs where the inputs of one output are not
neighbours in memory. The arithmetic follows ``setReduceConfig`` of
``aten/src/ATen/native/cuda/Reduce.cuh``, the order of dimensions ``TensorIterator.cpp``.
"""

import math
from typing import NamedTuple

from brimful.hardware.cuda_chips import Multiprocessors

MAX_THREADS = 512
WARP = 32
MIN_VALUES, MAX_VALUES = 16, 256
"""Values that a thread is left with at least, and those from which a sum is split further."""
SEMAPHORE_BYTES = 4
INDEX_LIMIT = 2**31
_FLOAT_BYTES, _LOW_BYTES = 4, 2


class Dim(NamedTuple):
    """One dimension of the iteration.

    Attributes:
        length: Elements.
        output_stride: In elements; 0 where it is reduced.
        input_stride: In elements.
    """

    length: int
    output_stride: int
    input_stride: int


class Reduction(NamedTuple):
    """One reduction kernel.

    Attributes:
        dims: Of the iteration, fastest first, reduced ones before the others.
        element_bytes: Size of the type that results are added up in.
        input_vector: Elements that a thread loads at once along a reduced dimension.
    """

    dims: tuple[Dim, ...]
    element_bytes: int
    input_vector: int


def row_sums_bytes(rows: int, columns: int, element_bytes: int, chip: Multiprocessors) -> int:
    """Return what adding up the rows of a contiguous matrix leaves beside its columns' sums.

    ``element_bytes``: of an input and of a sum; those of two bytes are added up in fp32.
    """
    return partial_sums_bytes((rows, columns), 0, element_bytes, chip)


def partial_sums_bytes(
    shape: tuple[int, ...], dim: int, element_bytes: int, chip: Multiprocessors
) -> int:
    """Return what adding up along a dimension of contiguous numbers leaves beside the sums.

    ``element_bytes``: of an input and of a sum; those of two bytes are added up in fp32.
    """
    if not 0 < math.prod(shape) < INDEX_LIMIT:  # beyond, PyTorch reduces in pieces; not followed
        return 0
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    dims = ordered(shape, strides, (dim,))
    vector = 8 if element_bytes == _LOW_BYTES else 4
    buffer, _ = global_memory(Reduction(dims, max(element_bytes, _FLOAT_BYTES), vector), chip)
    return buffer


def ordered(
    shape: tuple[int, ...], strides: tuple[int, ...], reduced: tuple[int, ...]
) -> tuple[Dim, ...]:
    """Order and merge dimensions as TensorIterator does for a reduction."""
    lengths = [1 if d in reduced else n for d, n in enumerate(shape)]
    dims = [
        Dim(n, 0 if d in reduced else math.prod(lengths[d + 1 :]), strides[d])
        for d, n in enumerate(shape)
    ][::-1]
    for start in range(1, len(dims)):
        moving = start
        for place in range(start - 1, -1, -1):
            order = _compare(dims[place], dims[moving])
            if order > 0:
                dims[place], dims[moving] = dims[moving], dims[place]
                moving = place
            elif order < 0:
                break
    return _merged(dims)


def _compare(a: Dim, b: Dim) -> int:
    """``should_swap`` of TensorIterator::reorder_dimensions: positive if b comes first."""
    if (a.output_stride == 0) != (b.output_stride == 0):
        return 1 if b.output_stride == 0 else -1
    for one, other in ((a.output_stride, b.output_stride), (a.input_stride, b.input_stride)):
        if one == 0 or other == 0:
            continue
        if one != other:
            return -1 if one < other else 1
        if a.length > b.length:
            return 1
    return 0


def _merged(dims: list[Dim]) -> tuple[Dim, ...]:
    merged: list[Dim] = []
    for dim in dims:
        last = merged[-1] if merged else None
        if last is not None and (dim.length == 1 or last.length == 1):
            merged[-1] = dim if last.length == 1 else last
        elif last is not None and (
            last.length * last.output_stride == dim.output_stride
            and last.length * last.input_stride == dim.input_stride
        ):
            merged[-1] = last._replace(length=last.length * dim.length)
        else:
            merged.append(dim)
    return tuple(merged)


def _pow2(value: int) -> int:
    return 1 << max(value, 1).bit_length() - 1


def _output_vector(reduction: Reduction, num_reduced: int) -> int:
    """``get_output_vec_size``: neighbouring outputs that a thread takes at once."""
    dims = reduction.dims
    vector = 4
    steps = [dims[num_reduced].length]
    steps += [dim.input_stride for place, dim in enumerate(dims) if place != num_reduced]
    for step in steps:
        while step % vector:
            vector //= 2
    return vector


def global_memory(reduction: Reduction, chip: Multiprocessors) -> tuple[int, int]:
    """Return the bytes of the blocks' partial results and of their semaphores.

    Source: ``setReduceConfig`` and ``ReduceConfig`` of Reduce.cuh.
    """
    dims = reduction.dims
    num_reduced = sum(dim.output_stride == 0 for dim in dims)
    num_outputs = math.prod(dim.length for dim in dims[num_reduced:])
    num_inputs = math.prod(dim.length for dim in dims[:num_reduced])
    along = num_reduced == len(dims) or (
        num_reduced > 0 and dims[0].input_stride < dims[num_reduced].input_stride
    )
    dim0, dim1 = (num_inputs, num_outputs) if along else (num_outputs, num_inputs)
    vector = 1
    if dims and dims[0 if along else num_reduced].input_stride == 1:
        if along and dim0 >= 128 and num_reduced == 1:  # noqa: PLR2004
            dim0 //= reduction.input_vector
        elif not along:
            vector = _output_vector(reduction, num_reduced)
            dim0 //= vector
    width, height = _block(dim0, dim1, MAX_THREADS // vector)
    block = _Block(width, height, vector, along, num_outputs, num_inputs)
    return _split(reduction, block, chip)


def _block(dim0: int, dim1: int, max_threads: int) -> tuple[int, int]:
    """``set_block_dimension``."""
    dim0 = _pow2(dim0) if dim0 < max_threads else max_threads
    dim1 = _pow2(dim1) if dim1 < max_threads else max_threads
    height = min(dim1, max_threads // min(dim0, WARP))
    return min(dim0, max_threads // height), height


class _Block(NamedTuple):
    width: int
    height: int
    vector: int
    along: bool
    num_outputs: int
    num_inputs: int


def _split(reduction: Reduction, block: _Block, chip: Multiprocessors) -> tuple[int, int]:
    step_input = block.width if block.along else 1
    step_output = 1 if block.along else block.width
    values = -(-block.num_inputs // step_input)
    if values < min(block.height * 16, MAX_VALUES):
        return 0, 0
    values = -(-block.num_inputs // (step_input * block.height))
    grid = -(-(block.num_outputs // block.vector) // step_output)
    per_card = chip.num_multiprocessors * (
        chip.threads_per_multiprocessor // (block.width * block.height)
    )
    if values < MAX_VALUES or grid > per_card:
        return 0, 0
    blocks = max(min(-(-per_card // grid), -(-values // MIN_VALUES)), -(-values // MAX_VALUES))
    if blocks <= 1:
        return 0, 0
    buffer = reduction.element_bytes * block.num_outputs * blocks
    if not block.along:
        buffer *= block.width * block.vector
    return buffer, SEMAPHORE_BYTES * grid
