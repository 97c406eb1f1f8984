"""The answer to ``simulate --from``: what each kind of process of a known program takes."""

from collections.abc import Sequence

from brimful.programs.base import Program, RankPeak
from brimful.show.summary import LOWER_BOUND, Fact, Meter, Summary, at_least
from brimful.units import format_bytes


def programs_summary(program: Program, peaks: Sequence[RankPeak], card: str) -> Summary:
    """Say what a program takes of each GPU, the fullest first in the meter.

    Args:
        program: What was run.
        peaks: Of every process that was run.
        card: On which GPU.
    """
    fullest = max(peaks, key=lambda peak: peak.simulated_peak_reserved_bytes)
    is_bound = any(peak.unknown_ops for peak in peaks)
    meter = Meter(
        fullest.simulated_peak_reserved_bytes,
        fullest.capacity_bytes,
        f"reserved by rank {fullest.rank}, simulated",
    )
    bound = f"{LOWER_BOUND} " if is_bound else ""
    unknown = sorted({op for peak in peaks for op in peak.unknown_ops})
    return Summary(
        "FITS" if all(peak.fits for peak in peaks) else "NO",
        f"{bound}{program.name} on {program.world_size} x {card}",
        at_least(meter) if is_bound else meter,
        (
            *(Fact(f"rank {peak.rank}", rank_words(peak)) for peak in peaks),
            *((Fact("unknown", ", ".join(unknown)),) if unknown else ()),
            *(Fact("assumes", note) for note in program.notes),
        ),
    )


def rank_words(peak: RankPeak) -> str:
    """Say what one process takes, to the mebibyte as counters of a run are compared."""
    allocated, reserved = peak.simulated_peak_allocated_bytes, peak.simulated_peak_reserved_bytes
    return (
        f"{format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved at the peak: "
        f"{peak.words}"
    )
