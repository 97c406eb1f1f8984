"""Strategies that run the same events, as a grid, and what a search of them shares."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import (
    Family,
    family_dimensions,
)
from brimful.cost.levels import Forms
from brimful.cost.load_transients import drawn_bytes
from brimful.cost.memory import profiles_for
from brimful.cost.profiles import Dimensions, Profile
from brimful.cost.sequence_levels import SequenceLevels
from brimful.cost.shards import ROWS, piece_bytes
from brimful.cost.spread import holds_whole
from brimful.cost.states import States, states_of, updates_of
from brimful.cost.traffic import Traffic, traffic_of
from brimful.cost.update import Update
from brimful.hardware.cluster import Cluster
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job
from brimful.values.strategy import Attention

Array = NDArray[np.float64]

Levels = Forms | SequenceLevels


class Grid(NamedTuple):
    """Strategies that run the same events.

    Attributes:
        batches: Families that differ in micro-batch and chunks, which run alike.
        num_blocks: [counts of blocks], how many are checkpointed.
        num_shards: [shards], over how many devices states are sharded.
        kin: The batches among all that run the same events, on whatever number of devices that
            share every matrix; levels are walked through once for all of them.
        start: Where among those the batches begin.
    """

    batches: tuple[Family, ...]
    num_blocks: NDArray[np.int64]
    num_shards: NDArray[np.int64]
    kin: tuple[Family, ...]
    start: int

    @property
    def num_batches(self) -> int:
        """How many micro-batches with numbers of chunks there are."""
        return len(self.batches)

    @property
    def size(self) -> int:
        """How many strategies there are."""
        return len(self.batches) * len(self.num_blocks) * len(self.num_shards)


class Held(NamedTuple):
    """What hangs on the numbers of shards only: [shards] each, pieces [pieces, shards].

    Attributes:
        states: Bytes that live across phases.
        updates: Those of the optimizer's updates.
        pieces: Bytes of pieces, but for those of ``ROWS``, which hang on the batch.
        drawn: Bytes of a parameter that is drawn whole.
        traffic: Seconds of collectives that run beside what is computed.
    """

    states: States
    updates: Update
    pieces: Array
    drawn: Array
    traffic: Traffic


class Column(NamedTuple):
    """Levels of one micro-batch among those of several."""

    levels: Levels
    number: int


class Search(NamedTuple):
    """What a search is for, and what grids share.

    Attributes:
        job: What is trained.
        cluster: On what.
        attention: How the model attends.
        held: By degree, stage of ZeRO and numbers of shards.
        levels: By what decides the events of a step: levels that may be its peak.
        works: The work of grids, by what decides it.
        waits: Seconds that a micro-batch waits for devices that share matrices or experts.
        kept: What searches on as many devices of other kinds share: what states take, by the keys
            of ``held``; None: nothing is shared.
        peaks: What they share beside it: peaks, by the identity of a grid.
        least: And what those are at least.
        insides: And peaks without what cuBLAS keeps, which other chips keep more of; by the chip
            too where its sums of rows are part of one.
        wide: What searches on any number of devices share: levels of single batches, one for each
            of the chips that were asked for together.
        between: And what is there between the blocks' forward and backward, of single batches.
    """

    job: Job
    cluster: Cluster
    attention: Attention
    held: dict[Hashable, Held]
    levels: dict[Hashable, Levels]
    works: dict[Hashable, Array]
    waits: dict[Hashable, Array]
    kept: "dict[Hashable, Held] | None" = None
    peaks: dict[int, Array] | None = None
    least: dict[int, Array] | None = None
    insides: dict[Hashable, Array] | None = None
    wide: "dict[Hashable, dict[Hashable, tuple[Column, ...]]] | None" = None
    between: dict[Hashable, Array] | None = None


def held_of(search: Search, grid: Grid) -> Held:
    """Return what hangs on the numbers of shards only."""
    family, shards = _of_shards(grid), tuple(grid.num_shards)
    whole = holds_whole(search.job, family)
    key = (family.tp, family.ep, family.zero, family.accumulate, shards, whole, family.away)
    if key not in search.held:
        search.held[key] = _shared_held(search, family, key)
    return search.held[key]


def _shared_held(search: Search, family: Family, key: Hashable) -> Held:
    """Return what another kind of device holds too; what is sent hangs on its links."""
    if search.kept is None:
        return _make_held(search, family)
    if OPTIMIZERS[search.job.optimizer].hangs_on_chip:
        key = (key, search.cluster.device.capability)
    if key not in search.kept:
        search.kept[key] = _make_held(search, family)
    return search.kept[key]._replace(traffic=traffic_of(search.job, family, search.cluster))


def _make_held(search: Search, family: Family) -> Held:
    job, device = search.job, search.cluster.device
    updates, pieces = updates_of(job, family, device), piece_bytes(job, family)
    pieces[ROWS] = 0.0  # they are among the sizes of a batch
    return Held(
        states=states_of(job, family, updates, device.kernels),
        updates=updates,
        pieces=pieces,
        drawn=drawn_bytes(job, family),
        traffic=traffic_of(job, family, search.cluster),
    )


def _of_shards(grid: Grid) -> Family:
    """Return a family of one strategy per number of shards."""
    none = np.zeros(len(grid.num_shards))
    return grid.batches[0]._replace(num_blocks=none, num_shards=grid.num_shards)


def profiles_of(search: Search, grid: Grid) -> tuple[Profile, ...]:
    """Return the profile of a grid, or one of each count of checkpointed blocks."""
    return profiles_for(search.job, search.attention, search.cluster.device, grid.batches[0])


def grid_dimensions(job: Job, batches: tuple[Family, ...]) -> Dimensions:
    """Return the sizes of formulas; those that differ between batches are arrays of [batches]."""
    first, *others = (family_dimensions(job, family) for family in batches)
    changes: dict[str, Any] = {}
    for name, value in first._asdict().items():
        values = [value, *(getattr(each, name) for each in others)]
        if any(each != value for each in values):
            changes[name] = np.array(values, dtype=np.float64)
    return first._replace(**changes)
