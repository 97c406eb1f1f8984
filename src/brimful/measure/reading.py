"""What a meter reads in a run's first steps, before the run's own figures are added."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from brimful.process.versions import versions
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import MEASUREMENT_SCHEMA, Measurement, Timeline

P = TypeVar("P", MemoryItem, PhasePeak)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the metered steps.

    Attributes:
        method: The instrument, in words.
        items: Every class that the instrument can tell at the peak, also those without bytes.
        phases: Peak of every phase.
        measured_peak_allocated_bytes: The largest live total.
        measured_peak_reserved_bytes: Of the caching allocator; None on a CPU.
        timeline: Live bytes over the metered steps; None where the instrument has no events.
        host: What is offloaded, at its highest, by purpose; empty where it cannot be told.
        measured_peak_host_bytes: Bytes that were offloaded at most; None where nothing is, or
            where the instrument began too late to see it.
    """

    method: str
    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    measured_peak_allocated_bytes: int
    measured_peak_reserved_bytes: int | None
    timeline: Timeline | None
    host: tuple[MemoryItem, ...] = ()
    measured_peak_host_bytes: int | None = None


def with_held(reading: Reading, held: Mapping[str, int]) -> Reading:
    """Add what was there when the instrument began, and lasts: it saw none of that allocated.

    ``reading``: of what came after. ``held``: bytes by class.
    """
    more = sum(held.values())
    timeline = reading.timeline
    if timeline is not None:
        live = tuple(num_bytes + more for num_bytes in timeline.live_bytes)
        timeline = msgspec.structs.replace(timeline, live_bytes=live)
    return msgspec.structs.replace(
        reading,
        items=tuple(_more(item, held.get(item.name, 0)) for item in reading.items),
        phases=tuple(_more(phase, more) for phase in reading.phases),
        measured_peak_allocated_bytes=reading.measured_peak_allocated_bytes + more,
        timeline=timeline,
    )


def _more(part: P, num_bytes: int) -> P:
    return msgspec.structs.replace(part, num_bytes=part.num_bytes + num_bytes)


def measurement(reading: Reading, *, process_bytes: int, step_s: float | None) -> Measurement:
    """Put a reading and a run's own figures together.

    ``step_s``: median seconds per step outside the metered ones; None where there were none.
    """
    return Measurement(
        schema=MEASUREMENT_SCHEMA,
        versions=versions(),
        method=reading.method,
        items=reading.items,
        phases=reading.phases,
        measured_peak_allocated_bytes=reading.measured_peak_allocated_bytes,
        measured_peak_reserved_bytes=reading.measured_peak_reserved_bytes,
        measured_process_bytes=process_bytes,
        measured_step_s=step_s,
        timeline=reading.timeline,
        host=reading.host,
        measured_peak_host_bytes=reading.measured_peak_host_bytes,
    )
