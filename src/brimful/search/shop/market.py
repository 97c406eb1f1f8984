"""Every kind of GPU in every number, as far as it can matter: cost against time.

Of two options one may be better in both; only what nothing beats is the *frontier*. A cell is
searched with a bar: the time from which on something that was found before beats it. Cells whose
least possible time is over their bar are not searched. What is found is the frontier of all cells
(decision 39); a test plans every cell and compares.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from brimful.cost.assumptions import assumptions_for
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.formula import check_formula
from brimful.cost.money import PUE, Prices, energy_kwh
from brimful.cost.programs import kernels_of
from brimful.cost.reserved import Replays
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device, spelled
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.hardware.gpus import load_cluster
from brimful.job import Job
from brimful.plan import Band
from brimful.search.grid import Grid, Search
from brimful.search.holding import as_it_fits, hold
from brimful.search.shop.bound import Least, Work, least_of_all, least_seconds, least_work
from brimful.search.shop.cell import Found, fastest, least_peak, within
from brimful.search.shop.values import DAY_S, Alone, Dropped, Market, Option
from brimful.search.solve import Space
from brimful.search.space import Pins, grids, pinned_strategy
from brimful.strategy import Attention, default_reference
from brimful.units import format_bytes

PER_NODE = 8
"""GPUs of a node, where there are more: so are the machines of every seller in the table."""
_HOUR_S = 3600.0
UNSEEN = (
    "beaten even at best, by",
    "what lies between its nodes is unknown; say it with --network",
)
"""Why cells are not searched."""
OnCell = Callable[[str, float], None]


class Request(NamedTuple):
    """What a market is made for.

    Attributes:
        job: What is trained.
        attention: How the model attends.
        kinds: Names of GPUs.
        prices: Of an hour.
        max_gpus: No more than these.
        network: Between nodes; empty: that of the maker's own systems.
        usd_per_kwh: Electricity of what is owned; None: unknown.
        owned: What the user owns.
        every: Whether cells are searched that something else beats.
    """

    job: Job
    attention: Attention
    kinds: tuple[str, ...]
    prices: Prices
    max_gpus: int
    network: str = ""
    usd_per_kwh: float | None = None
    owned: tuple[Cluster, ...] = ()
    every: bool = False


class _Kind(NamedTuple):
    """A kind that can be compared.

    Attributes:
        name: The GPU.
        usd_per_gpu_hour: Its rent; None: unknown.
        least: Seconds of one, at least, by program and micro-batch.
        least_s: The least of them.
        fits: Whether one holds the job.
    """

    name: str
    usd_per_gpu_hour: float | None
    least: Least
    least_s: float
    fits: bool


class _Cell(NamedTuple):
    kind: _Kind
    cluster: Cluster


def counts(max_gpus: int) -> tuple[int, ...]:
    """List numbers of GPUs: powers of two, which fill a node and then more of them."""
    return tuple(2**i for i in range(max_gpus.bit_length()) if 2**i <= max_gpus)


def market(request: Request, on_cell: OnCell | None = None) -> Market:
    """Find what can be had.

    Args:
        request: What for.
        on_cell: Is told of each cell and of the share that is behind.

    Raises:
        UnsupportedError: No formula covers the job on any of the kinds.
    """
    shelf = _Shelf(request, {}, {}, {}, {})
    alone = [_alone(shelf, kind) for kind in request.kinds]
    kinds = [kind for kind, told in alone if kind is not None and not told.why_not]
    if not kinds and not request.owned:
        raise UnsupportedError(f"no GPU can be compared: {alone[0][1].why_not}")
    cells = sorted(_cells(request, kinds), key=_promise)
    options: list[Option] = []
    dropped: list[Dropped] = []
    planned = 0
    for i, cell in enumerate(cells):
        if on_cell is not None:
            on_cell(spelled(cell.cluster), i / len(cells))
        found, why = _try(shelf, cell, [] if request.every else frontier(options))
        planned += not why.startswith(UNSEEN)
        if found is None:
            dropped.append(Dropped(gpus=spelled(cell.cluster), why=why))
        else:
            options.append(option_of(request, cell.cluster, found, cell.kind.usd_per_gpu_hour))
    mine = [_own(shelf, cluster) for cluster in request.owned]
    return Market(
        options=tuple(sorted(options, key=_by_cost)),
        frontier=frontier(options),
        alone=tuple(told for _, told in alone),
        dropped=tuple(dropped),
        owned=tuple(each for each in mine if isinstance(each, Option)),
        unfit=tuple(each for each in mine if isinstance(each, Dropped)),
        num_cells=len(cells),
        num_planned=planned,
    )


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


_Alike = tuple[str, int]


def _alike(device: Device) -> _Alike:
    """Return what decides which tensors a device makes: its kernels, and cuBLAS's workspace."""
    return kernels_of(device), libraries().cublas_bytes(version_of(device.capability))


