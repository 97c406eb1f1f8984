"""From a recording to the value of the second rung."""

from brimful.pretend.reading import items_at, owners_at, peak_event_of, phase_peaks
from brimful.pretend.recording import Recording
from brimful.rungs import SIMULATION_SCHEMA, Collective, Reserved, Simulation
from brimful.timeline import thin
from brimful.versions import versions


def read_simulation(
    recording: Recording,
    *,
    kernels: str,
    reserved: Reserved | None,
    simulate_s: float,
    collectives: tuple[Collective, ...] = (),
) -> Simulation:
    """Turn a finished recording into the value of the second rung.

    Args:
        recording: What the program did.
        kernels: Whose kernels were imitated.
        reserved: What the caching allocator makes of it; None on a CPU.
        simulate_s: How long it took to make, in seconds.
        collectives: Of one optimizer step.
    """
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
        timeline=thin(live, phase_starts=recording.phase_starts.tolist(), phases=recording.phases),
        collectives=collectives,
    )
