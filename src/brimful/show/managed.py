"""What of an optimizer's state is paged, in words: what of it has room beside the peak."""

from brimful.cost.copied import link_bytes_per_s
from brimful.cost.managed import away_bytes, paged_bytes, paging_seconds, paging_words
from brimful.hardware.cluster import Cluster
from brimful.show.summary import Fact, Meter
from brimful.units import format_bytes, format_seconds
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def paged_facts(job: Job, cluster: Cluster, strategy: Strategy, meter: Meter) -> tuple[Fact, ...]:
    """Say where paged state is, of a run that holds; nothing of any other, but on a CPU.

    ``meter``: what one GPU holds beside it.
    """
    if cluster.device.kernels == "cpu":
        return tuple(Fact("paged", words) for words in paging_words(job, cluster.device))
    paged = paged_bytes(job, strategy, cluster.device)
    if not paged or meter.used_bytes > meter.usable_bytes:
        return ()
    limit_bytes = meter.usable_bytes
    away = int(away_bytes(paged, held=meter.used_bytes, limit_bytes=limit_bytes))
    size = format_bytes(paged)
    if not away:
        words = f"{size} of optimizer state in managed memory, all beside the peak"
        return (Fact("paged", words),)
    rate, seconds = link_bytes_per_s(cluster.device), paging_seconds(away, cluster.device)
    moved = f"; moving it takes up to {format_seconds(float(seconds))} a step" if rate else ""
    short = f"{format_bytes(away)} of {size} of optimizer state may lie on the host"
    why = f" (moved where the GPU is full{moved}, assumed)"
    return (Fact("paged", f"{short}{why}", short),)
