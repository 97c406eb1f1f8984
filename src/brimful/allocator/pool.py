"""The pools of a caching allocator, how blocks are written as numbers, and what becomes of memory.

Owns values only; the rules are in ``state.py``.
"""

from typing import Literal, NamedTuple

from brimful.allocator.config import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)

ADDRESS_BITS = 64
"""A block is one number: ``size << ADDRESS_BITS | address``."""
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
STILL_WAITING = 1 << 62
"""Later than any event."""
SPAN_BYTES = LARGE_SEGMENT_BYTES << 22
"""Address space of an expandable segment, 80 TiB. PyTorch takes 9/8 of the card's memory and opens
another segment when that is used up, which only matters after much unmapping: here only what runs
on a card without end takes more than one. A hundred of them stay below 2**53, so that viewers
written in JavaScript can hold every address."""

Action = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap", "free_completed"]
"""PyTorch's names for what happens to device memory (``TraceEntry::Action``)."""


class Change(NamedTuple):
    """Something that happened to device memory, apart from a request or a free of the program.

    Attributes:
        event: The event of the tape before which it happened.
        action: What happened.
        address: Where, in bytes.
        num_bytes: To how many bytes.
        stream: The stream of the pool.
        is_small: Whether the pool serves small requests.
        row: For ``free_completed`` the row whose block is free at last; else -1.
    """

    event: int
    action: Action
    address: int
    num_bytes: int
    stream: int
    is_small: bool
    row: int


class Waiting(NamedTuple):
    """A freed block that another stream still uses: until when, whose, and where it belongs."""

    until_event: int
    row: int
    pool: "Pool"
    block: int


class Pool:
    """The blocks of one stream, small or large.

    Attributes:
        stream: The stream that it serves.
        is_small: Whether it serves requests of at most ``SMALL_BYTES``.
        free: Its free blocks, smallest first.
        gaps: First addresses of the unmapped ranges of its expandable segment.
        least_rest_bytes: What must be left of a block for it to be split.
        page_bytes: By which its expandable segment grows.
        reserved_bytes: What it holds of the device.
    """

    __slots__ = (
        "free",
        "gaps",
        "is_small",
        "least_rest_bytes",
        "page_bytes",
        "reserved_bytes",
        "stream",
    )

    def __init__(self, stream: int, *, is_small: bool, expandable: bool) -> None:
        """Make an empty pool."""
        self.stream = stream
        self.is_small = is_small
        self.free: list[int] = []
        self.gaps: list[int] = []
        # should_split: a small or expandable remainder of 512 B is kept, a large one above 1 MiB.
        keeps_all = is_small or expandable
        self.least_rest_bytes = MIN_BLOCK_BYTES if keeps_all else SMALL_BYTES + 1
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self.reserved_bytes = 0
