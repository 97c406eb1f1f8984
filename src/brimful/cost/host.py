"""Host memory of one node, item by item, all its processes together; and checkpoints on disk.

What a run puts into the host's memory beside what a Python process with torch takes anyway. On a
CPU the device's memory is the host's: its peak is one item here, and nothing is counted twice.
Exact: batches, copies for saving. Measured bands: a process, and what the host's own allocator
keeps. Not counted: the pages of mapped files (token files, checkpoints being written), which the
system takes back when it needs them; preparing the data, which is over before training begins.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from brimful.cost.assumptions import assumptions_for
from brimful.cost.deepspeed_host import held_by_deepspeed, is_deepspeeds
from brimful.cost.family import family_of
from brimful.cost.managed import away_bytes, paged_bytes
from brimful.cost.memory import profile_for
from brimful.cost.on_host import OnHost, on_host
from brimful.cost.preference import second_model_sizes
from brimful.cost.saved import disk_bytes, pinned_bytes, saved_sizes
from brimful.cost.sent_activations import NOTHING_SENT, sent_activations
from brimful.cost.trained import frozen_element, num_trained, trained_recipe
from brimful.hardware.cluster import Cluster, Device
from brimful.models.config import parameter_count
from brimful.values.job import Job
from brimful.values.plan import Band, HostMemory, MemoryItem, PhasePeak
from brimful.values.results import (
    GRADIENTS,
    LOAD,
    OPTIMIZER_STATE,
    PAGED_STATE,
    PARAMETERS,
    REFERENCE,
    RESUME,
    SAVE,
    SAVED_ACTIVATIONS,
    STEP_2,
)
from brimful.values.strategy import Strategy, data_parallel, gathers, what_is_away, world_size

SaveMode = Literal["sync", "async"]
STEPS, HAND_OVER = "steps", "hand-over"
SAVING = "copy for saving"
PHASES = (LOAD, RESUME, STEPS, SAVE, HAND_OVER)
PROCESSES, DEVICES = "processes", "devices' memory"
_ON_DEVICE = {LOAD: LOAD, RESUME: RESUME, STEPS: STEP_2, SAVE: SAVE, HAND_OVER: SAVE}
"""Which of the device's phases goes with each of the host's."""
NUM_KEPT = 2
"""Checkpoints that a run keeps; tested equal to ``train.settings``."""
NUM_EVAL_TOKENS = 16_384
"""Of the held-out sample, which stays on the host; tested equal to ``train.settings``."""
PIECE_BYTES = 2**21
"""Read at once of a stored weight, if its numbers had 8 bytes; tested equal to
``build.weight_files``."""
_STORED_SHARE = 0.5
"""Of that, for the 4 bytes of the widest type that weights are stored in as a rule."""
SHARD_BYTES = 50 * 10**9
"""Of a model's files: as much is on the host at once. Source: ``max_shard_size`` of
``PreTrainedModel.save_pretrained``, and ``_flatten_as_ptr`` of safetensors, which keeps it all."""
_TOKEN_BYTES = 16
"""Of a token: input and label, int64."""
_WINDOW_BYTES = 8
"""Of a token of the window that both are cut from."""


class _Node(NamedTuple):
    """What is asked about: a run, its number of processes on one node, how it saves.

    ``on_device`` are peaks of one device by phase; ``saved`` and ``whole`` the sizes of the tensors
    that one device saves, and that all save together; ``paged_away`` is what of one device's paged
    state has no room there.
    """

    job: Job
    cluster: Cluster
    strategy: Strategy
    on_device: Mapping[str, int]
    num_processes: int
    saving: SaveMode
    saved: list[int]
    whole: list[int]
    paged_away: int

    @property
    def is_cpu(self) -> bool:
        return self.cluster.device.kernels == "cpu"


def host_memory(
    job: Job,
    cluster: Cluster,
    strategy: Strategy,
    phases: tuple[PhasePeak, ...],
    limit_bytes: int,
) -> HostMemory:
    """Predict what a node's host holds, and what a checkpoint takes on disk.

    ``phases``: peaks of a device; they are the host's own where devices are CPUs. ``limit_bytes``:
    what tensors may take of a device. Returns items in full where they are exact, and the band
    around their sum.
    """
    peaks = {phase.phase: phase.num_bytes for phase in phases}
    num_processes = min(cluster.devices_per_node, world_size(strategy))
    kernels = cluster.device.kernels
    saved, whole = (saved_sizes(job, of, kernels) for of in (strategy, None))
    paged = paged_bytes(job, strategy, cluster.device)
    away = int(away_bytes(paged, held=max(peaks.values()), limit_bytes=limit_bytes))
    node = _Node(job, cluster, strategy, peaks, num_processes, "sync", saved, whole, away)
    found = {phase: tuple(_items(node, phase)) for phase in PHASES}
    highest = max(PHASES, key=lambda phase: _total(found[phase]))
    items = found[highest]
    low, high = _process_bytes(node)
    total = _total(items)
    held = sum(item.num_bytes for item in items if item.name == DEVICES)
    kept = held * assumptions_for(node.cluster.device).host_kept
    more = kept + node.num_processes * (high - low)
    # Copies for saving stay once they were made, and are needed for nothing else.
    train = max(_total(found[phase]) - _copied(found[phase]) for phase in (LOAD, STEPS))
    later = node._replace(saving="async")
    with_copy = max(_total(tuple(_items(later, phase))) for phase in PHASES)
    return HostMemory(
        items=found[highest],
        phases=tuple(
            PhasePeak(phase=phase, num_bytes=_total(found[phase]), where=_largest(found[phase]))
            for phase in PHASES
        ),
        predicted_host_bytes=Band(low=total, high=total + more),
        predicted_async_bytes=with_copy - _total(found[highest]),
        predicted_checkpoint_bytes=disk_bytes(
            whole, num_shards=strategy.tp * (strategy.dp_shard if gathers(strategy) else 1)
        ),
        num_processes=num_processes,
        usable_bytes=cluster.host_ram_bytes,
        fits=_fits(Band(low=train, high=train + more), cluster.host_ram_bytes),
        predicted_training_bytes=train,
    )


def saving_bytes(host: HostMemory) -> int:
    """Return what Brimful's own saving needs of a host that has less; 0: it has as much, or may."""
    most = math.ceil(host.predicted_host_bytes.low)
    return most if 0 < host.usable_bytes < most else 0


