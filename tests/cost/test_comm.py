"""Collectives: NCCL's own definitions, bounds, and unknown links."""

import msgspec
import numpy as np
import pytest

from brimful.cost.comm import OVERLAP_SLOWDOWN, collective_seconds, group_of, overlapped_seconds
from brimful.hardware.gpus import load_cluster
from brimful.hardware.links import num_linked

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")
NVLINK, NDR = 450e9 * 0.78, 50e9 * 0.85
LARGE = 16e9
"""So many bytes that latencies do not matter."""


def cluster(name="8xh100-80gb", network=""):
    return load_cluster(name, memory_limit_bytes=None, network_name=network)


NODES = cluster("4x8xh100-80gb", "ib-ndr-400")


@pytest.mark.parametrize(
    ("kind", "share"),
    [("all-reduce", 7 / 4), ("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("send", 1.0)],
)
def test_large_messages_in_a_node_move_nccls_share_of_the_bytes(kind, share):
    taken = collective_seconds(kind, LARGE, 8, cluster())
    assert taken == pytest.approx(LARGE * share / NVLINK, rel=1e-3)


def test_a_ring_over_nodes_uses_every_adapter_of_a_node():
    taken = collective_seconds("all-gather", LARGE, 32, NODES)
    assert taken == pytest.approx(LARGE * 31 / 32 / (8 * NDR), rel=2e-2)


def test_groups_that_interleave_have_one_adapter_each():
    taken = collective_seconds("all-gather", LARGE, 4, NODES, stride=8)
    assert taken == pytest.approx(LARGE * 3 / 4 / NDR, rel=1e-2)
    halves = collective_seconds("all-gather", LARGE, 8, NODES, stride=4)
    assert halves == pytest.approx(LARGE * 7 / 8 / (2 * NDR), rel=1e-2)


def test_all_to_all_leaves_the_node_with_what_is_for_others():
    taken = collective_seconds("all-to-all", LARGE, 32, NODES)
    assert taken == pytest.approx(LARGE * 24 / 32 / NDR, rel=1e-2)
    inside = collective_seconds("all-to-all", LARGE, 8, NODES)
    assert inside == pytest.approx(LARGE * 7 / 8 / NVLINK, rel=1e-2)


def test_a_message_to_another_node_takes_the_network():
    assert collective_seconds("send", LARGE, 2, NODES, stride=8) == pytest.approx(
        LARGE / NDR, rel=1e-3
    )
    assert collective_seconds("send", LARGE, 2, NODES) == pytest.approx(LARGE / NVLINK, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_takes_no_time(kind):
    assert collective_seconds(kind, LARGE, 1, NODES) == 0
    assert collective_seconds(kind, LARGE, 1, cluster("1xh100-80gb")) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_that_is_unknown_makes_the_time_unknown(kind):
    unsaid = msgspec.structs.replace(NODES, network="")
    assert np.isnan(collective_seconds(kind, LARGE, 32, unsaid))
    assert np.isnan(collective_seconds(kind, LARGE, 2, unsaid, stride=8))
    assert collective_seconds(kind, LARGE, 8, unsaid) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_equal_numbers(kind):
    sizes, ranks = np.array([1e3, 1e6, 1e9]), np.array([[1], [2], [8], [32]])
    table = collective_seconds(kind, sizes, ranks, NODES)
    rows = [
        [float(collective_seconds(kind, s, r, NODES)) for s in sizes.tolist()]
        for r in ranks[:, 0].tolist()
    ]
    assert table.tolist() == rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 8, 32])
def test_more_bytes_never_take_less(kind, ranks):
    taken = collective_seconds(kind, np.logspace(2, 11, 40), ranks, NODES)
    assert (np.diff(taken) > 0).all()


@pytest.mark.parametrize("num_bytes", [1e3, 1e6, 1e9])
def test_an_all_reduce_takes_no_more_than_its_two_halves(num_bytes):
    whole = collective_seconds("all-reduce", num_bytes, 32, NODES)
    halves = [collective_seconds(k, num_bytes, 32, NODES) for k in KINDS[1:3]]
    assert whole <= sum(halves)


def test_trees_win_where_latency_counts():
    whole, gathered = (collective_seconds(k, 1e3, 32, NODES) for k in KINDS[:2])
    assert whole < 2 * gathered


def test_groups_share_nodes_by_their_stride():
    assert group_of(32, 1, 8) == (32, 8, 4)
    assert group_of(4, 8, 8) == (4, 1, 4)
    assert group_of(4, 1, 8) == (4, 4, 1)
    assert group_of(2, 64, 8) == (2, 1, 2)


def test_a_rack_whose_switches_join_its_machines_is_one_node():
    """18 machines of four GB200 each send over NVLink; a second rack is beyond the network."""
    rack, larger, single = (cluster(f"{name}xgb200") for name in ("18x4", "36x4", "4"))
    assert [num_linked(each) for each in (rack, larger, single)] == [72, 72, 4]
    assert num_linked(cluster("4x8xb200")) == 8
    within = collective_seconds("all-to-all", 1e9, 72, rack)
    assert within == pytest.approx(collective_seconds("all-to-all", 1e9, 72, larger))
    assert collective_seconds("all-to-all", 1e9, 144, larger) > 2 * within


def test_what_overlaps_slows_and_never_hides_a_longer_collective():
    compute, comm = np.array([10.0, 10.0, 1.0]), np.array([0.0, 5.0, 5.0])
    slow = OVERLAP_SLOWDOWN / (1 + OVERLAP_SLOWDOWN)
    assert overlapped_seconds(compute, comm) == pytest.approx([10.0, 10 + 5 * slow, 5.0])
