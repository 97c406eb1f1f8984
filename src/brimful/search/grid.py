"""Many strategies at once: those that run the same events on tensors of other sizes.

Strategies with one body, one way of cutting the loss and one way of spreading differ in numbers
only. They are a grid: batches (micro-batch and chunks) by counts of checkpointed blocks by numbers
of shards; peaks and times are arrays of that shape. ``cost.estimate`` says the same of one of them.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.comm import overlapped_seconds
from brimful.cost.efficiency import size_of
from brimful.cost.embedding import embedding_bytes
from brimful.cost.estimate import allocatable_bytes
from brimful.cost.family import Family, family_chunks, family_dimensions, family_micro_batches
from brimful.cost.levels import NOWHERE, Counts, Form, forms, highest, surface
from brimful.cost.memory import adds_rows, blas_bytes, family_steps, profile_for
from brimful.cost.profiles import Dimensions, Profile
from brimful.cost.shards import ROWS, piece_bytes
from brimful.cost.spread import NUM_PIECES, holds_whole
from brimful.cost.states import States, states_of, updates_of
from brimful.cost.step import StepWork, step_seconds, update_bytes
from brimful.cost.traffic import traffic_of
from brimful.cost.trajectory import kinds_bytes
from brimful.cost.update import Update
from brimful.cost.work import grid_work
from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.search.table import Table
from brimful.strategy import Attention

Array = NDArray[np.float64]


class Grid(NamedTuple):
    """Strategies that run the same events.

    Attributes:
        batches: Families that differ in micro-batch and chunks, which run alike.
        num_blocks: [counts of blocks], how many are checkpointed.
        num_shards: [shards], over how many devices states are sharded.
    """

    batches: tuple[Family, ...]
    num_blocks: NDArray[np.int64]
    num_shards: NDArray[np.int64]

    @property
    def size(self) -> int:
        """How many strategies there are."""
        return len(self.batches) * len(self.num_blocks) * len(self.num_shards)


class Search(NamedTuple):
    """What a search is for, and what grids share.

    Attributes:
        job: What is trained.
        cluster: On what.
        attention: How the model attends.
        held: By stage of ZeRO and numbers of shards: states and updates.
        levels: By what decides the events of a step: levels that may be its peak.
    """

    job: Job
    cluster: Cluster
    attention: Attention
    held: dict[Hashable, tuple[States, Update]]
    levels: dict[Hashable, list[Form]]


def evaluate(search: Search, grid: Grid) -> Table:
    """Predict peak and step time of every strategy of a grid."""
    peak, seconds = _peaks(search, grid), _seconds(search, grid)
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
        selective=np.full(peak.size, one.recompute == "selective"),
        zero=np.full(peak.size, one.zero),
        num_shards=spread(grid.num_shards, 2),
        num_data_parallel=np.full(peak.size, one.num_data_parallel),
        holds=np.full(peak.size, one.accumulate == "hold"),
        peak_bytes=peak.reshape(-1),
        step_s=seconds.reshape(-1),
        fits=peak.reshape(-1) <= allocatable_bytes(search.cluster.device),
    )


def _of_shards(grid: Grid) -> Family:
    """Return a family of one strategy per number of shards."""
    none = np.zeros(len(grid.num_shards))
    return grid.batches[0]._replace(num_blocks=none, num_shards=grid.num_shards)


def _held(search: Search, grid: Grid) -> tuple[States, Update]:
    """Return states and updates: [shards] each."""
    family = _of_shards(grid)
    key = (family.zero, tuple(grid.num_shards), holds_whole(search.job, family))
    if key not in search.held:
        updates = updates_of(search.job, family, search.cluster.device.kernels)
        search.held[key] = (states_of(search.job, family, updates), updates)
    return search.held[key]


def _peaks(search: Search, grid: Grid) -> Array:
    """Return the peak of allocated bytes: [batches, counts of blocks, shards]."""
    job, device, one = search.job, search.cluster.device, grid.batches[0]
    held, updates = _held(search, grid)
    blas = blas_bytes(job, one._replace(num_blocks=grid.num_blocks), device)
    pieces = piece_bytes(job, _of_shards(grid))
    pieces[ROWS] = 0.0  # they hang on the batch and are among its sizes
    found = surface(_levels(search, grid), grid.num_blocks.astype(np.float64), pieces)
    above = np.stack([highest(found, batch=i) for i in range(len(grid.batches))])
    inside = held.loaded + held.optimizer_state + above
    peak: Array = np.maximum(inside, sum(held) + updates.transient) + blas[:, None]
    return peak


def _profile(search: Search, grid: Grid) -> Profile:
    one = grid.batches[0]
    return profile_for(
        search.job, search.attention, search.cluster.device, one.recompute, gathers=one.gathers
    )


def _dimensions(job: Job, grid: Grid) -> Dimensions:
    """Return the sizes of formulas; those that differ between batches are arrays of [batches]."""
    every = [family_dimensions(job, family) for family in grid.batches]
    changes: dict[str, Any] = {
        name: np.array([getattr(dims, name) for dims in every], dtype=np.float64) for name in "BC"
    }
    return every[0]._replace(**changes)


def _levels(search: Search, grid: Grid) -> list[Form]:
    """Return the levels of a step; those of DDP are the same whatever ZeRO-1 or holding does."""
    one = grid.batches[0]
    whole = (one.is_spread, holds_whole(search.job, one))
    spread = (one.zero, one.accumulate) if one.gathers else whole
    batches = tuple((family.micro_batch, family.loss_chunks) for family in grid.batches)
    key = (spread, one.body, one.recompute, batches)
    if key not in search.levels:
        search.levels[key] = _make_levels(search, grid)
    return search.levels[key]


def _make_levels(search: Search, grid: Grid) -> list[Form]:
    job, one, num = search.job, grid.batches[0], len(grid.batches)
    steps = family_steps(job, _profile(search, grid), one)
    dims = _dimensions(job, grid)
    sizes = [kinds_bytes(each, dims, num) for each, _ in steps]
    at_end = np.full(num, NOWHERE)
    if adds_rows(job, search.cluster.device, one):
        taken = [embedding_bytes(job, family) for family in grid.batches]
        at_end = np.array([sum(each) if each[0] else NOWHERE for each in taken], dtype=np.float64)
    if one.gathers:
        sizes = [_with_rows(job, each, grid) for each in sizes]
    chunks = np.array([family_chunks(job, family) for family in grid.batches], dtype=np.float64)
    return forms(steps, sizes, Counts(job.model.num_layers, chunks), at_end=at_end)


def _with_rows(job: Job, sizes: Array, grid: Grid) -> Array:
    """Put in the bytes of ``ROWS``, coming and going."""
    one = [family._replace(num_blocks=0) for family in grid.batches]
    each = np.array([piece_bytes(job, family)[ROWS, 0] for family in one]).T
    sizes = sizes.copy()
    for sign, start in ((1, 2 * NUM_PIECES), (-1, NUM_PIECES)):
        sizes[[len(sizes) - start + row for row in ROWS]] = sign * each
    return sizes


def _seconds(search: Search, grid: Grid) -> Array:
    """Return seconds of a step, NaN where unknown: [batches, counts of blocks, shards]."""
    job, cluster = search.job, search.cluster
    moved: Array = update_bytes(_held(search, grid)[0])
    dims = _dimensions(job, grid)
    amounts = grid_work(job, _profile(search, grid), grid.batches, dims, grid.num_blocks)
    matrix, attended, bytes_moved, ops = amounts[..., None]
    work = StepWork(matrix, attended, bytes_moved + moved, ops)
    micro_batch = np.array([family.micro_batch for family in grid.batches])[:, None, None]
    seconds = step_seconds(work, job, cluster.device, size_of(job, micro_batch))
    if seconds is None:
        return np.full(work.moved_bytes.shape, np.nan)
    traffic = traffic_of(job, _of_shards(grid), cluster)
    times = np.array([family_micro_batches(job, family) for family in grid.batches])
    exchanged = times[:, None, None] * traffic.per_micro_batch + traffic.per_step
    device_s = seconds.matrix_s + seconds.memory_s + seconds.launch_s
    total: Array = overlapped_seconds(device_s, exchanged)
    return total
