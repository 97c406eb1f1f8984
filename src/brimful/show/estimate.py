"""The answer to ``estimate``: what one strategy takes, and what takes most of it."""

from collections.abc import Sequence
from typing import NamedTuple

from brimful.cost.host import rounding_bytes
from brimful.hardware.cluster import Cluster
from brimful.search.beside import Beside
from brimful.show.beside import Known, against_facts, beside_facts, spread_facts
from brimful.show.left_out import lacking_bytes, left_out_facts
from brimful.show.managed import paged_facts
from brimful.show.predicted import (
    host_facts,
    host_meter,
    host_share,
    meter_of,
    saving_facts,
    subject_words,
    tight_facts,
    verdict_of,
)
from brimful.show.run import RunFacts
from brimful.show.settings import settings_words
from brimful.show.summary import Fact, Meter, Summary, Verdict, on_each
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.plan import Estimate, MemoryItem
from brimful.values.results import REFERENCE
from brimful.values.strategy import Strategy

NUM_LARGEST = 3
LINE = 70
"""Letters of a line behind its label."""
LEAST_NAMED, LEAST_TOLD = 0.03, 0.1
"""Of all tensors at the peak: what is larger is named, however many are; and of that, what is left
out altogether."""


class Around(NamedTuple):
    """What is said beside a prediction.

    Attributes:
        run: Of its speed and cost.
        fixes: What would make it fit.
        stages: Of a pipeline, what each device takes.
        others: The same run with one setting changed.
        is_compared: Whether the same run as it is usually done is told beside it.
    """

    run: RunFacts
    fixes: tuple[Fact, ...]
    stages: tuple[Fact, ...]
    others: tuple[Beside, ...]
    is_compared: bool = True


def estimate_summary(
    job: Job, cluster: Cluster, strategy: Strategy, estimate: Estimate, around: Around
) -> Summary:
    """Say what a prediction says."""
    verdict, host = verdict_and_host(cluster, estimate)
    meter = meter_of(estimate)
    lacking = lacking_bytes(job, strategy, meter) if verdict == "FITS" else 0
    is_first = verdict == "NO" and host is None  # before what helps; else the host's is
    rounded = 0 if host is None else rounding_bytes(job, cluster, strategy)
    return Summary(
        "TIGHT" if lacking else verdict,
        subject_words(job, cluster),
        on_each(meter, cluster.num_devices, cluster.device.kernels),
        (
            *left_out_facts(job, lacking),
            *(
                host_facts(host, meter, estimate, rounded=rounded)
                if cluster.device.kernels != "cpu"
                else ()
            ),
            *tight_facts(estimate.predicted_reserved),
            Fact("settings", ", ".join(settings_words(job, strategy))),
            *paged_facts(job, cluster, strategy, meter),
            *(_at_peak(estimate) if is_first else ()),
            *around.fixes,
            *around.stages,
            *(around.run.would_be if verdict == "NO" else around.run.fitting),
            *saving_facts(estimate),
            *spread_facts(job, cluster, strategy, estimate, around.others),
            *(() if is_first else _at_peak(estimate)),
            *(
                against_facts(job, cluster, strategy, _known(estimate, verdict))
                if around.is_compared
                else ()
            ),
            *beside_facts(job, cluster, strategy, estimate, around.others),
        ),
        host,
    )


def verdict_and_host(cluster: Cluster, estimate: Estimate) -> tuple[Verdict, Meter | None]:
    """Say whether a prediction fits, and what a host takes that has too little."""
    host = host_meter(estimate)
    if cluster.device.kernels == "cpu" and not estimate.fits:
        host = None  # the same memory: what tensors lack there says it
    return ("NO" if host is not None else verdict_of(estimate)), host


def _at_peak(estimate: Estimate) -> tuple[Fact, ...]:
    """Say what the peak is made of; of what does not fit what the host takes too."""
    if estimate.fits:
        return largest_facts(estimate.items, _reserved_bytes(estimate))
    return (*shortened(largest_facts(estimate.items)), *host_share(estimate))


def shortened(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """Say what the peak is made of in one line where lines are lacking, the largest first."""
    kept = []
    for label, text, *_ in facts:
        parts = text.split(", ")
        while len(parts) > 1 and len(_joined(parts)) > LINE:
            parts.pop()
        kept.append(Fact(label, text, _joined(parts)))
    return tuple(kept)


def _joined(parts: Sequence[str]) -> str:
    """Write sizes of one unit with it once."""
    units = {part.rpartition(" ")[2] for part in parts}
    *others, last = parts
    return ", ".join(
        [*(each.rpartition(" ")[0] if len(units) == 1 else each for each in others), last]
    )


def _known(estimate: Estimate, verdict: Verdict) -> Known:
    peak_bytes, reserved = estimate.predicted_peak_allocated_bytes, estimate.predicted_reserved
    used = meter_of(estimate).used_bytes if reserved is not None and estimate.fits else None
    return Known(peak_bytes, estimate.predicted_step_s, verdict != "NO", used)


def _reserved_bytes(estimate: Estimate) -> int | None:
    reserved = estimate.predicted_reserved
    return None if reserved is None else reserved.predicted_peak_reserved_bytes


def largest_facts(
    items: Sequence[MemoryItem], reserved_bytes: int | None = None
) -> tuple[Fact, ...]:
    """Name the largest of what is in memory at the peak, and what is left of the whole.

    A reference model is named whatever its size: who trains on preferences chooses where it is.

    ``reserved_bytes``: what the allocator holds at its own; None: unknown.
    """
    device = [item for item in items if item.where == "device" and item.num_bytes]
    ordered = sorted(device, key=lambda item: -item.num_bytes)
    if not ordered:
        return ()
    least = LEAST_NAMED * sum(item.num_bytes for item in device)
    named = [
        n
        for n, item in enumerate(ordered)
        if n < NUM_LARGEST or item.name == REFERENCE or item.num_bytes >= least
    ]
    parts = [(ordered[n].name, ordered[n].num_bytes) for n in named]
    left = [item for n, item in enumerate(ordered) if n not in named]
    others = left[0].name if len(left) == 1 else "other tensors"
    num_left = sum(item.num_bytes for item in left)
    parts.append((others, num_left if num_left >= LEAST_TOLD * least else 0))
    if reserved_bytes is not None:
        parts.append(
            ("reserved but unallocated", reserved_bytes - sum(item.num_bytes for item in device))
        )
    words = [f"{name} {format_bytes(num_bytes)}" for name, num_bytes in parts if num_bytes > 0]
    return (Fact("at peak", ", ".join(words), ", ".join(words[:NUM_LARGEST])),)
