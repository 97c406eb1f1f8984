"""Ranges of a parameter's numbers in a checkpoint: as boxes of it, which any other sharding reads.

A range begins and ends in the middle of a row (``own.Range``), and ``torch.distributed.checkpoint``
(DCP) knows boxes only: the rest of a row, whole rows, the beginning of one. So a run that is saved
by FSDP1 is gone on with by FSDP2, or on one device, and the other way round.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from brimful.build.own import Range, range_of


class Box(NamedTuple):
    """A part of a tensor that has a beginning and a length in every dimension.

    Attributes:
        offsets: Where it begins.
        sizes: How long it is.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that a range of a tensor's numbers consists of, in order.

    ``start``: the first number, in the order in which they lie.
    """
    if start >= stop:
        return
    if len(shape) < 2:  # noqa: PLR2004 - a row, or one number
        yield Box((start,), (stop - start,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # inside of one row
        yield from _in_row(shape, last, start, stop)
        return
    yield from _in_row(shape, first - 1, start, first * row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last - first, *shape[1:]))
    yield from _in_row(shape, last, last * row, stop)


def _in_row(shape: tuple[int, ...], place: int, start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes of a range that lies in one row."""
    before = place * prod(shape[1:])
    for box in boxes(shape[1:], start - before, stop - before):
        yield Box((place, *box.offsets), (1, *box.sizes))


def in_boxes(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return tensors as DCP takes them: ranges in boxes, all others as they are."""
    ranges = {name: range_of(tensor) for name, tensor in tensors.items()}
    return {
        name: tensor if (found := ranges[name]) is None else _boxed(tensor, found)
        for name, tensor in tensors.items()
    }


class _Boxed(torch.Tensor):  # type: ignore[misc]  # torch is untyped to mypy
    """A range of numbers, to DCP, which wants a tensor; names of methods are DCP's.

    Attributes:
        whole: Shape of all numbers.
        boxes: Memory of each box, by where it begins.

    Source: ``torch/distributed/_checkpointable.py``.
    """

    whole: torch.Size
    boxes: dict[torch.Size, torch.Tensor]

    def size(self) -> torch.Size:
        """Return the shape of all numbers, which DCP asks for."""
        return self.whole

    def __create_write_items__(self, fqn: str, _object: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(offsets=offsets, sizes=memory.shape),
                    properties=TensorProperties.create_from_tensor(memory),
                    size=self.whole,
                ),
            )
            for offsets, memory in self.boxes.items()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [
            ChunkStorageMetadata(offsets=offsets, sizes=memory.shape)
            for offsets, memory in self.boxes.items()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None, "of a box"
        return self.boxes[index.offset]


def _boxed(own: torch.Tensor, which: Range) -> _Boxed:
    made: _Boxed = own.as_subclass(_Boxed)
    made.whole, made.boxes, place = which.shape, {}, 0
    for box in boxes(tuple(which.shape), which.start, which.stop):
        num = prod(box.sizes)
        made.boxes[torch.Size(box.offsets)] = own[place : place + num].view(box.sizes)
        place += num
    return made