class _Shelf(NamedTuple):
    """What cells share: levels of memory by number of devices, and the work of every program.

    Only devices that run the same kernels share them (``_alike``).
    """

    request: Request
    shared: dict[tuple[int, _Alike], tuple[Any, Any, Any]]
    replayed: dict[tuple[int, _Alike], Replays]
    works: dict[_Alike, Work]
    found: dict[str, Found | None]

    def search(self, cluster: Cluster) -> Search:
        """Return a search that shares levels with those of as many devices of other kinds."""
        key = cluster.num_devices, _alike(cluster.device)
        levels, kept, works = self.shared.setdefault(key, ({}, {}, {}))
        job, attention = self.request.job, self.request.attention
        return Search(
            job, cluster, attention, held={}, levels=levels, works=works, waits={}, kept=kept
        )

    def replays(self, cluster: Cluster) -> Replays:
        """Return what was replayed on as many devices of any kind that runs the same kernels."""
        return self.replayed.setdefault((cluster.num_devices, _alike(cluster.device)), {})

    def space(self, cluster: Cluster) -> Iterator[Grid]:
        """Yield every strategy of a cluster."""
        request = self.request
        pins = Pins(reference=default_reference(request.job))
        return grids(request.job, pins, attention=request.attention, cluster=cluster)

    def least(self, cluster: Cluster) -> Least:
        """Return what one device of a kind takes at least."""
        job, device = self.request.job, cluster.device
        key = _alike(device)
        if key not in self.works:
            self.works[key] = least_work(job, self.request.attention, device)
        return least_seconds(self.works[key], job, device)


