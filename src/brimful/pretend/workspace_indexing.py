"""What indexing, counting, sorting and scanning allocate.

cub says at run time what it takes; of its radix sort and its scan that was read in its source, and
the sizes of their tiles were measured on an H200. Of all else of cub's nobody knows here.
"""

import torch

from brimful.pretend.workspace_call import (
    MEASURED,
    Call,
    Workspaces,
    ceil_div,
    copied,
    is_deterministic,
    round_up,
    size,
)
from brimful.pretend.workspace_reductions import partial_sums, reduced_dims

_MASKS = (torch.bool, torch.uint8)
_INDEX_BYTES = 8
SMALL_SORT = 4096
"""Elements along the dimension that are sorted in place (``should_use_small_sort``)."""
FEW_ROWS = 128
LONG_ROW = 1_000_000
"""Fewer rows than this are sorted as one, with the row in front of each place; longer ones alone
(``launch_stable_sort_kernel`` of SortStable.cu)."""
ALIGNMENT = 256
"""Of each part of cub's temporary storage, and once more of the whole."""
RADIX_DIGITS, COUNT_BYTES, OFFSET_BYTES = 256, 4, 8
SORT_TILES = {2: 5632, 4: 5376, 8: 4608}
"""Elements that a block of threads sorts at once, by bytes of a key, with places of 8 bytes; other
cards than the measured one have other tiles, and count no digits of narrow keys."""
ONE_TILE = 2304
"""Elements that one block sorts alone, with places of 8 bytes (``SingleTilePolicy``)."""
FEW_PLACES = 512
"""Places that one block of threads sorts on every card (``SingleTilePolicy``)."""
SCAN_TILES = {4: (1920, 8), 8: (896, 16)}
"""Elements that a block scans at once, and bytes of what it leaves, by bytes of an element."""
SCAN_PADDING = 32
"""States beside those of the tiles (``TILE_STATUS_PADDING``)."""
_LEAST_TILE, _STATE_BYTES = 512, 16
"""Elsewhere no scan has smaller tiles (``DeviceScanPolicy`` of cub's ``tuning_scan.cuh``) or more
bytes a state."""
ONE_BLOCK = 400
"""Elements below which one block of threads finds the largest of a row, however many rows there are
(``should_use_multiblock``)."""


def index_put(call: Call) -> Workspaces | None:
    """``index_put``: one mask and one value are a ``masked_fill``; places are written as they are.

    With accumulation places are sorted, and so where algorithms are to be deterministic; masks with
    more than one value become places first.
    """
    indices = [index for index in call.arg("indices") if index is not None]
    are_masks = [index.dtype in _MASKS for index in indices]
    if call.arg("accumulate"):
        is_first = len(indices) == 1 and call.arg("indices")[0] is indices[0]
        is_plain = is_first and indices[0].dtype == torch.int64 and call.capability == MEASURED
        return _added_up(call, indices[0]) if is_plain else _few_added_up(call, indices)
    if any(are_masks):
        return () if len(indices) == 1 and call.arg("values").numel() == 1 else None
    return None if is_deterministic() else _alike(indices)


