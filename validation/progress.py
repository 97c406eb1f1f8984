"""A line on stderr per case, so that a long proof is seen to move."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shown(what: str, items: Sequence[Item]) -> Iterator[Item]:
    """Yield the items and say how far they are."""
    start_s = time.perf_counter()
    for number, item in enumerate(items, 1):
        yield item
        spent_s = time.perf_counter() - start_s
        left_s = spent_s / number * (len(items) - number)
        print(
            f"{what}: {number} of {len(items)}, {spent_s:.0f} s, about {left_s:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
