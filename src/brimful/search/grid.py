"""Many strategies at once: those that run the same events on tensors of other sizes.

Strategies with one body, one way of cutting the loss and one way of spreading differ in numbers
only. They are a grid: batches (micro-batch and chunks) by counts of checkpointed blocks by numbers
of shards; peaks and times are arrays of that shape. ``cost.estimate`` says the same of one of them.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.courses import NOWHERE, Counts
from brimful.cost.embedding import embedding_bytes
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.family import (
    Family,
    family_chunks,
    family_micro_batches,
    family_variant,
    runs_one,
)
from brimful.cost.levels import forms, in_between
from brimful.cost.managed import away_bytes, paging_seconds
from brimful.cost.memory import adds_rows, blas_bytes, family_steps, rows_beside
from brimful.cost.on_host import on_host
from brimful.cost.preference import asked_bytes, asks_by_itself
from brimful.cost.profiles import NUM_CHUNKS, Dimensions, Profile
from brimful.cost.row_sums import Chips, chips_of, every_chip, sums_behind
from brimful.cost.sequence_levels import sequence_levels
from brimful.cost.shards import ROWS, row_bytes
from brimful.cost.spread import holds_whole, num_pieces
from brimful.cost.states import States
from brimful.cost.trajectory import kinds_bytes
from brimful.files.remembered import keep
from brimful.search.grid_seconds import seconds_of
from brimful.search.grid_values import (
    Array,
    Column,
    Grid,
    Levels,
    Search,
    grid_dimensions,
    held_of,
    profiles_of,
)
from brimful.search.pins import MAX_MICRO_BATCH
from brimful.search.table import OFFLOADS, ORDERS, Table
from brimful.techniques.offload import spell_offload
from brimful.values.job import Job
from brimful.values.strategy import RECOMPUTES

MOST_LEVELS = 64
"""Kept by a search: grids that share them come one after the other."""


def evaluate(search: Search, grid: Grid, seconds: Array | None = None) -> Table:
    """Predict peak and step time of every strategy of a grid.

    ``seconds``: ``seconds_of`` them, where that was asked for already.
    """
    peak = peaks_of(search, grid)
    seconds = seconds_of(search, grid) if seconds is None else seconds
    away = _paged_away(search, grid, peak)
    seconds = seconds + paging_seconds(away, search.cluster.device)
    host_bytes = search.cluster.host_ram_bytes or np.inf
    shape = peak.shape
    one = grid.batches[0]
    micro_batch = np.array([family.micro_batch for family in grid.batches])
    loss_chunks = np.array([family.loss_chunks for family in grid.batches])

    def spread(values: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
        places = [1, 1, 1]
        places[axis] = -1
        return np.broadcast_to(values.reshape(places), shape).reshape(-1)

    return Table(
        micro_batch=spread(micro_batch, 0),
        loss_chunks=spread(loss_chunks, 0),
        num_blocks=spread(grid.num_blocks, 1),
        recompute=np.full(peak.size, RECOMPUTES.index(one.recompute)),
        zero=np.full(peak.size, one.zero),
        num_shards=spread(grid.num_shards, 2),
        tp=np.full(peak.size, one.tp),
        ep=np.full(peak.size, one.ep),
        num_data_parallel=np.full(peak.size, one.num_data_parallel),
        holds=np.full(peak.size, one.accumulate == "hold"),
        pp=np.ones(peak.size, dtype=np.int64),
        schedule=np.full(peak.size, ORDERS.index("1f1b")),
        stages=np.ones(peak.size, dtype=np.int64),
        offloads=np.full(peak.size, _place_of(search.job, one)),
        peak_bytes=peak.reshape(-1),
        step_s=seconds.reshape(-1),
        fits=(peak.reshape(-1) <= tensor_limit_bytes(search.cluster))
        & (spread(_rooms(search, grid), 2) > 0)
        & (away * search.cluster.devices_per_node <= host_bytes).reshape(-1),
    )


def _paged_away(search: Search, grid: Grid, peak: Array) -> Array:
    """Return what of paged state has no room on a device: [batches, counts of blocks, shards]."""
    paged, limit_bytes = held_of(search, grid).updates.paged, tensor_limit_bytes(search.cluster)
    away: Array = away_bytes(paged, held=peak, limit_bytes=limit_bytes)
    return away


def _rooms(search: Search, grid: Grid) -> NDArray[np.int64]:
    """Return 1 where a node's host has room for what is kept there, or nobody knows: [shards]."""
    job, cluster, one = search.job, search.cluster, grid.batches[0]
    if not (one.away.optimizer or one.away.frozen) or not cluster.host_ram_bytes:
        return np.ones(len(grid.num_shards), dtype=np.int64)
    each = [one._replace(num_shards=int(num)) for num in grid.num_shards]
    pins = cluster.device.kernels != "cpu"
    held = np.array([sum(on_host(job, family, pins=pins)) for family in each])
    return (held * cluster.devices_per_node <= cluster.host_ram_bytes).astype(np.int64)


