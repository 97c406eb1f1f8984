"""What a published checkpoint has beside the language part that is planned: an encoder."""

from brimful.models.encoders import beside_words, num_beside
from brimful.show.summary import Fact, Meter, Verdict
from brimful.units import format_bytes, format_count
from brimful.values.job import Job
from brimful.values.strategy import Strategy, gathers

_HALF = 2
"""Bytes of a parameter that is frozen in 16 bits."""


def lacking_bytes(job: Job, strategy: Strategy, meter: Meter) -> int:
    """Return by how much the frozen weights of an encoder exceed what a GPU has left for them."""
    num, is_most = num_beside(job.model)
    share = strategy.dp_shard if gathers(strategy) else 1
    added = 0 if is_most else -(-_HALF * num // share)
    return max(0, meter.used_bytes + added - meter.usable_bytes) if added else 0


def judged_with(verdict: Verdict, job: Job, strategy: Strategy, meter: Meter) -> Verdict:
    """Return a verdict as it is where what is left out has room too, however little else it has."""
    return "TIGHT" if verdict == "FITS" and lacking_bytes(job, strategy, meter) else verdict


def left_out_facts(job: Job, lacking: int = 0) -> tuple[Fact, ...]:
    """Say what an encoder would add, and how it and what it reads are counted.

    ``lacking``: of what its weights take, what there is no room for.
    """
    num, is_most = num_beside(job.model)
    if not num:
        return ()
    reads, _ = beside_words(job.model)
    encoder = "vision encoder" if reads == "images" else f"encoder of {reads}"
    size = f"{'up to ' * is_most}{format_bytes(_HALF * num)}"
    room = f" ({format_bytes(lacking)} too much)" if lacking else ""
    count = f"{'up to ' * is_most}{format_count(num)} parameters"
    words = (
        f"its {encoder}, {count}, {size} more in bf16{room}, and its {reads}: their tokens belong "
        f"in --seq-len; brimful pretend of a script counts both"
    )
    short = f"{encoder}, {size} in bf16{room}, and {reads}"
    return (Fact("left out", words, f"{short}: brimful pretend counts", short),)
