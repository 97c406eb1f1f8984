"""Tokens per second, and what share of the devices' rates a step uses.

MFU counts what the model itself needs, HFU what was computed, recomputation too (arXiv:2204.02311,
appendix B). Both count attention whole, masked or not, as that paper and most trainers do.
"""

from typing import NamedTuple

import msgspec

from brimful.cost.family import family_of
from brimful.cost.memory import profile_for
from brimful.cost.needed import traced_job
from brimful.cost.step import family_work, utilization
from brimful.hardware.cluster import Cluster
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.values.job import Job
from brimful.values.strategy import Strategy


class Speed(NamedTuple):
    """How fast a step is; None where its time or the rate of the devices is unknown.

    Attributes:
        tokens_per_s: Of all devices together, padding included.
        mfu: Model FLOPs over what the devices could do in that time.
        hfu: The same with recomputation.
    """

    tokens_per_s: float | None
    mfu: float | None
    hfu: float | None


def speed_of(job: Job, cluster: Cluster, strategy: Strategy, step_s: float | None) -> Speed:
    """Return how fast a step of this many seconds is.

    ``strategy``: how; decides what is recomputed. ``step_s``: seconds of one optimizer step; None:
    unknown.
    """
    if not step_s:
        return Speed(None, None, None)
    once = msgspec.structs.replace(
        strategy, activation_checkpointing="none", offload=NO_OFFLOAD
    )  # which is no other work
    shares = [
        utilization(
            step_flops(job, cluster, how) / cluster.num_devices,
            step_s,
            cluster.device,
            job.precision,
        )
        for how in (once, strategy)
    ]
    return Speed(job.tokens_per_step / step_s, *shares)


def step_flops(job: Job, cluster: Cluster, strategy: Strategy) -> float:
    """Count the FLOPs of matrix products and attention of one step, over all devices.

    However the work is shared out, it is that of one device doing all of it, with parameters
    gathered or not, and with as many experts' rows as it sends.
    """
    alone = msgspec.structs.replace(
        strategy, dp_replicate=1, dp_shard=1, tp=1, pp=1, pp_schedule="1f1b",
        stages_per_device=1, stage_blocks=(),
    )  # fmt: skip
    job = traced_job(job, strategy)
    family = family_of(job, alone)
    profile = profile_for(job, strategy.attention, cluster.device, family)
    work = family_work(job, profile, family, moved_by_update=0.0)
    return float(work.matrix_flops[0] + work.attention_flops[0])