def _place_of(job: Job, family: Family) -> int:
    """Return what is on the host, as its place in ``OFFLOADS``."""
    return OFFLOADS.index(spell_offload(family.away, num_layers=job.model.num_layers))


class Least(NamedTuple):
    """What the strategies of a grid share, by numbers of shards: none has less.

    Attributes:
        kept_bytes: Parameters and the optimizer's state; gradients, activations and what comes and
            goes are beside them at the peak.
        sent_s: Seconds of a step's collectives that run beside what is computed.
    """

    kept_bytes: Array
    sent_s: Array


def least_of(search: Search, grid: Grid) -> Least:
    """Return what every strategy of a grid takes, before any is evaluated: [shards] each."""
    held = held_of(search, grid)
    times = min(family_micro_batches(search.job, family) for family in grid.batches)
    sent = times * held.traffic.per_micro_batch + held.traffic.per_step
    return Least(held.states.loaded + held.states.optimizer_state, sent)


def least_peaks(search: Search, grid: Grid) -> Array:
    """Return what peaks are at least, before levels are walked: [batches, counts or 1, shards].

    The update takes so much. Where each count of checkpointed blocks runs other events, as where
    blocks are of several kinds, so do what these have saved and the loss, beside what stays.
    """
    return _shared(search.least, search, grid, _make_least)


def _make_least(search: Search, grid: Grid) -> Array:
    held, updates = held_of(search, grid)[:2]
    at_update: Array = (sum(held) + updates.transient)[None, None]
    job, profiles = search.job, profiles_of(search, grid)
    if len(profiles) < len(grid.num_blocks):
        return at_update
    again = np.array([family_micro_batches(job, family) > 1 for family in grid.batches])
    kept = held.loaded + held.optimizer_state + again[:, None] * held.gradients
    between = _between(search, grid, profiles)
    taken: Array = np.maximum(at_update, kept[:, None] + between[..., None])
    return taken


def _between(search: Search, grid: Grid, profiles: tuple[Profile, ...]) -> Array:
    """Return the highest level between forward and backward: [batches, counts of blocks].

    It hangs on no number of devices, so that searches of a market make it once.
    """
    one, known = grid.batches[0], search.between
    if known is None:
        return _make_between(search, grid, profiles)
    whole = (
        profiles[0].key, profiles[-1].key, one.body, one.recompute,
        family_chunks(search.job, one), tuple(grid.num_blocks.tolist()),
    )  # fmt: skip
    names = [(whole, _batch_of(family)) for family in grid.batches]
    new = [place for place, name in enumerate(names) if name not in known]
    if new:
        batches = tuple(grid.batches[place] for place in new)
        made = _make_between(search, grid._replace(batches=batches), profiles)
        known.update(zip((names[place] for place in new), made, strict=True))
    return np.stack([known[name] for name in names])


def _make_between(search: Search, grid: Grid, profiles: tuple[Profile, ...]) -> Array:
    job, one, num = search.job, grid.batches[0], grid.num_batches
    sizes = kinds_bytes(profiles[0], grid_dimensions(job, grid.batches), num)
    counts = Counts(job.model.num_layers, np.full(num, float(family_chunks(job, one))))
    return np.stack([
        in_between(profile, family_variant(job, profile, one).first, sizes, counts)
        for profile in profiles
    ], axis=1)  # fmt: skip


def _batch_of(family: Family) -> Hashable:
    """Return what decides the sizes of a micro-batch."""
    return family.tp, family.ep, family.micro_batch, family.loss_chunks


def peaks_of(search: Search, grid: Grid) -> Array:
    """Return the peak of allocated bytes: [batches, counts of blocks, shards]."""
    return _shared(search.peaks, search, grid, _make_peaks)


def _shared(
    known: dict[int, Array] | None,
    search: Search,
    grid: Grid,
    make: Callable[[Search, Grid], Array],
) -> Array:
    """Return what searches on as many devices of other kinds know of a grid, or make it."""
    if known is None:
        return make(search, grid)
    if id(grid) not in known:
        known[id(grid)] = make(search, grid)
    return known[id(grid)]


def _make_peaks(search: Search, grid: Grid) -> Array:
    job, device, held = search.job, search.cluster.device, held_of(search, grid)
    blas = np.concatenate([
        blas_bytes(job, family, device, profile) for family, profile in _each(search, grid)
    ])  # fmt: skip
    peak: Array = _insides(search, grid) + blas[:, None]
    loading: Array = np.maximum(peak, held.states.loaded + held.drawn)
    return loading