def _of(name: str, num_gpus: int, network: str) -> Cluster:
    nodes = -(-num_gpus // PER_NODE)
    counted = f"{nodes}x{PER_NODE}x{name}" if nodes > 1 else f"{num_gpus}x{name}"
    return load_cluster(counted, memory_limit_bytes=None, network_name=network)


def _alone(shelf: _Shelf, name: str) -> tuple[_Kind | None, Alone]:
    """Look at one GPU of a kind."""
    request, cluster = shelf.request, _of(name, 1, "")
    price = request.prices.gpus.get(name)
    usd = None if price is None else price.usd_per_gpu_hour
    limit = tensor_limit_bytes(cluster)
    told = Alone(
        kind=name, usd_per_gpu_hour=usd, fits=False, predicted_peak_bytes=None, usable_bytes=limit,
        at_best_usd=None, why_not="",
    )  # fmt: skip
    try:
        check_formula(request.job, pinned_strategy(Pins(), request.attention), cluster.device)
        peak_bytes = least_peak(shelf.search(cluster), shelf.space(cluster))
        least = shelf.least(cluster)
    except (InputError, UnsupportedError) as error:
        return None, msgspec.structs.replace(told, why_not=str(error))
    fits, least_s = peak_bytes <= limit, least_of_all(least)
    told = msgspec.structs.replace(told, fits=fits, predicted_peak_bytes=peak_bytes)
    if math.isnan(least_s):
        return None, msgspec.structs.replace(told, why_not=_unknown_speed(request.job, name))
    at_best = None
    if usd is not None:
        at_best = least_s * request.job.num_steps / _HOUR_S * usd
    return _Kind(name, usd, least, least_s, fits), msgspec.structs.replace(
        told, at_best_usd=at_best
    )


def _unknown_speed(job: Job, name: str) -> str:
    return f"{name} has no known rate in {job.precision}"


def _cells(request: Request, kinds: Sequence[_Kind]) -> Iterator[_Cell]:
    for kind in kinds:
        for number in counts(request.max_gpus):
            if number > 1 or kind.fits:
                yield _Cell(kind, _of(kind.name, number, request.network))


def _promise(cell: _Cell) -> tuple[float, int]:
    """Order cells: what is cheap at best first, so that it beats the rest unseen."""
    price = cell.kind.usd_per_gpu_hour
    usd = math.inf if price is None else cell.kind.least_s * price
    return usd, cell.cluster.num_devices


def bar_of(
    request: Request, cluster: Cluster, usd_per_gpu_hour: float | None, found: Sequence[Option]
) -> tuple[float, Option | None]:
    """Return the seconds of a step from which on something beats a cell, and what does.

    A cell that takes t seconds costs c t. An option of T seconds and U dollars beats it once
    t >= T and c t >= U: t >= max(T, U / c).

    Args:
        request: Says how many steps.
        cluster: The cell's.
        usd_per_gpu_hour: Its price; None: nothing beats it.
        found: What there is.
    """
    if usd_per_gpu_hour is None or not found:
        return math.inf, None
    steps = request.job.num_steps
    per_s = max(usd_per_gpu_hour * cluster.num_devices / _HOUR_S, 1e-12)
    bars = [
        (max(each.predicted_days * DAY_S, (each.predicted_usd or 0.0) / per_s) / steps, i)
        for i, each in enumerate(found)
    ]
    bar, place = min(bars)
    return bar, found[place]


def _try(shelf: _Shelf, cell: _Cell, found: Sequence[Option]) -> tuple[Found | None, str]:
    """Search one cell, or say why not."""
    request, cluster, least = shelf.request, cell.cluster, cell.kind.least
    bar_s, beats = bar_of(request, cluster, cell.kind.usd_per_gpu_hour, found)
    if cell.kind.least_s / cluster.num_devices >= bar_s:
        return None, f"{UNSEEN[0]} {beats.gpus if beats else 'nothing'}"
    if cluster.num_nodes > 1 and not cluster.network:
        return None, UNSEEN[1]
    try:
        best = fastest(shelf.search(cluster), shelf.space(cluster), least, bar_s=bar_s)
        best = None if best is None else _held(shelf, cluster, best, least, bar_s=bar_s)
    except (InputError, UnsupportedError) as error:
        return None, str(error)
    best = best if best is not None and best.step_s < bar_s else None
    shelf.found[spelled(cluster)] = best
    if best is None:
        return None, "does not fit" + (f", or is beaten by {beats.gpus}" if beats else "")
    return best, ""


def _held(
    shelf: _Shelf, cluster: Cluster, best: Found, least: Least, *, bar_s: float
) -> Found | None:
    """Return the fastest whose replay fits: the fastest by live bytes, or the next that does."""
    request, seen = shelf.request, shelf.replays(cluster)
    fitting = as_it_fits(request.job, cluster, best.strategy, seen)
    if fitting is not None:
        return best._replace(strategy=fitting)
    search, pins = shelf.search(cluster), Pins(reference=default_reference(request.job))
    table = within(search, shelf.space(cluster), least, bar_s=bar_s)
    space = Space(request.job, cluster, request.attention, pins, "time", table)
    found = hold(space.best(), seen)
    row = found.solution.record.rows[0]
    if found.reserved is None or found.reserved.word != "fits" or row.step_s is None:
        return None
    return Found(row.strategy, row.peak_bytes, row.step_s)


def _own(shelf: _Shelf, cluster: Cluster) -> Option | Dropped:
    """Search what the user owns, whatever beats it, or say why it has no plan."""
    request, name = shelf.request, spelled(cluster)
    try:
        check_formula(request.job, pinned_strategy(Pins(), request.attention), cluster.device)
        least = shelf.least(cluster)
        best = shelf.found.get(name)
        if best is None:
            best = fastest(shelf.search(cluster), shelf.space(cluster), least, bar_s=math.inf)
            if best is not None:
                best = _held(shelf, cluster, best, least, bar_s=math.inf)
    except (InputError, UnsupportedError) as error:
        return Dropped(gpus=name, why=str(error))
    if best is not None:
        return option_of(request, cluster, best, None, owned=True)
    if math.isnan(least_of_all(least)):
        return Dropped(gpus=name, why=_unknown_speed(request.job, name))
    unknown = cluster.num_nodes > 1 and not cluster.network
    return Dropped(gpus=name, why=UNSEEN[1] if unknown else "does not fit")


def option_of(
    request: Request, cluster: Cluster, best: Found, price: float | None, *, owned: bool = False
) -> Option:
    """Say what a run costs on a cluster under a plan."""
    job, number = request.job, cluster.num_devices
    whole_s = best.step_s * job.num_steps
    usd = None if price is None else price * number * whole_s / _HOUR_S
    band = assumptions_for(cluster.device).time_band
    hours = number * whole_s / _HOUR_S
    kwh = energy_kwh(cluster.name, hours, overhead=1.0 if owned else PUE)
    if owned and kwh is not None and request.usd_per_kwh is not None:
        usd = kwh * request.usd_per_kwh
    return Option(
        gpus=spelled(cluster),
        kind=cluster.name,
        num_gpus=number,
        strategy=best.strategy,
        predicted_peak_bytes=best.peak_bytes,
        usable_bytes=tensor_limit_bytes(cluster),
        predicted_step_s=best.step_s,
        predicted_days=whole_s / DAY_S,
        predicted_days_band=_around(whole_s / DAY_S, band),
        tokens_per_s=job.tokens_per_step / best.step_s,
        usd_per_gpu_hour=price,
        predicted_usd=usd,
        predicted_usd_band=None if usd is None else _around(usd, band),
        predicted_energy_kwh=kwh,
    )


def _around(value: float, half_width: float) -> Band:
    return Band(low=value * (1 - half_width), high=value * (1 + half_width))


def short_words(alone: Alone) -> str:
    """Say by how much one GPU of a kind is too small; empty where it is not, or that is unknown."""
    if alone.fits or alone.predicted_peak_bytes is None:
        return ""
    return f"short by {format_bytes(alone.predicted_peak_bytes - alone.usable_bytes)}"
