"""The answer to ``estimate``: what one strategy takes, and what takes most of it."""

from collections.abc import Sequence

from brimful.hardware.cluster import Cluster
from brimful.job import Job
from brimful.plan import Estimate, MemoryItem
from brimful.show.predicted import meter_of, subject_words, tight_facts, verdict_of
from brimful.show.settings import settings_words
from brimful.show.summary import Fact, Summary
from brimful.strategy import Strategy
from brimful.units import format_bytes

NUM_LARGEST = 4


def estimate_summary(
    job: Job, cluster: Cluster, strategy: Strategy, estimate: Estimate, facts: tuple[Fact, ...]
) -> Summary:
    """Say what a prediction says.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
        estimate: What was predicted.
        facts: Of its speed and cost.
    """
    return Summary(
        verdict_of(estimate),
        subject_words(job, cluster),
        meter_of(estimate),
        (
            *tight_facts(estimate.predicted_reserved),
            Fact("settings", ", ".join(settings_words(job, strategy))),
            *largest_facts(estimate.items),
            *facts,
        ),
    )


def largest_facts(items: Sequence[MemoryItem]) -> tuple[Fact, ...]:
    """Name the largest of what is in memory at the peak."""
    device = [item for item in items if item.where == "device" and item.num_bytes]
    largest = sorted(device, key=lambda item: -item.num_bytes)[:NUM_LARGEST]
    if not largest:
        return ()
    words = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in largest)
    return (Fact("at peak", words),)