def _insides(search: Search, grid: Grid) -> Array:
    """Return peaks without what cuBLAS keeps: [batches, counts of blocks, shards].

    Chips split sums of rows in other ways, which few of them hang on.
    """
    known, own = search.insides, chips_of(search.job, search.cluster.device)
    if known is None:
        return _make_insides(search, grid, _above(search, grid, (own,))[0])
    keys: tuple[Hashable, Hashable] = id(grid), (id(grid), own)
    if not any(key in known for key in keys):
        least, *most = _above(search, grid, tuple(dict.fromkeys(((), every_chip(search.job)))))
        hangs = not all(np.array_equal(least, each) for each in most)
        above = _above(search, grid, (own,))[0] if hangs else least
        known[keys[hangs]] = _make_insides(search, grid, above)
    return next(known[key] for key in keys if key in known)


def _make_insides(search: Search, grid: Grid, above: Array) -> Array:
    """Return peaks without what cuBLAS keeps, of steps that rise so high above what stays."""
    one = grid.batches[0]
    held, updates = held_of(search, grid)[:2]
    if asks_by_itself(one.reference):
        above = np.maximum(above, _asked(search, grid, held)[:, None])
    inside = held.loaded + held.optimizer_state + above
    highest_of: Array = np.maximum(inside, sum(held) + updates.transient)
    return highest_of


def _asked(search: Search, grid: Grid, held: States) -> Array:
    """Return the peak of the reference's forward, gradients beside it: [batches, shards]."""
    job, device = search.job, search.cluster.device
    asked = [asked_bytes(job, family, search.attention, device) for family in grid.batches]
    again = [family_micro_batches(job, family) > 1 for family in grid.batches]
    beside: Array = np.array(asked, float)[:, None] + np.array(again)[:, None] * held.gradients
    return beside


def _each(search: Search, grid: Grid) -> list[tuple[Family, Profile]]:
    """Return the first batch of a grid with its profile, or of each count of blocks with its."""
    profiles, one = profiles_of(search, grid), grid.batches[0]
    if len(profiles) == 1:
        return [(one, profiles[0])]
    every = zip(np.split(grid.num_blocks, len(profiles)), profiles, strict=True)
    return [(one._replace(num_blocks=count), profile) for count, profile in every]


def _above(search: Search, grid: Grid, ways: Sequence[Chips]) -> list[Array]:
    """Return how high a step rises above what stays: [batches, counts of blocks, shards].

    ``ways``: chips on which each of what is returned may be.
    """
    num_blocks, pieces = grid.num_blocks.astype(np.float64), held_of(search, grid).pieces
    if search.wide is None:
        return [_levels(search, grid).peaks(num_blocks, pieces)]
    columns = _columns(search, grid, ways)
    found: dict[int, list[int]] = {}
    for place, column in enumerate(columns):
        found.setdefault(id(column.levels), []).append(place)
    above = np.empty((len(columns), len(num_blocks), pieces.shape[1]))
    for places in found.values():
        own = np.array([columns[place].number for place in places])
        above[places] = columns[places[0]].levels.of_batches(own).peaks(num_blocks, pieces)
    return np.split(above, len(ways))


def _columns(search: Search, grid: Grid, ways: Sequence[Chips]) -> list[Column]:
    """Return the levels of each batch, way by way; of what other numbers of devices ask for too."""
    assert search.wide is not None
    job, one = search.job, grid.batches[0]
    profiles = profiles_of(search, grid)
    key = (
        *_levels_key(search, grid), one.is_spread, _num_alike(job, one),
        profiles[0].key, profiles[-1].key,
        min(family_chunks(job, one), NUM_CHUNKS), tuple(grid.num_blocks.tolist()), ways,
    )  # fmt: skip
    known = search.wide.setdefault(key, {})
    if any(_batch_of(family) not in known for family in grid.kin):
        missing = {_batch_of(family): family for family in (*grid.kin, *_others_of(job, grid))}
        families = tuple(each for name, each in missing.items() if name not in known)
        every = grid._replace(batches=families * len(ways))
        made = _make_levels(search, every, [way for way in ways for _ in families])
        for place, family in enumerate(families):
            numbers = range(place, every.num_batches, len(families))
            known[_batch_of(family)] = tuple(Column(made, number) for number in numbers)
    told = [known[_batch_of(family)] for family in grid.batches]
    return [columns[way] for way in range(len(ways)) for columns in told]


def _num_alike(job: Job, family: Family) -> int:
    """Return how many micro-batches of a step differ in their events."""
    return min(family_micro_batches(job, family), 3 if family.accumulate == "hold" else 2)


