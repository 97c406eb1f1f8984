"""The peaks of all devices of a pipeline, and the fullest of them."""

import math

from brimful.cost.memory import StepMemory, phase_peaks
from brimful.cost.stage_memory import device_memory
from brimful.cost.stage_site import Site, classes_of, site_of
from brimful.hardware.cluster import Device
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def fullest(site: Site, *, limit_bytes: float = math.inf) -> StepMemory:
    """Return the memory of the device whose peak is highest, or of one beyond a limit."""
    found: StepMemory | None = None
    for place in classes_of(site).values():
        memory = device_memory(site, place)
        if found is None or peak_of(memory) > peak_of(found):
            found = memory
        if peak_of(found) > limit_bytes:
            break
    assert found is not None, "a row has devices"
    return found


def device_peaks(job: Job, strategy: Strategy, device: Device) -> tuple[int, ...]:
    """Return the peak of each device of a pipeline, in the order of its stages."""
    site = site_of(job, strategy, device)
    return tuple(peak_of(device_memory(site, place)) for place in range(strategy.pp))


def peak_of(memory: StepMemory) -> int:
    """Return the highest peak of a device's phases."""
    return max(phase.num_bytes for phase in phase_peaks(memory))
