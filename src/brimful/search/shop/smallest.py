"""The fewest GPUs that do what was asked, looked at until one is certain."""

import math
from collections.abc import Sequence

from brimful.search.shop.looks import Cell, settled
from brimful.search.shop.shelf import Shelf
from brimful.search.shop.values import Limits

MAX_LOOKS = 3
"""Cells that are replayed for it: each takes as long as any other look."""


def smallest(shelf: Shelf, seen: Sequence[Cell], limits: Limits) -> Cell | None:
    """Return the cell of the fewest GPUs that holds within what was asked; None: none was found.

    Args:
        shelf: What cells share.
        seen: All of them, as far as they are known.
        limits: What was asked.
    """
    num_steps, looks = shelf.request.job.num_steps, 0
    ordered = sorted(seen, key=lambda one: (one.cluster.num_devices, one.usd))
    for one in ordered:
        if one.why_not or not _meets(one, limits, num_steps):
            continue
        if not one.is_certain:
            looks += 1
        if looks > MAX_LOOKS:
            return None
        held = one if one.is_certain else settled(shelf, one)
        if not held.why_not and held.found is not None and _meets(held, limits, num_steps):
            return held
    return None


def _meets(one: Cell, limits: Limits, num_steps: int) -> bool:
    """Whether a cell is within what was asked, as far as it is known."""
    most_s = math.inf if limits.deadline_s is None else limits.deadline_s
    most_usd = math.inf if limits.budget_usd is None else limits.budget_usd
    return one.step_s * num_steps <= most_s and one.usd * num_steps <= most_usd