def _others_of(job: Job, grid: Grid) -> Iterator[Family]:
    """Yield batches that run the same events as a grid's on other numbers of devices."""
    one, whole = grid.batches[0], job.global_batch
    num_alike, num_chunks = _num_alike(job, one), min(family_chunks(job, one), NUM_CHUNKS)
    chunks = dict.fromkeys(family.loss_chunks for family in grid.kin)
    degrees = dict.fromkeys(family.tp for family in grid.kin)
    for micro_batch in (n for n in range(1, min(whole, MAX_MICRO_BATCH) + 1) if whole % n == 0):
        num = whole // micro_batch
        groups = [n for n in range(2, num + 1) if num % n == 0] if one.is_spread else [1]
        for tp, cut in product(degrees, chunks):
            if micro_batch * job.rows_per_sample * job.seq_len % cut:
                continue
            made = one._replace(micro_batch=micro_batch, loss_chunks=cut, tp=tp)
            every = (made._replace(num_data_parallel=n) for n in groups)
            is_like = (
                like
                for like in every
                if _num_alike(job, like) == num_alike
                and min(family_chunks(job, like), NUM_CHUNKS) == num_chunks
                and runs_one(job, like) == runs_one(job, one)
                and holds_whole(job, like) == holds_whole(job, one)
            )
            yield from islice(is_like, 1)


def _levels_key(search: Search, grid: Grid) -> tuple[Hashable, ...]:
    """Return what decides the events of a step beside its batches."""
    one = grid.batches[0]
    whole = (one.is_spread, holds_whole(search.job, one))
    spread = (one.zero, one.accumulate) if one.gathers else whole
    key: tuple[Any, ...] = (spread, one.away, one.ep, one.body, one.recompute)
    return key


def _levels(search: Search, grid: Grid) -> Levels:
    """Return the levels of a step; those of DDP are the same whatever ZeRO-1 or holding does."""
    batches = tuple((family.tp, family.micro_batch, family.loss_chunks) for family in grid.kin)
    key = (*_levels_key(search, grid), batches)
    if key not in search.levels:
        on = [chips_of(search.job, search.cluster.device)] * len(grid.kin)
        made = _make_levels(search, grid._replace(batches=grid.kin), on)
        keep(search.levels, key, made, most=MOST_LEVELS)
    if len(grid.batches) == len(grid.kin):
        return search.levels[key]
    own = slice(grid.start, grid.start + len(grid.batches))
    return search.levels[key].of_batches(own)


def _make_levels(search: Search, grid: Grid, on: Sequence[Chips]) -> Levels:
    job, num = search.job, grid.num_batches
    dims, each = grid_dimensions(job, grid.batches), _each(search, grid)
    every = [family_steps(job, profile, family) for family, profile in each]
    known = dict[int, Array]()

    def sizes(profile: Profile) -> Array:
        if id(profile.kinds) not in known:
            made = kinds_bytes(profile, dims, num)
            gathers = grid.batches[0].gathers
            known[id(profile.kinds)] = _with_rows(job, made, grid, profile) if gathers else made
        return known[id(profile.kinds)]

    at_end = np.stack([_rows_at_end(search, grid, dims, profile) for _, profile in each])
    chunks = np.array([family_chunks(job, family) for family in grid.batches], dtype=np.float64)
    counts = Counts(job.model.num_layers, chunks)
    behind = sums_behind(job, grid.batches, on)
    if len(every) > 1:
        return sequence_levels(every, sizes, counts, at_end=at_end, behind=behind)
    (steps,) = every
    mine = [sizes(profile) for profile, _ in steps]
    return forms(steps, mine, counts, at_end=at_end[0], behind=behind)


def _rows_at_end(search: Search, grid: Grid, dims: Dimensions, profile: Profile) -> Array:
    """Return what comes on top of the level that a step ends with: [batches]."""
    job, one = search.job, grid.batches[0]
    if not adds_rows(job, search.cluster.device, one):
        return np.full(grid.num_batches, NOWHERE)
    taken = [embedding_bytes(job, family) for family in grid.batches]
    at_end = np.array([sum(each) if each[0] else NOWHERE for each in taken], dtype=np.float64)
    beside: Array = at_end + rows_beside(job, profile, one, dims)
    return beside


def _with_rows(job: Job, sizes: Array, grid: Grid, profile: Profile) -> Array:
    """Put in the bytes of ``ROWS``, coming and going, among a profile's pieces."""
    each = np.array([row_bytes(job, family) for family in grid.batches]).T
    sizes, num = sizes.copy(), num_pieces(profile)
    for sign, start in ((1, 2 * num), (-1, num)):
        sizes[[len(sizes) - start + row for row in ROWS]] = sign * each
    return sizes
