"""What each GPU of a pipeline takes, as a fact."""

from brimful.cost.stage_peaks import device_peaks
from brimful.hardware.cluster import Cluster
from brimful.show.summary import Fact
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.strategy import Strategy, num_micro_batches

MOST_TOLD = 8
_FILLED = frozenset({"gpipe", "1f1b", "interleaved"})
"""Orders of work that fill and drain once a step, and fill nothing with weights' gradients."""


def stage_facts(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Fact, ...]:
    """Say what tensors take on each GPU of a pipeline; nothing where there is none."""
    if strategy.pp == 1:
        return ()
    peaks = device_peaks(job, strategy, cluster.device)
    places = list(range(len(peaks)))
    if len(peaks) > MOST_TOLD:
        low, high = (pick(places, key=lambda place: peaks[place]) for pick in (min, max))
        places = sorted({0, low, high, len(peaks) - 1})
    words = ", ".join(f"{place + 1}: {format_bytes(peaks[place])}" for place in places)
    told = f"of the pipeline's {len(peaks)}, tensors in order: {words}"
    return (Fact("each GPU", f"{told}{_bubble_words(job, strategy)}", told),)


def _bubble_words(job: Job, strategy: Strategy) -> str:
    """Say how much of a step each GPU waits while the pipeline fills and drains.

    With m micro-batches, p devices and v stages on each, all equally long, that is
    (p - 1) / (v m + p - 1) of it (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
    """
    if strategy.pp_schedule not in _FILLED:
        return ""
    idle = strategy.pp - 1
    busy = strategy.stages_per_device * num_micro_batches(job, strategy)
    return f"; {idle / (busy + idle):.0%} of a step waits as it fills and drains"
