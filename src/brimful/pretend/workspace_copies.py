"""What CUDA's fused copies of many tensors take: the lists that tell blocks of threads their parts.

``pack_vecs`` sends them to the card as one tensor of 8-byte numbers for every call.
"""

import torch

from brimful.pretend.workspace_call import Call, Workspaces, ceil_div, size

ADDRESS_BYTES = 8
TILE_BYTES = 128 * 16
"""What a block of threads copies at least: ``BLOCK_SIZE`` x ``BYTES_PER_THREAD``."""
_WHY = "addresses and sizes of tensors that are copied together"


def chunk_cat(call: Call) -> Workspaces | None:
    """``_chunk_cat``: seven lists, six of a number for each tensor and one for each block.

    Nobody knows where it is written out instead (tensors with gaps, other casts than bf16 to fp32).
    """
    tensors, out, num_chunks = call.arg("tensors"), call.arg("out"), call.arg("num_chunks")
    first = tensors[0].dtype
    is_fused = first == out.dtype or (first, out.dtype) == (torch.bfloat16, torch.float32)
    if call.arg("dim") or not is_fused or not all(map(_is_dense, tensors)):
        return None
    rows = [ceil_div(x.shape[0], num_chunks) * (x.numel() // x.shape[0]) for x in tensors]
    chunks = [count * out.element_size() for count in rows]
    num_blocks = sum(ceil_div(chunk, TILE_BYTES) for chunk in chunks)
    return size(ADDRESS_BYTES * (6 * len(tensors) + 2 + num_blocks), _WHY)


def split_copy(call: Call) -> Workspaces | None:
    """``split_with_sizes_copy``: five lists, four of a number for each result, one for each block.

    At most: a block that copies more than one tile makes the last list shorter.
    """
    whole, out = call.arg("all_gather_output"), call.arg("out")
    if not _is_dense(whole) or not all(_is_dense(x) and x.dtype == whole.dtype for x in out):
        return None
    sizes, dim = call.arg("all_gather_input_split_sizes"), call.arg("dim")
    each = whole.stride(dim) * whole.element_size()
    num_blocks = sum(ceil_div(length * each, TILE_BYTES) for length in sizes)
    return size(ADDRESS_BYTES * (4 * len(sizes) + 1 + num_blocks), _WHY)


def _is_dense(x: torch.Tensor) -> bool:
    return bool(x.is_contiguous())
