"""Every kind of GPU in every number, as far as it can matter: cost against time.

Of two options one may be better in both; only what nothing beats is the *frontier*. How closely a
choice is looked at hangs on what beats it (``looks.py``). What is found is the frontier of all
cells (decision 39); a test plans every one and compares.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import msgspec

from brimful.cost.assumptions import around
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.formula import told_short
from brimful.cost.money import HOUR_S, PUE, energy_kwh
from brimful.errors import InputError, UnknownMemoryError, UnsupportedError
from brimful.hardware.cluster import Cluster, spelled
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import load_cluster
from brimful.hardware.links import assumed_network
from brimful.search.shop.bound import least_of_all
from brimful.search.shop.cell import Found
from brimful.search.shop.choose import Point, does, last_within, point_of, rank, taken
from brimful.search.shop.looks import (
    CERTAIN,
    SEARCHED,
    Cell,
    Kind,
    OnLook,
    bar_of,
    certain_of,
    look,
    planned,
    settled,
    unbarred,
    unbeaten,
)
from brimful.search.shop.shelf import Shelf
from brimful.search.shop.smallest import fewer, one_node, smallest
from brimful.search.shop.values import DAY_S, Alone, Dropped, Limits, Market, Option, Request
from brimful.values.job import Job

NEAR = 1.05
"""What costs so little more is told beside the cheapest, where it takes fewer GPUs."""
ALIKE = 1.01
"""What costs so little more is as good, where one is taken: it is a tenth of what prices move."""


def counts(max_gpus: int) -> tuple[int, ...]:
    """List numbers of GPUs: powers of two, which fill a node and then more of them."""
    return tuple(2**i for i in range(max_gpus.bit_length()) if 2**i <= max_gpus)


def counts_of(request: Request, kind: str) -> tuple[int, ...]:
    """List numbers of GPUs of a kind that are compared: in as many machines as are usual."""
    every, each = counts(request.max_gpus), datasheets()[kind].per_node
    if request.max_nodes is None:
        return every
    most = each * (request.max_nodes if each > 1 else 1)
    return tuple(number for number in every if number <= most)


def clusters_of(request: Request, kind: str) -> list[Cluster]:
    """List what is compared of a kind, the fewest first: as named, or so many as are usual."""
    named = [each for each in request.machines if each.name == kind]
    if named:
        return sorted(named, key=lambda each: each.num_devices)
    return [cluster_of(kind, number, request.network) for number in counts_of(request, kind)]


OnFound = Callable[[Option], None]
OnCertain = Callable[[Cell], None]


def market(
    request: Request, on_look: OnLook | None = None, on_found: OnFound | None = None
) -> Market:
    """Find what can be had.

    ``on_look``: is told of each choice that is looked at and of the share that is behind.
    ``on_found``: is told of what is owned, and of each choice as soon as it is certain. Raises
    UnsupportedError: no formula covers the job on any of the kinds.
    """
    shelf = Shelf(request)
    mine = []
    for cluster in request.owned:  # what is there already is told first
        mine.append(_own(shelf, cluster, on_look))
        if on_found is not None and isinstance(mine[-1], Option):
            on_found(mine[-1])
    alone = [_alone(shelf, kind) for kind in request.kinds]
    kinds = [kind for kind, told in alone if kind is not None and not told.why_not]
    if not kinds and not request.owned:
        raise UnknownMemoryError(f"no GPU can be compared: {told_short(alone[0][1].why_not)}")
    cells = list(_cells(request, kinds))
    tell = None if on_found is None else lambda one: on_found(_option(request, one))
    seen = look(
        shelf,
        cells,
        wanted=partial(_wanted, request),
        every=request.every,
        on_look=on_look,
        on_certain=tell,
    )
    if request.each:
        seen = _each_alone(shelf, seen, on_look, tell)
    options = [_option(request, one) for one in certain_of(seen)]
    front = [seen[i] for i in unbeaten(seen)]
    least = _smallest(shelf, seen)
    told = tuple(each for _, each in alone)
    if request.limits is None or request.fewest or least is None:  # else the fewest of any are told
        told = tuple(_with_fewest(shelf, told))
    by_kind = list(_by_kind(request, seen)) if request.each else []
    return Market(
        options=tuple(sorted(options, key=_by_cost)),
        frontier=frontier(options),
        likely=tuple(_option(request, one) for one in front if one.level == SEARCHED),
        alone=told,
        fewest=tuple(_fewest(shelf, told, seen)) if request.fewest else (),
        by_kind=tuple(by_kind),
        fewer=tuple(_fewer(shelf, seen, by_kind)),
        smallest=least,
        second=_second(shelf, seen, options, on_look),
        one_node=_one_node(shelf, seen, options),
        dropped=tuple(_dropped(seen)),
        owned=tuple(each for each in mine if isinstance(each, Option)),
        unfit=tuple(each for each in mine if isinstance(each, Dropped)),
        num_cells=len(cells),
        num_planned=sum(one.found is not None for one in seen),
        machines=tuple(map(spelled, request.machines)),
    )


def _wanted(request: Request, cells: Sequence[Cell]) -> dict[int, int]:
    """Return which cells that nothing beats have to be certain: all, or what is taken alone.

    Then the fastest has to be searched, so that it can be told, and where what is taken may miss
    what was asked, that which surely does not has to be certain. What is taken comes first: what is
    certain of it says of others that they are beaten.
    """
    limits = request.limits
    if limits is None or not cells:
        return dict.fromkeys(range(len(cells)), CERTAIN)
    num = request.job.num_steps
    points = [Point(one.step_s * num / DAY_S, one.usd * num) for one in cells]
    fastest = last_within(points, limits)
    best = _as_good(cells, points, taken(points, limits), limits)
    asked = {best: CERTAIN} if fastest == best else {best: CERTAIN, fastest: SEARCHED}
    slow = [_slowest(point, one.cluster) for point, one in zip(points, cells, strict=True)]
    sure = best if does(slow[best], limits) else taken(slow, limits)
    return {**asked, sure: CERTAIN} if does(slow[sure], limits) else asked


def _slowest(point: Point, cluster: Cluster) -> Point:
    """Return what a run takes at the slow end of its range."""
    days, usd = (around(each, cluster.device).high for each in (point.days, point.usd))
    return Point(days, usd)


def _as_good(cells: Sequence[Cell], points: Sequence[Point], best: int, limits: Limits) -> int:
    """Return a cell that is certain and as good as one that may be better; else that one."""
    most = [ALIKE * value for value in rank(points[best], limits)]
    near = [
        place
        for place, one in enumerate(cells)
        if one.is_certain and does(points[place], limits) == does(points[best], limits)
        if rank(points[place], limits)[0] <= most[0]
        and (limits.budget_usd is None or rank(points[place], limits)[1] <= most[1])
    ]
    return min(near, key=lambda place: rank(points[place], limits), default=best)


def frontier(options: Sequence[Option]) -> tuple[Option, ...]:
    """Return what no other beats in both days and dollars, slowest and cheapest first."""
    priced = [option for option in options if option.predicted_usd is not None]
    kept, least = [], math.inf
    for option in sorted(priced, key=lambda o: (o.predicted_days, _by_cost(o))):
        usd = option.predicted_usd
        if usd is not None and usd < least:
            kept.append(option)
            least = usd
    return tuple(reversed(kept))


def _by_cost(option: Option) -> tuple[float, float]:
    usd = math.inf if option.predicted_usd is None else option.predicted_usd
    return usd, option.predicted_days


def cluster_of(name: str, num_gpus: int, network: str) -> Cluster:
    """Return so many GPUs of a kind, in machines as they are usual."""
    each = datasheets()[name].per_node
    nodes = -(-num_gpus // each)
    counted = f"{nodes}x{each}x{name}" if nodes > 1 else f"{num_gpus}x{name}"
    found = load_cluster(counted, memory_limit_bytes=None, network_name=network)
    if network or found.num_nodes == 1:
        return found
    return msgspec.structs.replace(found, network=assumed_network(name))


def _alone(shelf: Shelf, name: str) -> tuple[Kind | None, Alone]:
    """Look at one GPU of a kind."""
    request, cluster = shelf.request, cluster_of(name, 1, "")
    price = request.prices.gpus.get(name)
    usd = None if price is None else price.usd_per_gpu_hour
    told = Alone(
        kind=name, usd_per_gpu_hour=usd, fits=False, predicted_peak_bytes=None,
        usable_bytes=tensor_limit_bytes(cluster), at_best_usd=None, why_not="",
    )  # fmt: skip
    try:
        shelf.check_formula(cluster.device)
        if request.limits is None:  # else it is not looked for
            lean = shelf.leanest(cluster)
            lean.below(0)  # the leanest of all
            told = msgspec.structs.replace(told, predicted_peak_bytes=int(lean.peak_bytes))
        least = shelf.least(cluster)
    except (InputError, UnsupportedError) as error:
        return None, msgspec.structs.replace(told, why_not=str(error))
    least_s = least_of_all(least)
    if math.isnan(least_s):
        return None, msgspec.structs.replace(
            told, why_not=_unknown_speed(request.on(name).job, name)
        )
    at_best = None
    if usd is not None:
        at_best = least_s * request.job.num_steps / HOUR_S * usd
    kind = Kind(name, usd, least, least_s)
    return kind, msgspec.structs.replace(told, at_best_usd=at_best)


def _with_fewest(shelf: Shelf, alone: Sequence[Alone]) -> list[Alone]:
    """Say how many of each kind hold the job: of all, or of those of which the fewest do."""
    request = shelf.request
    fewest: dict[str, int] = {}
    known = [told.kind for told in alone if told.predicted_peak_bytes is not None]
    every = [each for kind in known for each in clusters_of(request, kind)]
    every.sort(key=lambda each: each.num_devices)
    for number, clusters in groupby(every, key=lambda each: each.num_devices):
        for each in clusters:
            if each.name not in fewest and shelf.holds(each):
                fewest[each.name] = number
        if fewest and not request.fewest:
            break
    return [
        msgspec.structs.replace(told, fewest=(n := fewest.get(told.kind)), fits=n == 1)
        for told in alone
    ]


def _unknown_speed(job: Job, name: str) -> str:
    return f"{name} has no known rate in {job.precision}"


def _cells(request: Request, kinds: Sequence[Kind]) -> Iterator[Cell]:
    for kind in kinds:
        for cluster in clusters_of(request, kind.name):
            yield Cell(kind, cluster, kind.least_s / cluster.num_devices)


def _option(request: Request, one: Cell) -> Option:
    assert one.found is not None
    return option_of(request, one.cluster, one.found, one.kind.usd_per_gpu_hour)


def _dropped(seen: Sequence[Cell]) -> Iterator[Dropped]:
    """Say why each choice that is no option is none."""
    certain = certain_of(seen)
    for one in seen:
        if one.is_certain and not one.why_not:
            continue
        why = one.why_not
        if not why:
            beats = bar_of(one, certain)[1]
            at_best = "" if one.found else " even at best"
            why = f"beaten{at_best}, by {spelled(beats.cluster) if beats else 'nothing'}"
        yield Dropped(gpus=spelled(one.cluster), why=why)


def _fewest(shelf: Shelf, alone: Sequence[Alone], seen: Sequence[Cell]) -> Iterator[Option]:
    """Plan the fewest of each kind that hold the job, whatever beats them."""
    numbers = {told.kind: told.fewest for told in alone}
    for one in seen:
        if one.cluster.num_devices != numbers[one.kind.name]:
            continue
        found = settled(shelf, one._replace(why_not=""))
        if not found.why_not:
            yield _option(shelf.request, found)


def _each_alone(
    shelf: Shelf, seen: Sequence[Cell], on_look: OnLook | None, tell: OnCertain | None
) -> list[Cell]:
    """Look at each kind or machine as if there were no other, until what it does best is known.

    ``seen``: all of them, as far as they are known. ``tell``: is told of each that is certain.
    """
    told = list(seen)
    front = frontier([_option(shelf.request, one) for one in certain_of(seen)])
    best = _taken(shelf.request, front)
    for places in _grouped(shelf.request, seen).values():
        cells = [unbarred(seen[i]) for i in places]
        if best is not None and best.gpus in {spelled(one.cluster) for one in cells}:
            continue  # it is the best of its kind too
        cells = _best_known(shelf, cells, on_look, tell)
        if not certain_of(cells):
            cells[-1] = planned(shelf, cells[-1])
            if tell is not None and certain_of(cells):
                tell(cells[-1])
        for place, one in zip(places, cells, strict=True):
            told[place] = one
    return told


def _grouped(request: Request, seen: Sequence[Cell]) -> dict[str, list[int]]:
    """Return the places of what is told together: of a kind, or each machine that was named."""
    groups: dict[str, list[int]] = {}
    for place, one in enumerate(seen):
        is_named = one.cluster in request.machines
        groups.setdefault(spelled(one.cluster) if is_named else one.kind.name, []).append(place)
    return groups


def _by_kind(request: Request, seen: Sequence[Cell]) -> Iterator[Option]:
    """Yield what each kind or machine that has a price does best of what is certain."""
    for places in _grouped(request, seen).values():
        looked = certain_of([seen[i] for i in places])
        best = _taken(request, frontier([_option(request, one) for one in looked]))
        if best is not None:
            yield best


def _taken(request: Request, front: Sequence[Option]) -> Option | None:
    """Return what is taken of options that nothing beats; None: there are none."""
    if not front:
        return None
    return front[taken([point_of(each) for each in front], request.limits or Limits())]


def _best_known(
    shelf: Shelf, cells: Sequence[Cell], on_look: OnLook | None, tell: OnCertain | None = None
) -> list[Cell]:
    """Look at some cells until what is best among them is certain, as if there were no other."""
    request = shelf.request
    limits, num = request.limits or Limits(), request.job.num_steps

    def best(cells: Sequence[Cell]) -> dict[int, int]:
        points = [Point(one.step_s * num / DAY_S, one.usd * num) for one in cells]
        return {taken(points, limits): CERTAIN} if points else {}

    return look(shelf, cells, wanted=best, every=False, on_look=on_look, on_certain=tell)


def _second(
    shelf: Shelf, seen: Sequence[Cell], options: Sequence[Option], on_look: OnLook | None
) -> Option | None:
    """Find the best of another kind than what is taken, within what was asked."""
    request = shelf.request
    first = _taken(request, frontier(options))
    if first is None or request.limits is None or request.each:
        return None
    others = [
        unbarred(one) for one in seen if one.kind.name != first.kind and math.isfinite(one.usd)
    ]
    looked = certain_of(_best_known(shelf, others, on_look))
    found = _taken(request, frontier([_option(request, one) for one in looked]))
    is_asked = found is not None and does(point_of(found), request.limits)
    return found if is_asked else None


def _fewer(shelf: Shelf, seen: Sequence[Cell], by_kind: Sequence[Option]) -> Iterator[Option]:
    """Find the fewest of each kind that cost as good as the same as its best."""
    for best in by_kind:
        usd = best.predicted_usd
        cells = [
            one
            for one in seen
            if one.kind.name == best.kind and one.cluster.num_devices < best.num_gpus
            if one.cluster not in shelf.request.machines
        ]
        if usd is None or not cells:
            continue
        limits = shelf.request.limits or Limits()
        found = fewer(shelf, cells, limits, most_usd=usd * NEAR)
        if found is not None:
            yield _option(shelf.request, found)


def _smallest(shelf: Shelf, seen: Sequence[Cell]) -> Option | None:
    request = shelf.request
    if request.machines:
        return None  # so many were named
    found = smallest(shelf, seen, request.limits or Limits())
    return None if found is None else _option(request, found)


def _one_node(shelf: Shelf, seen: Sequence[Cell], options: Sequence[Option]) -> Option | None:
    request = shelf.request
    limits, best = request.limits or Limits(), _taken(request, frontier(options))
    if best is None or request.machines:
        return None
    if best.num_gpus <= datasheets()[best.kind].per_node:
        return None
    found = one_node(shelf, seen, limits)
    return None if found is None else _option(request, found)


def _own(shelf: Shelf, cluster: Cluster, on_look: OnLook | None) -> Option | Dropped:
    """Search what the user owns, whatever beats it, or say why it has no plan."""
    request, name = shelf.request, spelled(cluster)
    if on_look is not None:
        on_look(name, 0.0)
    try:
        shelf.check_formula(cluster.device)
        least = shelf.least(cluster)
    except (InputError, UnsupportedError) as error:
        return Dropped(gpus=name, why=str(error))
    least_s = least_of_all(least)
    if math.isnan(least_s):
        return Dropped(gpus=name, why=_unknown_speed(shelf.job(cluster.device), name))
    one = planned(shelf, settled(shelf, Cell(Kind(name, None, least, least_s), cluster, 0.0)))
    if one.found is None or one.why_not:
        return Dropped(gpus=name, why=one.why_not)
    return option_of(request, cluster, one.found, None, owned=True)


def option_of(
    request: Request, cluster: Cluster, best: Found, price: float | None, *, owned: bool = False
) -> Option:
    """Say what a run costs on a cluster under a plan."""
    job, number = request.on(cluster.name).job, cluster.num_devices
    whole_s = best.step_s * job.num_steps
    usd = None if price is None else price * number * whole_s / HOUR_S
    hours = number * whole_s / HOUR_S
    kwh = energy_kwh(cluster.name, hours, overhead=1.0 if owned else PUE)
    if owned and kwh is not None and request.usd_per_kwh is not None:
        usd = kwh * request.usd_per_kwh
    return Option(
        gpus=spelled(cluster),
        kind=cluster.name,
        num_gpus=number,
        precision=job.precision,
        strategy=best.strategy,
        predicted_peak_bytes=best.peak_bytes,
        usable_bytes=tensor_limit_bytes(cluster),
        predicted_step_s=best.step_s,
        predicted_days=whole_s / DAY_S,
        predicted_days_band=around(whole_s / DAY_S, cluster.device),
        tokens_per_s=job.tokens_per_step / best.step_s,
        usd_per_gpu_hour=price,
        predicted_usd=usd,
        predicted_usd_band=None if usd is None else around(usd, cluster.device),
        predicted_energy_kwh=kwh,
        predicted_host_bytes=best.host_bytes,
    )
