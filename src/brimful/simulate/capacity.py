"""Whether a recording fits a card: its replay through the caching allocator, at capacity."""

from brimful.allocator_config import parse_settings
from brimful.pretend.allocator import OutOfMemory, Replay, replay_recording
from brimful.pretend.recording import Recording
from brimful.rungs import Outcome, Reserved


def reserve(recording: Recording, *, allocator: str, capacity_bytes: int) -> Reserved:
    """Replay a recording, from loading to its end, with no more than a card can give.

    Args:
        recording: What the program asked for.
        allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: PyTorch's defaults.
        capacity_bytes: What the allocator may take: usable bytes less what lies outside it.

    Raises:
        InputError: A setting is unknown.
    """
    settings = parse_settings(allocator)
    done = replay_recording(recording, settings=settings, capacity_bytes=capacity_bytes)
    failed = done.out_of_memory
    return Reserved(
        allocator=allocator,
        capacity_bytes=capacity_bytes,
        outcome=_outcome(done),
        simulated_peak_reserved_bytes=done.peak_reserved_bytes,
        simulated_peak_block_bytes=done.peak_allocated_bytes,
        num_retries=done.num_retries,
        short_bytes=failed.short_bytes if failed else 0,
        where=_where(recording, failed) if failed else "",
    )


def _outcome(done: Replay) -> Outcome:
    if done.out_of_memory:
        return "out of memory"
    return "fits with retries" if done.num_retries else "fits"


def _where(recording: Recording, failed: OutOfMemory) -> str:
    """Name the request that failed: ``step 1 backward, model.layers.3.mlp (aten.mm.default)``."""
    row = int(recording.events[failed.event])
    phase = recording.phases[recording.phase[row]]
    owner = recording.owners[recording.owner[row]]
    return f"{phase}, {owner or 'no module'} ({recording.ops[recording.op[row]]})"