def _added_up(call: Call, index: torch.Tensor) -> Workspaces:
    """``index_put_with_sort_kernel``: places, their order and both sorted, and whole values."""
    x, values, num = call.arg("self"), call.arg("values"), index.numel()
    whole = num * (x.numel() // max(x.shape[0], 1))
    is_whole = values.numel() == whole and values.is_contiguous()
    bits = max(1, (x.shape[0] - 1).bit_length())
    return (
        *size(0 if is_whole else whole * values.element_size(), "whole and contiguous values"),
        *size(4 * num * _INDEX_BYTES, "places, their order, and both sorted"),
        *size(radix_sort_bytes(num, _INDEX_BYTES, bits=bits), "cub's radix sort"),
    )


def _few_added_up(call: Call, indices: list[torch.Tensor]) -> Workspaces | None:
    """Of so few places, one block of threads sorts them on any card; None: of more.

    Each index is wrapped and multiplied by its stride (``computeLinearIndex``), at most.
    """
    num = torch.broadcast_shapes(*(index.shape for index in indices)).numel()
    given = call.arg("indices")[: len(indices)]
    is_first = all(index is not None for index in given) and call.arg("self").is_contiguous()
    if num > FEW_PLACES or not is_first or any(index.dtype in _MASKS for index in indices):
        return None  # another order would be a copy of all
    values = call.arg("values")
    return (
        *size(values.numel() * values.element_size(), "whole and contiguous values, at most"),
        *size((4 + 2 * len(indices)) * num * _INDEX_BYTES, "places of each index, at most"),
    )


def _alike(indices: list[torch.Tensor]) -> Workspaces:
    """Several indices whose strides differ are copied (``AdvancedIndex`` of IndexingUtils)."""
    if len({index.stride() for index in indices}) < 2:  # noqa: PLR2004 - differ
        return ()
    return tuple(w for index in indices for w in copied(index, "contiguous copy of an index"))


def counted(call: Call) -> Workspaces:
    """``count_nonzero``: a mask of what is not zero, and its sum, which reads it as int64."""
    x = call.arg("self")
    mask = size(x.numel() if x.dtype != torch.bool else 0, "mask of what is not zero")
    widened = size(x.numel() * _INDEX_BYTES, "the mask in the type of the result")
    return (*mask, *widened, *partial_sums(x, reduced_dims(call), _INDEX_BYTES, 4))


def sorted_rows(call: Call) -> Workspaces | None:
    """``sort``, ``argsort``: short rows are sorted where the results lie; long ones by cub."""
    x = call.arg("self")
    dim = call.arg("dim") % max(x.dim(), 1)
    length = x.shape[dim] if x.dim() else 1
    if length <= SMALL_SORT:
        return size(length * _INDEX_BYTES, "places of a row")
    key_bytes = x.element_size()
    is_plain = dim == x.dim() - 1 and x.is_contiguous() and key_bytes in SORT_TILES
    if not is_plain or call.capability != MEASURED:
        return None
    num, rows = x.numel(), x.numel() // length
    places = size(num * _INDEX_BYTES, "places of all")
    if rows == 1 or length >= LONG_ROW:
        return (*places, *size(radix_sort_bytes(length, key_bytes), "cub's radix sort"))
    if rows >= FEW_ROWS:
        second = round_up(num * key_bytes, ALIGNMENT) + round_up(num * _INDEX_BYTES, ALIGNMENT)
        return (*places, *size(second + ALIGNMENT - 1, "cub's segmented sort"))
    return (
        *places,
        *size(num * (key_bytes + _INDEX_BYTES), "sorted keys, and their rows beside their places"),
        *size(radix_sort_bytes(num, key_bytes), "cub's radix sort"),
    )


def radix_sort_bytes(num: int, key_bytes: int, *, bits: int | None = None) -> int:
    """Return what cub's radix sort takes for keys with places of 8 bytes, in bytes.

    A second copy of both, a count of every digit for each tile, and of all tiles for every digit of
    a key; nothing of keys that one block of threads sorts, for which a byte is asked.

    ``bits``: of a key that are looked at; None: all.
    """
    if num <= ONE_TILE:
        return 1
    tiles, digits = ceil_div(num, SORT_TILES[key_bytes]), ceil_div(bits or 8 * key_bytes, 8)
    parts = (
        num * key_bytes,
        num * _INDEX_BYTES,
        tiles * RADIX_DIGITS * COUNT_BYTES,
        digits * RADIX_DIGITS * OFFSET_BYTES,
        digits * COUNT_BYTES,
    )
    return sum(round_up(part, ALIGNMENT) for part in parts) + ALIGNMENT - 1


def scan(call: Call) -> Workspaces:
    """``cumsum`` and its like: rows side by side take nothing, one row alone is scanned by cub."""
    x = call.arg("self")
    if not x.dim() or x.numel() != x.shape[call.arg("dim")]:
        return ()
    element = call.out.element_size()
    if call.capability != MEASURED or element not in SCAN_TILES:
        states = ceil_div(x.numel(), _LEAST_TILE) + SCAN_PADDING
        return size(states * _STATE_BYTES, "states of the tiles of a scan, at most")
    return size(scan_bytes(x.numel(), element), "states of the tiles of a scan")


def scan_bytes(num: int, element: int) -> int:
    """Return what cub's scan takes: a state for each tile, and one for the first value.

    ``element``: bytes of each.
    """
    tile, state = SCAN_TILES[element]
    states = (ceil_div(num, tile) + SCAN_PADDING) * state
    return round_up(states, ALIGNMENT) + 2 * ALIGNMENT - 1


def masked_scatter(call: Call) -> Workspaces:
    """``masked_scatter``: for every element the number of masked ones before it, in int64."""
    num = call.arg("self").numel()
    scanned = scan_bytes(num, _INDEX_BYTES) if call.capability == MEASURED else 0
    return (
        *size(num * _INDEX_BYTES, "prefix sums of the mask, int64"),
        *size(scanned, "states of the tiles of a scan"),
    )


def histogram(call: Call) -> Workspaces | None:
    """``histc``: nothing where the range is given."""
    return None if call.arg("min") == call.arg("max") else ()


def small_topk(call: Call) -> Workspaces | None:
    """``topk``: of short rows a contiguous input; results are sorted in place."""
    x = call.arg("self")
    length = x.shape[call.arg("dim")] if x.dim() else 1
    return copied(x, "contiguous copy of the input") if length < ONE_BLOCK else None
