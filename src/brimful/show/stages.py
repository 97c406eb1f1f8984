"""What each GPU of a pipeline takes, as a fact."""

from brimful.cost.stage_peaks import device_peaks
from brimful.hardware.cluster import Cluster
from brimful.show.summary import Fact
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.strategy import Strategy

MOST_TOLD = 8


def stage_facts(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Fact, ...]:
    """Say what tensors take on each GPU of a pipeline; nothing where there is none.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
    """
    if strategy.pp == 1:
        return ()
    peaks = device_peaks(job, strategy, cluster.device)
    places = list(range(len(peaks)))
    if len(peaks) > MOST_TOLD:
        low, high = (pick(places, key=lambda place: peaks[place]) for pick in (min, max))
        places = sorted({0, low, high, len(peaks) - 1})
    words = ", ".join(f"{place + 1}: {format_bytes(peaks[place])}" for place in places)
    return (Fact("each GPU", f"of the pipeline's {len(peaks)}, tensors in order: {words}"),)