def _copied(items: tuple[MemoryItem, ...]) -> int:
    return sum(item.num_bytes for item in items if item.name == SAVING)


def is_cut(strategy: Strategy) -> bool:
    """Whether no device holds the model whole, so that it is gathered to be handed over."""
    return gathers(strategy) or strategy.tp > 1


def _total(items: tuple[MemoryItem, ...]) -> int:
    return sum(item.num_bytes for item in items)


def _largest(items: tuple[MemoryItem, ...]) -> str:
    return max(items, key=lambda item: item.num_bytes).name


def _items(node: _Node, phase: str) -> Iterator[MemoryItem]:
    """Yield what is there in a phase; what takes nothing is left out."""
    low, _ = _process_bytes(node)
    each = [(PROCESSES, node.num_processes * low, "Python and libraries; assumed, see the band")]
    if node.is_cpu:
        held = node.num_processes * node.on_device[_ON_DEVICE[phase]]
        each.append((DEVICES, held, "a CPU's device memory is the host's"))
    if phase != LOAD:
        each += [(*kept, "offloaded, of each process") for kept in _offloaded(node)]
        paged = node.num_processes * node.paged_away
        each.append((PAGED_STATE, paged, "what has no room beside the peak of a GPU"))
    each.append((REFERENCE, _reference_bytes(node), "the second model, in pinned blocks"))
    if phase == LOAD:
        each.append(("weights being read", _read_bytes(node), "a piece of a tensor at a time"))
    elif phase == RESUME:
        each.append(("checkpoint being read", _resumed_bytes(node), "one tensor at a time"))
    else:
        each.append(("batches", _batch_bytes(node), "tokens of a step and of the held-out sample"))
        each.append((SAVING, _copy_bytes(node), _WHY_COPY[node.is_cpu]))
    if phase == HAND_OVER:
        each.append(("model handed over", _model_bytes(node), "on the host of the first process"))
    for name, num_bytes, why in each:
        if num_bytes:
            yield MemoryItem(name=name, phase=phase, num_bytes=num_bytes, where="host", why=why)


def _offloaded(node: _Node) -> Iterator[tuple[str, int]]:
    """Yield what is offloaded keeps, and copies of parameters."""
    job, strategy, device = node.job, node.strategy, node.cluster.device
    if is_deepspeeds(strategy):
        held = held_by_deepspeed(job, strategy)
    else:
        held = _held(job, strategy, device, pins=not node.is_cpu)
    yield PARAMETERS, node.num_processes * (held.parameters + held.base)
    yield GRADIENTS, node.num_processes * (held.gradients + held.passing)
    yield OPTIMIZER_STATE, node.num_processes * held.optimizer_state
    yield SAVED_ACTIVATIONS, node.num_processes * held.activations


