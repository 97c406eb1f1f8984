"""Cells looked at more and more closely, until what nothing beats is certain.

A cell is a kind of GPU and a number of them. It is known by a bound from below, then by live
bytes, then by its replay; each look takes longer, and none says that it is faster than the one
before. So a cell that something certain beats needs no further look, and one that nothing beats
even if all are as fast as they may be does: that is the one looked at next (decision 58).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.money import HOUR_S
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, spelled
from brimful.search.holding import as_it_fits, hold_firmly
from brimful.search.offloading import solve_offloading
from brimful.search.shop.bound import Least
from brimful.search.shop.cell import Found, fastest, within
from brimful.search.shop.shelf import Shelf
from brimful.search.shop.values import DAY_S
from brimful.search.solve import Space
from brimful.search.tries import short_bytes_of
from brimful.techniques.offload import NONE
from brimful.units import format_bytes, format_days

NO_NETWORK = "what lies between its nodes is unknown; say it with --network"
SHORT = "does not fit"
BEATEN = f"{SHORT}, or is beaten"
OnLook = Callable[[str, float], None]
BOUNDED, SEARCHED, CERTAIN = range(3)
"""How much is known of a cell: a bound, its fastest by live bytes, its fastest by replay."""
Wanted = Callable[["Sequence[Cell]"], dict[int, int]]
"""Returns which of cells, cheapest first, have to be known how well."""


class Kind(NamedTuple):
    """A kind that can be compared.

    Attributes:
        name: The GPU.
        usd_per_gpu_hour: Its rent; None: unknown.
        least: Seconds of one, at least, by program and micro-batch.
        least_s: The least of them.
    """

    name: str
    usd_per_gpu_hour: float | None
    least: Least
    least_s: float


class Cell(NamedTuple):
    """A number of GPUs of a kind, and what is known of it.

    Attributes:
        kind: The GPU.
        cluster: So many of them.
        step_s: Seconds of a step, at least.
        found: The fastest by live bytes; None: it was not searched.
        is_certain: Whether that is its fastest by replay.
        why_not: Why there is nothing; empty while there may be.
    """

    kind: Kind
    cluster: Cluster
    step_s: float
    found: Found | None = None
    is_certain: bool = False
    why_not: str = ""

    @property
    def level(self) -> int:
        """How much is known of it."""
        if self.found is None:
            return BOUNDED
        return CERTAIN if self.is_certain else SEARCHED

    @property
    def usd(self) -> float:
        """Dollars of a step, at least; infinite where the rent is unknown."""
        price = self.kind.usd_per_gpu_hour
        return (
            math.inf if price is None else price * self.cluster.num_devices * self.step_s / HOUR_S
        )


def look(  # noqa: PLR0913 - what is looked for, and who is told
    shelf: Shelf,
    cells: Sequence[Cell],
    *,
    wanted: Wanted,
    every: bool,
    on_look: OnLook | None,
    on_certain: "Callable[[Cell], None] | None" = None,
) -> list[Cell]:
    """Look until what is wanted of all that nothing beats is known.

    ``wanted``: which of those that nothing beats, as far as is known, have to be known how well.
    ``every``: whether all have to be certain, those that something beats too. ``on_look``: is told
    of each look and of the share that needs none any more. ``on_certain``: is told of each as soon
    as it is certain.
    """
    seen = list(cells)
    while (place := _next(seen, wanted, every=every)) is not None:
        one = seen[place]
        bar_s = math.inf if every else bar_of(one, certain_of(seen))[0]
        if on_look is not None:
            on_look(spelled(one.cluster), _share_done(seen))
        seen[place] = closer(shelf, one, bar_s=bar_s)
        if on_certain is not None and certain_of(seen[place : place + 1]):
            on_certain(seen[place])
    return seen


def _next(seen: Sequence[Cell], wanted: Wanted, *, every: bool) -> int | None:
    """Return the first that has to be known better, as it is wanted; None: none has."""
    asked = {
        i: CERTAIN
        for i, one in enumerate(seen)
        if not one.why_not and (every or math.isinf(one.usd))
    }
    front = unbeaten(seen)
    asked |= {front[i]: level for i, level in wanted([seen[i] for i in front]).items()}
    return next((i for i, level in asked.items() if seen[i].level < level), None)


def unbeaten(seen: Sequence[Cell]) -> list[int]:
    """Return those that nothing beats if all are as fast as they may be, cheapest first."""
    rows = [i for i, one in enumerate(seen) if not one.why_not]
    least, found = math.inf, []
    for i in sorted(rows, key=lambda i: (seen[i].step_s, seen[i].usd, -seen[i].level)):
        if seen[i].usd < least:
            least = seen[i].usd
            found.append(i)
    return found[::-1]


def certain_of(seen: Sequence[Cell]) -> list[Cell]:
    """Return what holds for certain."""
    return [one for one in seen if one.is_certain and not one.why_not]


def _share_done(seen: Sequence[Cell]) -> float:
    certain = certain_of(seen)
    open_ = [
        one for one in seen
        if not one.is_certain and not one.why_not and one.step_s < bar_of(one, certain)[0]
    ]  # fmt: skip
    return 1 - len(open_) / len(seen)


def bar_of(cell: Cell, certain: Sequence[Cell]) -> tuple[float, Cell | None]:
    """Return the seconds of a step from which on something beats a cell, and what does.

    Where it takes t seconds it costs c t. What takes T seconds and U dollars beats it once
    t >= T and c t >= U: t >= max(T, U / c).

    ``cell``: nothing beats it where its rent is unknown.
    """
    price = cell.kind.usd_per_gpu_hour
    if price is None:
        return math.inf, None
    per_s = max(price * cell.cluster.num_devices / HOUR_S, 1e-12)
    priced = [each for each in certain if math.isfinite(each.usd)]
    bars = [(max(each.step_s, each.usd / per_s), i) for i, each in enumerate(priced)]
    bar, place = min(bars, default=(math.inf, -1))
    return bar, priced[place] if bars else None


def unbarred(one: Cell) -> Cell:
    """Return a cell as it is where nothing beats it."""
    return one._replace(why_not="") if one.why_not == BEATEN else one


def settled(shelf: Shelf, one: Cell) -> Cell:
    """Look at a cell until it is certain, whatever beats it."""
    while not one.is_certain and not one.why_not:
        one = closer(shelf, one, bar_s=math.inf)
    return one


def closer(shelf: Shelf, one: Cell, *, bar_s: float) -> Cell:
    """Look at a cell once more: by live bytes, or by its replay.

    ``bar_s``: seconds of a step from which on it is beaten.
    """
    if one.cluster.num_nodes > 1 and not one.cluster.network:
        return one._replace(why_not=NO_NETWORK)
    is_certain = one.found is not None
    try:
        if one.found is None:
            cluster, least = one.cluster, one.kind.least
            if shelf.least_kept(cluster) > tensor_limit_bytes(cluster):
                return one._replace(why_not=SHORT)
            if not shelf.leanest(cluster).below(tensor_limit_bytes(cluster)):
                return one._replace(why_not=SHORT)
            found = fastest(shelf.search(cluster), shelf.space(cluster), least, bar_s=bar_s)
        else:
            found = held(shelf, one.cluster, one.found, one.kind.least, bar_s=bar_s)
    except (InputError, UnsupportedError) as error:
        return one._replace(why_not=str(error))
    if found is None or not found.step_s < bar_s:
        why = SHORT if math.isinf(bar_s) else BEATEN
        return one._replace(why_not=why)
    return one._replace(step_s=found.step_s, found=found, is_certain=is_certain)


def held(
    shelf: Shelf, cluster: Cluster, best: Found, least: Least, *, bar_s: float
) -> Found | None:
    """Return the fastest whose replay fits: the fastest by live bytes, or the next that does."""
    job = shelf.job(cluster.device)
    fitting = as_it_fits(job, cluster, best.strategy)
    if fitting is not None:
        return best._replace(strategy=fitting)
    found = hold_firmly(_space(shelf, cluster, least, bar_s).best())
    if found is None or found.reserved is None or found.reserved.word != "fits":
        return None
    row = found.solution.record.rows[0]
    if row.step_s is None:
        return None
    return Found(row.strategy, row.peak_bytes, row.step_s)


def _space(shelf: Shelf, cluster: Cluster, least: Least, bar_s: float) -> Space:
    """Return what fits by live bytes and is faster than a bar, to be replayed."""
    table = within(shelf.search(cluster), shelf.space(cluster), least, bar_s=bar_s)
    job, attention = shelf.job(cluster.device), shelf.attention(cluster.device)
    return Space(job, cluster, attention, shelf.pins, "time", table)


def planned(shelf: Shelf, one: Cell) -> Cell:
    """Search a cell in which nothing holds as ``plan`` does: pipelines, and what offloads too.

    Where nothing does so either it is said by how much it is short, or that it may fit.
    """
    cluster, device = one.cluster, one.cluster.device
    if one.why_not != SHORT:
        return one
    job, attention = shelf.job(device), shelf.attention(device)
    try:
        found = solve_offloading(job, cluster, shelf.pins, attention=attention, objective="time")
    except (InputError, UnsupportedError):
        return one
    row, made = found.record.rows[0], found.plan.estimate
    if made is None or row.step_s is None:
        return one
    needed = 0 if made.host is None else made.host.predicted_training_bytes
    host = 0 if row.strategy.offload == NONE else needed
    short = short_bytes_of(made)
    if short <= 0:
        best = Found(row.strategy, row.peak_bytes, row.step_s, host)
        return one._replace(step_s=row.step_s, found=best, is_certain=True, why_not="")
    reserved = made.predicted_reserved
    needs, has = made.predicted_peak_allocated_bytes, made.usable_bytes
    if reserved is not None and made.fits:
        needs, has = reserved.predicted_peak_reserved_bytes, reserved.capacity_bytes
    both = f"{format_bytes(needs)} of {format_bytes(has)}"
    recipe = "" if job.precision == shelf.request.job.precision else f" in {job.precision}"
    why = f"{SHORT}{recipe}: {both}, short by {format_bytes(short)}"
    if reserved is not None and reserved.word == "tight":
        days = format_days(row.step_s * job.num_steps / DAY_S)
        why = f"is tight{recipe}: {both}, {days}; brimful plan says what would hold"
    return one._replace(why_not=why)
