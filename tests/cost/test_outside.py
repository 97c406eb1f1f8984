"""What lies outside the allocator: which parts, and what a plan is called for them."""

import msgspec
import pytest

from brimful.cost.assumptions import assumptions_for
from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.cost.outside import num_groups, parts_outside, room_of
from brimful.cost.reserved import predicted_reserved
from samples import make_cluster, make_job, make_strategy

SHARDED = make_strategy(zero=3, dp_shard=4, tp=2)


def test_a_cpu_has_no_other_memory():
    device = make_cluster("cpu").device
    assert parts_outside(device, num_groups=2) == ()
    assert set(room_of(device, num_groups=2)) == {device.usable_bytes}


def test_every_axis_of_many_devices_has_a_communicator():
    device, assumed = make_cluster("cuda").device, assumptions_for(make_cluster("cuda").device)
    assert num_groups(SHARDED) == 2
    context, nccl = parts_outside(device, num_groups=num_groups(SHARDED))
    assert (context.low_bytes, nccl.high_bytes) == (
        assumed.context_low_bytes,
        2 * assumed.nccl_high_bytes,
    )
    room = room_of(device, num_groups=2)
    assert room.most_bytes - room.firm_bytes == sum(
        part.high_bytes - part.low_bytes for part in (context, nccl)
    )
    assert room_of(device).most_bytes == allocatable_bytes(device)


def with_usable(num_bytes):
    cluster = make_cluster("cuda")
    device = msgspec.structs.replace(cluster.device, usable_bytes=num_bytes)
    return msgspec.structs.replace(cluster, device=device)


@pytest.mark.parametrize(("more", "word"), [(0, "fits"), (-1, "tight")])
def test_what_fits_does_so_whatever_lies_outside(more, word):
    """One byte less than all of it and what is asked for is tight, though nothing is retried."""
    job, strategy = make_job(), make_strategy()
    free = predicted_reserved(job, make_cluster("cuda"), strategy)
    assumed = assumptions_for(make_cluster("cuda").device)
    needs = free.predicted_unhindered_bytes + assumed.context_high_bytes
    told = predicted_reserved(job, with_usable(needs + more), strategy)
    assert (told.word, told.num_retries, told.excess_bytes) == (word, 0, -more)
    assert told.firm_bytes < told.capacity_bytes
    assert estimate(job, with_usable(needs + more), strategy).fits