def _held(job: Job, strategy: Strategy, device: Device, *, pins: bool) -> OnHost:
    family, sent = family_of(job, strategy), NOTHING_SENT
    if family.away.activations:
        profile = profile_for(job, strategy.attention, device, family)
        sent = sent_activations(job, profile, family)
    return on_host(job, family, pins=pins, sent=sent)


def rounding_bytes(job: Job, cluster: Cluster, strategy: Strategy) -> int:
    """Return by how much a node's pinned blocks are larger than the tensors in them.

    ``strategy``: what is offloaded; it has a formula.
    """
    if cluster.device.kernels == "cpu" or is_deepspeeds(strategy):
        return 0
    exact, pinned = (sum(_held(job, strategy, cluster.device, pins=p)) for p in (False, True))
    return min(cluster.devices_per_node, world_size(strategy)) * (pinned - exact)


_WHY_COPY = {
    True: "what is saved, once; only where it is written in the background",
    False: "what is saved, once, in pinned blocks of powers of two, which stay",
}


def _process_bytes(node: _Node) -> tuple[int, int]:
    assumed = assumptions_for(node.cluster.device)
    if node.is_cpu:
        return assumed.cpu_process_low_bytes, assumed.cpu_process_high_bytes
    return assumed.cuda_process_low_bytes, assumed.cuda_process_high_bytes


def _reference_bytes(node: _Node) -> int:
    """Return an offloaded reference; a CPU's is among what its devices hold."""
    if node.strategy.reference != "offloaded" or node.is_cpu:
        return 0
    return node.num_processes * pinned_bytes(second_model_sizes(node.job))


def _read_bytes(node: _Node) -> int:
    """Return what is read at once of stored weights; nothing where weights are random."""
    has_files = node.job.weights is not None
    return int(node.num_processes * PIECE_BYTES * _STORED_SHARE * has_files)


def _resumed_bytes(node: _Node) -> int:
    """Return the largest saved tensor: DCP reads one at a time, whole."""
    return node.num_processes * max(node.saved)


def _batch_bytes(node: _Node) -> int:
    """Return the rows of a step and the held-out ones: every process has all of both."""
    job = node.job
    held_out = max(node.strategy.micro_batch * job.seq_len, NUM_EVAL_TOKENS)
    tokens = job.tokens_per_step + held_out
    return node.num_processes * (tokens * _TOKEN_BYTES + job.tokens_per_step * _WINDOW_BYTES)


def _copy_bytes(node: _Node) -> int:
    """Return the copies of what is saved.

    In the background every process copies what it holds. Else, on a GPU, DCP's writer copies it to
    the host tensor by tensor and lets go of them when all are written; what several processes hold
    alike is parted among them (``_write_files_from_queue`` of
    ``torch/distributed/checkpoint/filesystem.py``).
    """
    if node.saving == "async":
        copy = sum(node.saved) if node.is_cpu else pinned_bytes(node.saved)
        return node.num_processes * copy
    if node.is_cpu or is_deepspeeds(node.strategy):  # what is on the host is written as it is
        return 0
    job, strategy, kernels = node.job, node.strategy, node.cluster.device.kernels
    is_here = is_cut(strategy)
    copied = node.saved if is_here else node.whole
    if what_is_away(job, strategy).optimizer:  # whose state is on the host, written as it is
        copied = saved_sizes(job, strategy if is_here else None, kernels, has_state=False)
    alike = strategy.dp_replicate if is_here else data_parallel(strategy)
    return node.num_processes * pinned_bytes(copied) // alike


def _model_bytes(node: _Node) -> int:
    """Return what of a model is put together on the host to be written.

    A GPU's is copied, a sharded one gathered; a CPU's own memory is written as it is. Adapters go
    alone, as of a base that files hold: what merging them takes, which adapters of random weights
    are, is not counted.
    """
    job, count = node.job, parameter_count(node.job.model).total
    if job.adapter is not None:
        return num_trained(job) * trained_recipe(job).parameter
    element = frozen_element(job)
    if node.is_cpu and not is_cut(node.strategy):
        return 0
    return count * element if is_cut(node.strategy) else min(count * element, SHARD_BYTES)


def _fits(band: Band, usable_bytes: int) -> bool | None:
    if not usable_bytes or band.low <= usable_bytes < band.high:
        return None
    return band.high <= usable_bytes
