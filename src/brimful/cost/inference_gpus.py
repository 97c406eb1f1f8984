"""Which GPU holds a model that writes text, where the one that was asked about does not."""

import msgspec

from brimful.cost.inference import InferenceJob, estimate_inference
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.devices import cards


def smallest_gpu(job: InferenceJob, cluster: Cluster) -> Device | None:
    """Return the smallest card on which a job fits; None: on none it may.

    Where the forward has no formula that is the smallest with room for weights and cache.

    ``job``: what is loaded, and how much text it holds. ``cluster``: on what it does not.
    """
    floor = estimate_inference(job, cluster).predicted_floor_bytes
    for device in cards():
        if device.usable_bytes < floor:
            continue
        other = msgspec.structs.replace(
            cluster, name=device.name, device=device, memory_limit_bytes=0
        )
        if estimate_inference(job, other).fits is not False:
            return device
    return None
