"""What an allocator may hold more for requests that were not replayed."""

from collections.abc import Iterable

import numpy as np

from brimful.allocator.config import segment_sizes


def most_beside(sizes: Iterable[int]) -> int:
    """Return what requests take at most that stand on no tape: a segment of its own for each.

    ``sizes``: of the requests that are there at once, in bytes.
    """
    every = np.array(list(sizes), dtype=np.int64)
    return int(segment_sizes(every).sum()) if len(every) else 0
