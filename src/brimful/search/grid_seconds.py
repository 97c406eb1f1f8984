"""Seconds of all strategies of a grid at once; ``cost.step_time`` says the same of one of them."""

from collections.abc import Hashable

import numpy as np

from brimful.cost.attending import scores_of
from brimful.cost.copied import copied_seconds
from brimful.cost.efficiency import size_of
from brimful.cost.exchange import Sent, sent_of
from brimful.cost.expert_exchange import exchange_waits_s
from brimful.cost.family import (
    family_micro_batches,
)
from brimful.cost.on_host import copied_of
from brimful.cost.preference import copied_as_moved
from brimful.cost.profiles import Dimensions
from brimful.cost.states import device_update_flops
from brimful.cost.step import StepWork, step_seconds, update_bytes
from brimful.cost.traffic import later_s
from brimful.cost.work import grid_work
from brimful.search.grid_values import Array, Grid, Search, grid_dimensions, held_of, profiles_of
from brimful.techniques.offload import NOTHING
from brimful.values.job import Job


def seconds_of(search: Search, grid: Grid) -> Array:
    """Return seconds of a step, NaN where unknown: [batches, counts of blocks, shards]."""
    job, cluster = search.job, search.cluster
    held = held_of(search, grid)
    moved: Array = update_bytes(job, cluster.device, held.states, grid.batches[0])
    dims = grid_dimensions(job, grid.batches)
    amounts = _work(search, grid, dims)
    matrix, attended, bytes_moved, ops = amounts[..., None]
    copied = np.array([copied_as_moved(job, family, cluster.device) for family in grid.batches])
    one = grid.batches[0]
    updates = np.array([device_update_flops(job, one, int(n)) for n in grid.num_shards])
    work = StepWork(matrix + updates, attended, bytes_moved + moved + copied[:, None, None], ops)
    micro_batch = np.array([family.micro_batch for family in grid.batches])[:, None, None]
    size = size_of(job, micro_batch, tp=grid.batches[0].tp)
    scores = scores_of(job, search.attention, cluster.device)
    seconds = step_seconds(work, job, cluster.device, size, scores)
    if seconds is None:
        return np.full(work.moved_bytes.shape, np.nan)
    traffic = held.traffic
    times = np.array([family_micro_batches(job, family) for family in grid.batches])
    device_s = seconds.matrix_s + seconds.memory_s + seconds.launch_s
    waited = times[:, None, None] * _waited(search, grid) + _offloaded(search, grid, device_s)
    own_s = device_s + waited
    total: Array = own_s + later_s(own_s, traffic, times[:, None, None])
    return total


def _offloaded(search: Search, grid: Grid, device_s: Array) -> Array:
    """Return what a step takes longer as something is on the host: [batches, counts, shards]."""
    if grid.batches[0].away == NOTHING:
        return np.zeros((1, 1, 1))
    more = np.zeros((*device_s.shape[:-1], len(grid.num_shards)))
    for place, num_shards in enumerate(grid.num_shards):
        of_num = [family._replace(num_shards=int(num_shards)) for family in grid.batches]
        for row, family in enumerate(of_num):
            beside_s = device_s[row, :, min(place, device_s.shape[-1] - 1)]
            seconds = copied_seconds(
                copied_of(search.job, family),
                search.cluster.device,
                num_beside=search.cluster.devices_per_node,
                beside_s=beside_s,
            )
            more[row, :, place] = np.nan if seconds is None else seconds
    return more


def _work(search: Search, grid: Grid, dims: Dimensions) -> Array:
    """Return the work of a step: [amounts, batches, counts of blocks]."""
    profiles, one = profiles_of(search, grid), grid.batches[0]
    key = (profiles[0].key, one.num_data_parallel, one.sends_each, *_sizes_of(grid))
    if key not in search.works:
        made = grid_work(search.job, profiles, grid.batches, dims, grid.num_blocks)
        search.works[key] = made
    return search.works[key]


def _waited(search: Search, grid: Grid) -> Array:
    """Return what a micro-batch waits for those that share matrices or experts: as ``_sent``."""
    one = grid.batches[0]
    key = (one.gathers, *_sizes_of(grid))
    if key not in search.waits:
        sent = _sent(search.job, grid)
        search.waits[key] = exchange_waits_s(search.job, one, search.cluster, sent)
    return search.waits[key]


def _sizes_of(grid: Grid) -> tuple[Hashable, ...]:
    """Return what decides how large the micro-batches of a grid are, and what is computed again."""
    batches = tuple((family.micro_batch, family.loss_chunks) for family in grid.batches)
    one = grid.batches[0]
    return one.tp, one.ep, batches, tuple(grid.num_blocks.tolist())


def _sent(job: Job, grid: Grid) -> Sent:
    """Return how large micro-batches are: [batches, counts of blocks, 1], or what broadcasts."""
    every = [sent_of(job, family._replace(num_blocks=0)) for family in grid.batches]
    tokens, chunks = (
        np.array([getattr(sent, name) for sent in every])[:, None, None]
        for name in ("tokens", "chunks")
    )
    return Sent(tokens, chunks, grid.num_blocks[None, :, None].astype(np.float64))
