"""From a recording to the value of the second rung."""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from brimful.pretend.reading import items_at, owners_at, peak_event_of, phase_peaks, timeline_of
from brimful.pretend.recording import KEPT_ON_HOST, PAGED, Recording
from brimful.process.versions import versions
from brimful.values.plan import MemoryItem
from brimful.values.results import (
    PAGED_STATE,
    SIMULATION_SCHEMA,
    STEP_2,
    Collective,
    Reserved,
    Simulation,
)


def read_simulation(  # noqa: PLR0913 - what was recorded, and what was made of it
    recording: Recording,
    *,
    kernels: str,
    reserved: Reserved | None,
    simulate_s: float,
    collectives: tuple[Collective, ...] = (),
    host: Recording,
    unknown_ops: Collection[str] = (),
) -> Simulation:
    """Turn a finished recording into the value of the second rung.

    ``reserved``: what the caching allocator makes of it; None on a CPU. ``unknown_ops``: operations
    of whose kernels' own memory nothing is known.
    """
    away = read_host(host)
    live = recording.live_bytes()
    peak_event = peak_event_of(recording)
    return Simulation(
        schema=SIMULATION_SCHEMA,
        versions=versions(),
        kernels=kernels,
        items=items_at(recording, peak_event),
        phases=phase_peaks(recording),
        simulated_peak_allocated_bytes=int(live[peak_event]),
        reserved=reserved,
        owners=owners_at(recording, peak_event),
        num_events=len(live),
        simulate_s=simulate_s,
        timeline=timeline_of(recording),
        collectives=collectives,
        host=away.items,
        simulated_peak_host_bytes=away.peak_bytes,
        simulated_host_block_bytes=away.block_bytes if kernels == "cuda" and away.items else None,
        unknown_ops=tuple(sorted(unknown_ops)),
    )


class HostPeak(NamedTuple):
    """What is kept on the host at its highest.

    Attributes:
        items: By purpose.
        peak_bytes: Their sum.
        block_bytes: In blocks of powers of two, which are kept for later ones of their size;
            without what is paged, of which there is none but what has no room on the GPU.
    """

    items: tuple[MemoryItem, ...]
    peak_bytes: int
    block_bytes: int

    @property
    def paged_bytes(self) -> int:
        """Of state that is on the host as far as a GPU has no room for it."""
        return sum(item.num_bytes for item in self.items if item.name == PAGED_STATE)


def read_host(host: Recording) -> HostPeak:
    """Read the recording of a host: only what the program says that it keeps there counts.

    Source of the blocks: ``CachingHostAllocator.h``, ``PowerOf2Ceil``.
    """
    is_kept = np.array([name.startswith(KEPT_ON_HOST) for name in host.items], dtype=bool)
    kept = host.without(~is_kept[host.item])
    if not len(kept.events):
        return HostPeak((), 0, 0)
    live = kept.live_bytes()
    peak = int(live.argmax())
    pinned = kept.without(np.array([kept.items[i] == PAGED for i in kept.item], dtype=bool))
    rows = kept.alive_at(peak)
    totals = np.bincount(kept.item[rows], weights=kept.num_bytes[rows], minlength=len(kept.items))
    items = tuple(
        MemoryItem(
            name=name.removeprefix(KEPT_ON_HOST),
            phase=STEP_2,
            num_bytes=int(total),
            where="host",
            why=_WHY_HOST,
        )
        for name, total in zip(kept.items, totals, strict=True)
        if total
    )
    return HostPeak(items, int(live[peak]), _block_bytes(pinned))


_WHY_HOST = "taken where the program keeps something on the host"


def _block_bytes(kept: Recording) -> int:
    """Add up, for every size of block, the most that are in use at once."""
    sizes = np.array([1 << (int(n) - 1).bit_length() if n else 0 for n in kept.num_bytes])
    rounded = replace(kept, num_bytes=sizes)
    total = 0
    for size in np.unique(sizes):
        total += int(rounded.without(sizes != size).live_bytes().max(initial=0))
    return total
