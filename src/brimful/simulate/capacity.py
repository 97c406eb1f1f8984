"""Whether a recording fits a card: its replay through the caching allocator, at capacity."""

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import OutOfMemory, replay
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.outside import Room, room_of
from brimful.hardware.cluster import Cluster
from brimful.pretend.recording import Recording
from brimful.pretend.report import outcome_of
from brimful.values.results import Reserved


def reserve_for(
    recording: Recording,
    cluster: Cluster,
    *,
    allocator: str,
    num_groups: int = 0,
    beside_bytes: int = 0,
) -> Reserved | None:
    """Replay a recording on a cluster's device, within the cluster's limit; None on a CPU.

    ``allocator``: as for ``reserve``. ``beside_bytes``: what kernels may take that is on no tape,
    which is not surely there. Raises InputError: a setting is unknown.
    """
    device = cluster.device
    if device.kernels != "cuda":
        return None
    limit = tensor_limit_bytes(cluster) if cluster.memory_limit_bytes else None
    room = room_of(device, num_groups=num_groups)
    sure = room._replace(firm_bytes=max(0, room.firm_bytes - beside_bytes))
    return reserve(recording, allocator=allocator, room=sure, limit_bytes=limit)


def reserve(
    recording: Recording, *, allocator: str, room: Room, limit_bytes: int | None = None
) -> Reserved:
    """Replay a recording, from loading to its end, with no more than a card can give.

    ``allocator``: settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: PyTorch's defaults.
    ``limit_bytes``: what the plan is allowed of that; None: all. The allocator knows nothing of it.
    Raises InputError: a setting is unknown.
    """
    settings = parse_settings(allocator)
    requests, capacity = recording.requests(), room.most_bytes
    done = replay(requests, settings=settings, capacity_bytes=capacity)
    failed = done.out_of_memory
    free = done
    if failed or done.num_retries:
        free = replay(requests, settings=settings, capacity_bytes=None)
    over = 0 if limit_bytes is None else max(0, done.peak_reserved_bytes - limit_bytes)
    return Reserved(
        allocator=allocator,
        capacity_bytes=capacity,
        firm_bytes=room.firm_bytes,
        outcome="over the limit" if over and not failed else outcome_of(done),
        simulated_peak_reserved_bytes=done.peak_reserved_bytes,
        simulated_unhindered_bytes=free.peak_reserved_bytes,
        simulated_peak_block_bytes=done.peak_allocated_bytes,
        num_retries=done.num_retries,
        short_bytes=failed.short_bytes if failed else over,
        where=_where(recording, failed) if failed else "",
        limit_bytes=limit_bytes,
    )


def _where(recording: Recording, failed: OutOfMemory) -> str:
    """Name the request that failed: ``step 1 backward, model.layers.3.mlp (aten.mm.default)``."""
    row = int(recording.events[failed.event])
    phase = recording.phases[recording.phase[row]]
    owner = recording.owners[recording.owner[row]]
    return f"{phase}, {owner or 'no module'} ({recording.ops[recording.op[row]]})"


def shortage(reserved: Reserved) -> tuple[int, int, bool, int]:
    """Order outcomes: the least short, the fewest retries, what is firm, then the least held."""
    held = reserved.simulated_peak_reserved_bytes
    return reserved.short_bytes, reserved.num_retries, not reserved.is_firm, held
