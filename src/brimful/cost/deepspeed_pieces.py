"""The flat pieces of a process of DeepSpeed's engine: how large they are, and of what."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import Literal, NamedTuple

from brimful.build.deepspeed.config import HELD, engine_settings
from brimful.cost.recipes import FP32_BYTES, HALF_BYTES
from brimful.cost.shapes import parameter_shapes
from brimful.models.config import layout_of
from brimful.techniques.deepspeed_settings import EngineSettings
from brimful.values.job import Job
from brimful.values.strategy import Strategy, world_size

_ALIGNED = 2
"""Numbers to which a device's share is aligned (``nccl_start_alignment_factor``)."""

Reached = Literal["first", "behind the first", "before the last", "last"]
"""At which block's backward, or beside which, a process's share is reached."""


class Pieces(NamedTuple):
    """Numbers of what a process holds.

    Attributes:
        element: Bytes of a parameter and of a gradient.
        sizes: Of every parameter, in order.
        whole: Of all parameters, aligned.
        share: Of the process's share.
        touched: Of all parameters that its share has a part of.
        largest: Of the largest of these parts.
        passed: Of the gradients that went through the bucket before stage 1 makes its share.
        reached: When a backward comes to its share.
        of_block: Of the largest parameter of a block.
        kept_whole: Of parameters that stage 3 does not part.
        settings: How its engine shards.
    """

    element: int
    sizes: tuple[int, ...]
    whole: int
    share: int
    touched: int
    largest: int
    passed: int
    reached: Reached
    of_block: int
    kept_whole: int
    settings: EngineSettings

    @property
    def bucket(self) -> int:
        """Numbers of gradients that are reduced together."""
        return self.settings.reduce_bucket_size

    @property
    def in_buckets(self) -> int:
        """Numbers of stage 1's and 2's bucket, or of two that take turns."""
        return self.bucket * (1 + self.settings.overlap_comm)


def pieces_of(job: Job, strategy: Strategy, rank: int = 0) -> Pieces:
    """Return the sizes of a process's flat pieces.

    ``strategy``: how, with ``engine=deepspeed``.
    """
    sizes = tuple(prod(shape) for shape in parameter_shapes(job.model))
    num, settings = world_size(strategy), engine_settings(job, strategy)
    share = -(-sum(sizes) // (_ALIGNED * num)) * _ALIGNED
    first, last = rank * share, (rank + 1) * share
    mine = _touched(sizes, share, rank)
    small = [size for size in sizes if size <= settings.stage3_param_persistence_threshold]
    begin = min(mine, default=(0, 0))[0]
    return Pieces(
        element=HALF_BYTES if HELD.get(job.precision) in {"bf16", "fp16"} else FP32_BYTES,
        sizes=sizes,
        whole=share * num,
        share=share,
        touched=sum(end - begin for begin, end in mine),
        largest=max((min(end, last) - max(begin, first) for begin, end in mine), default=0),
        passed=_passed(sizes, begin, settings.reduce_bucket_size),
        reached=_reached(job, last),
        of_block=max(
            each.num_elements for run in layout_of(job.model).blocks for each in run.parameters
        ),
        kept_whole=sum(small),
        settings=settings,
    )


def _passed(sizes: Sequence[int], begin: int, bucket: int) -> int:
    """Return the numbers that went into the bucket, by when one is reduced that has the share's.

    ``begin``: where the first parameter begins that the share has a part of.
    """
    place = passed = filled = 0
    is_there = False
    for size in sizes:
        if filled + size > bucket:
            if is_there:
                break
            filled = 0
        filled += size
        passed += size * (size <= bucket)
        is_there = is_there or place >= begin
        place += size
    return passed


def _touched(sizes: Sequence[int], share: int, rank: int) -> list[tuple[int, int]]:
    """Return the parameters that a process's share has a part of, each by its begin and end."""
    spans = zip(sizes, accumulate(sizes), strict=True)
    first, last = rank * share, (rank + 1) * share
    return [(end - n, end) for n, end in spans if end - n < last and end > first]


def _reached(job: Job, last: int) -> Reached:
    """Say when a backward comes to the parameters before a place.

    Blocks between the first and the last are one run: those behind the middle stand for its begin,
    those before it for its end.
    """
    layout = layout_of(job.model)
    of_block = [each.num_elements for each in layout.blocks[-1].parameters]
    before = [each.num_elements for each in layout.embedding]
    behind = [each.num_elements for each in (*layout.final, *layout.head)]
    num = sum(prod(shape) for shape in parameter_shapes(job.model))
    if last > num - sum(behind) - sum(of_block):
        return "first"
    if last <= sum(before) + sum(of_block):
        return "last"
    return "behind the first" if 2 * last > num else "before the last"


def copies_of(pieces: Pieces) -> Iterator[int]:
    """Yield the numbers that stage 1 reduces together, behind a backward, out of a flat copy.

    What is of one process's share alone is not copied (``_flatten_dense_tensors`` of one tensor).
    """
    begin = end = 0
    for size in (*pieces.sizes, pieces.bucket):
        if end - begin + size > pieces.bucket and end > begin:
            if begin // pieces.share != (end - 1) // pieces.share:
                yield end - begin
            begin = end
        end += size


def shares_of(pieces: Pieces, num_devices: int) -> list[int]:
    """Return what stage 3 gives a process of each parameter, padded."""
    return [-(-size // num_devices) for size in pieces.sizes]


def sub_groups(pieces: Pieces, num_devices: int) -> list[int]:
    """Return how many numbers of a share stage 3 updates at a time: of whole parameters.

    Source: ``_create_fp16_sub_groups`` of ``runtime/zero/stage3.py``.
    """
    most, groups, num = pieces.settings.sub_group_size, list[int](), 0
    shares = shares_of(pieces, num_devices)
    if sum(shares) <= most:
        return [sum(shares)]
    for share in shares:
        num += share
        if num >= most:
            groups.append(num)
            num = 0
    return [*groups, num] if num else groups
