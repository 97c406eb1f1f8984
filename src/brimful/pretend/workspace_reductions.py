"""What reductions allocate: partial results of many blocks, and the input in another type.

A reduction with few outputs and many inputs is split over blocks of threads; each block leaves its
part in a buffer. Where the inputs of one output are not neighbours in memory (the sum over tokens
that makes a bias gradient) that buffer is far larger than the outputs: 132 MiB for 16,384 tokens
of 4,096 features on an H100 (``hardware/cuda_reductions.py``).
"""

import torch

from brimful.hardware.cuda_reductions import INDEX_LIMIT, Reduction, global_memory, ordered
from brimful.pretend import kernels
from brimful.pretend.workspace_call import FLOAT_BYTES, Call, Workspaces, size

_LOW = (torch.float16, torch.bfloat16)


def sums(call: Call) -> Workspaces:
    """``sum``, ``mean``, ``prod`` and norms: added up in fp32, or in their own wider type.

    Only half precision is read as it is when the result is wider; any other input is first made
    into the type of the result (``make_reduction_from_out_ty`` in ReduceOpsUtils.h).
    """
    x, out = call.args[0], call.out
    read_as = x.dtype if x.dtype in _LOW and out.dtype == torch.float32 else out.dtype
    widened = 0 if x.dtype == read_as else x.numel() * out.element_size()
    element = FLOAT_BYTES if read_as in _LOW else out.element_size()
    vector = 8 if read_as in _LOW else 4
    return (
        *size(widened, "the input in the type of the result"),
        *partial_sums(x, reduced_dims(call), element, vector),
    )


def extremes(call: Call) -> Workspaces:
    """``amax``, ``amin``, ``any``, ``all``, ``max``, ``min`` of one type."""
    x = call.args[0]
    element = 1 if call.out.dtype == torch.bool else x.element_size()
    return partial_sums(x, reduced_dims(call), element, 4)


def indexed_extremes(call: Call) -> Workspaces:
    """``argmax``, ``max.dim`` and their like carry an int64 index beside every value."""
    return partial_sums(call.args[0], reduced_dims(call), 16, 4)


def maxima(call: Call) -> Workspaces:
    """``max`` and ``min``: of all entries, along a dimension, or of two tensors (elementwise)."""
    overload = call.func._schema.overload_name  # noqa: SLF001
    if not overload.startswith("dim"):
        return () if overload else extremes(call)
    return indexed_extremes(call)


def moments(call: Call) -> Workspaces:
    """``var``, ``std`` and their like: mean, squares, a count and the count as a number."""
    return partial_sums(call.args[0], reduced_dims(call), 16, 2)


def reduced_dims(call: Call) -> tuple[int, ...]:
    """Return the dimensions that a call reduces."""
    x = call.args[0]
    names = [argument.name for argument in call.func._schema.arguments]  # noqa: SLF001
    dim = call.arg("dim") if "dim" in names else None
    if dim is None or dim == []:
        return tuple(range(x.dim()))
    return tuple(d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim))


def partial_sums(
    x: torch.Tensor, reduced: tuple[int, ...], element_bytes: int, input_vector: int
) -> Workspaces:
    """Return what the blocks of a reduction leave for one another."""
    if not 0 < x.numel() < INDEX_LIMIT:  # beyond, PyTorch reduces in pieces; not followed
        return ()
    dims = ordered(tuple(x.shape), tuple(x.stride()), reduced)
    buffer, semaphores = global_memory(
        Reduction(dims, element_bytes, input_vector), kernels.imitated().chip
    )
    return (
        *size(buffer, "partial results of every block"),
        *size(semaphores, "semaphores of the blocks"),
    )
