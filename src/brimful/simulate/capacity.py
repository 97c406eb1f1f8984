"""Whether a recording fits a card: its replay through the caching allocator, at capacity."""

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import OutOfMemory, Replay, replay
from brimful.cost.estimate import allocatable_bytes, tensor_limit_bytes
from brimful.hardware.cluster import Cluster
from brimful.pretend.recording import Recording
from brimful.rungs import Outcome, Reserved


def reserve_for(recording: Recording, cluster: Cluster, *, allocator: str) -> Reserved | None:
    """Replay a recording on a cluster's device, within the cluster's limit; None on a CPU."""
    device = cluster.device
    if device.kernels != "cuda":
        return None
    limit = tensor_limit_bytes(cluster) if cluster.memory_limit_bytes else None
    return reserve(
        recording,
        allocator=allocator,
        capacity_bytes=allocatable_bytes(device),
        limit_bytes=limit,
    )


def reserve(
    recording: Recording, *, allocator: str, capacity_bytes: int, limit_bytes: int | None = None
) -> Reserved:
    """Replay a recording, from loading to its end, with no more than a card can give.

    Args:
        recording: What the program asked for.
        allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: PyTorch's defaults.
        capacity_bytes: What the allocator may take: usable bytes less what lies outside it.
        limit_bytes: What the plan is allowed of that; None: all. The allocator knows nothing of it.

    Raises:
        InputError: A setting is unknown.
    """
    settings = parse_settings(allocator)
    done = replay(recording.requests(), settings=settings, capacity_bytes=capacity_bytes)
    failed = done.out_of_memory
    free = done
    if failed or done.num_retries:
        free = replay(recording.requests(), settings=settings, capacity_bytes=None)
    over = 0 if limit_bytes is None else max(0, done.peak_reserved_bytes - limit_bytes)
    return Reserved(
        allocator=allocator,
        capacity_bytes=capacity_bytes,
        outcome="over the limit" if over and not failed else _outcome(done),
        simulated_peak_reserved_bytes=done.peak_reserved_bytes,
        simulated_unhindered_bytes=free.peak_reserved_bytes,
        simulated_peak_block_bytes=done.peak_allocated_bytes,
        num_retries=done.num_retries,
        short_bytes=failed.short_bytes if failed else over,
        where=_where(recording, failed) if failed else "",
        limit_bytes=limit_bytes,
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
