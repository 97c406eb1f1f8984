"""State of an optimizer that is paged: in memory that CUDA manages, beside what is asked for.

Pages are on the GPU as long as there is room beside what the caching allocator takes, and go to the
host where it takes more. What does not fit beside the peak is taken to come to the GPU for each
update, and to go back: as much each way as has no room, over the link, with no kernel beside it. It
is assumed: nothing was measured, and a driver that evicts what was used longest ago may move more.
"""

from typing import Any

import numpy as np

from brimful.cost.copied import link_bytes_per_s
from brimful.cost.family import family_of, parting_of
from brimful.cost.resident import num_shards_of
from brimful.cost.states import device_update
from brimful.cost.update import updater_of
from brimful.hardware.cluster import Device
from brimful.models.config import has_layout
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def paged_bytes(job: Job, strategy: Strategy, device: Device) -> int:
    """Count what is paged of one device's state; of a model without a layout nothing is known."""
    if not OPTIMIZERS[job.optimizer].pages or not has_layout(job.model):
        return 0
    family = family_of(job, strategy)
    if family.away.optimizer:
        return 0
    num_shards = num_shards_of(family)
    parted = parting_of(family, num_shards)
    return int(device_update(job, parted, updater_of(device, num_shards)).paged)


def away_bytes(paged: Any, *, held: Any, limit_bytes: int) -> Any:
    """Return what of it has no room beside what else is held: a number, or [strategies]."""
    return np.maximum(0, paged - np.maximum(0, limit_bytes - held))


def paging_words(job: Job, device: Device) -> tuple[str, ...]:
    """Say what is assumed of a job whose optimizer pages; nothing of any other."""
    if not OPTIMIZERS[job.optimizer].pages:
        return ()
    if device.kernels == "cpu":
        return (
            f"a CPU has no managed memory: {job.optimizer} keeps all its state beside the rest",
        )
    words = "paged state that has no room beside the peak comes over the link for each update and"
    return (f"{words} goes back, with nothing beside it (assumed, not measured)",)


def paging_seconds(away: Any, device: Device) -> Any:
    """Return what moving that takes a step, a number or [strategies]; NaN where a rate is unknown.

    ``away``: what has no room.
    """
    return np.where(away > 0, 2 * away / (link_bytes_per_s(device) or np.nan), 0.0)
