"""The fewest GPUs that do what was asked, and the best machine, looked at until one is certain."""

import math
from collections.abc import Sequence

from brimful.cost.money import HOUR_S
from brimful.hardware.datasheets import datasheets
from brimful.search.shop.choose import Point, rank
from brimful.search.shop.looks import Cell, closer, settled, unbarred
from brimful.search.shop.shelf import Shelf
from brimful.search.shop.values import DAY_S, Limits

MAX_LOOKS = 6
"""Cells that are replayed for it: each takes as long as any other look."""


def smallest(shelf: Shelf, seen: Sequence[Cell], limits: Limits) -> Cell | None:
    """Return the cell of the fewest GPUs that holds within what was asked; None: none was found.

    Of as many it is the cheapest, or the one with the least memory where nothing but room is asked.
    ``seen``: all of them, as far as they are known.
    """
    num_steps, looks = shelf.request.job.num_steps, 0

    def order(one: Cell) -> tuple[int, float, float]:
        memory = datasheets()[one.kind.name].memory_bytes if limits.are_none else 0
        return one.cluster.num_devices, memory, one.usd

    ordered = sorted(seen, key=order)
    for one in map(unbarred, ordered):
        if one.why_not or not _meets(one, limits, num_steps):
            continue
        if not one.is_certain and shelf.may_hold(one.cluster):
            looks += 1
        if looks > MAX_LOOKS:
            return None
        held = one if one.is_certain else settled(shelf, one)
        if not held.why_not and held.found is not None and _meets(held, limits, num_steps):
            return held
    return None


def one_node(shelf: Shelf, seen: Sequence[Cell], limits: Limits) -> Cell | None:
    """Return the best cell of one machine within what was asked; None: none was found.

    ``seen``: all of them, as far as they are known.
    """
    num_steps, best, looks = shelf.request.job.num_steps, None, 0

    def place(one: Cell) -> tuple[float, float]:
        return rank(Point(one.step_s * num_steps / DAY_S, one.usd * num_steps), limits)

    alone = [one for one in seen if one.cluster.num_nodes == 1 and not one.why_not]
    for one in sorted(alone, key=place):
        if best is not None and place(best) <= place(one):
            break  # what is known of the others is a bound
        if not _meets(one, limits, num_steps):
            continue
        looks += not one.is_certain
        if looks > MAX_LOOKS:
            break
        held = one if one.is_certain else settled(shelf, one)
        if held.why_not or not _meets(held, limits, num_steps):
            continue
        if best is None or place(held) < place(best):
            best = held
    return best


def fewer(shelf: Shelf, cells: Sequence[Cell], limits: Limits, *, most_usd: float) -> Cell | None:
    """Return the fewest GPUs of a kind that do what was asked for no more than some money.

    ``cells``: of that kind, fewer of them than are best.
    """
    num_steps = shelf.request.job.num_steps
    most = Limits(limits.deadline_s, min(most_usd, limits.budget_usd or math.inf))
    for one in map(unbarred, sorted(cells, key=lambda each: each.cluster.num_devices)):
        if one.why_not or not _meets(one, most, num_steps):
            continue
        rent = (one.kind.usd_per_gpu_hour or 0.0) * one.cluster.num_devices / HOUR_S
        bars_s = (most_usd / max(rent, 1e-12), most.deadline_s or math.inf)
        bar_s = math.nextafter(min(bars_s) / num_steps, math.inf)
        while not one.is_certain and not one.why_not:
            one = closer(shelf, one, bar_s=bar_s)  # noqa: PLW2901 - the same, better known
        if not one.why_not and _meets(one, most, num_steps):
            return one
    return None


def _meets(one: Cell, limits: Limits, num_steps: int) -> bool:
    """Whether a cell is within what was asked, as far as it is known."""
    most_s = math.inf if limits.deadline_s is None else limits.deadline_s
    most_usd = math.inf if limits.budget_usd is None else limits.budget_usd
    return one.step_s * num_steps <= most_s and one.usd * num_steps <= most_usd
