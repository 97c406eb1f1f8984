"""Links of a node and networks between nodes, as one GPU sees them."""

import pytest

from brimful.errors import InputError, UnknownNameError
from brimful.hardware.datasheets import datasheets
from brimful.hardware.gpus import gpus, load_cluster
from brimful.hardware.links import link_of, network, network_names, network_of, node_links
from each_case import each

SHEETS = datasheets()


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("h100-80gb", {"nvlink-4": 450e9, "pcie-5x16": 63e9}),
        ("a100-40gb", {"nvlink-3": 300e9, "pcie-4x16": 31.5e9}),
        ("b200", {"nvlink-5": 900e9, "pcie-5x16": 63e9}),
        ("mi300x", {"xgmi-3": 448e9, "pcie-5x16": 63e9}),
        ("t4", {"pcie-3x16": 15.75e9}),
    ],
)
def test_links_of_a_node_are_those_of_the_datasheet(name, links):
    found = node_links(SHEETS[name])
    assert {link.name: link.bytes_per_s for link in found} == links
    assert found[0].total_bytes_per_s == 2 * found[0].bytes_per_s


@each("name", SHEETS)
def test_every_gpu_has_pcie_and_its_fastest_link_first(name):
    found = node_links(SHEETS[name])
    assert found[-1].kind == "pcie"
    known = [link.bytes_per_s for link in found if link.bytes_per_s is not None]
    assert known == sorted(known, reverse=True)
    assert all(0 < link.latency_s < 1e-4 and "assumed" in link.source for link in found)


def test_an_unknown_rate_has_no_total():
    link = node_links(SHEETS["mi300a"])[0]
    assert link.bytes_per_s is link.total_bytes_per_s is None


@each("name", network_names())
def test_networks_are_named_by_their_gigabits(name):
    found = network(name, devices_per_node=1)
    assert found.bytes_per_s == int(name.rsplit("-", 1)[1]) * 1e9 / 8
    assert 1e-6 < found.latency_s < 1e-3
    assert "latency assumed" in found.source


def test_a_node_that_has_one_adapter_shares_it():
    assert network("ethernet-100", devices_per_node=8).bytes_per_s == 12.5e9 / 8
    assert network("ib-ndr-400", devices_per_node=8).bytes_per_s == 50e9


def test_the_network_of_a_cluster():
    asked = {"memory_limit_bytes": None, "network_name": "ethernet-25"}
    assert network_of(load_cluster("2x4xl4", **asked)).bytes_per_s == 3.125e9 / 4
    assert network_of(load_cluster("4xl4", **asked)) is None
    assert network_of(load_cluster("2x4xl4", memory_limit_bytes=None)).name == "ethernet-25"


def test_between_nodes_something_is_always_assumed():
    found = {name: load_cluster(f"2x4x{name}", memory_limit_bytes=None).network for name in gpus()}
    assert found["h100-80gb"] == found["gb200"] == "ib-ndr-400"
    assert found["rtx-5090"] == "ethernet-25"
    assert all(found.values())


def test_the_link_of_a_cluster():
    assert link_of(load_cluster("8xh100-80gb", memory_limit_bytes=None)).name == "nvlink-4"
    assert link_of(load_cluster("h100-80gb", memory_limit_bytes=None)) is None
    assert link_of(load_cluster("4xt4", memory_limit_bytes=None)).kind == "pcie"


@each("name", SHEETS)
def test_messages_reach_a_share_of_a_link_and_its_source_says_whose(name):
    for link in node_links(SHEETS[name]):
        assert 0 < link.efficiency <= 1
        assert f"{link.efficiency:.0%} of the peak reached: " in link.source


@each("name", network_names())
def test_messages_reach_a_share_of_a_network(name):
    link = network(name, devices_per_node=8)
    assert 0 < link.efficiency <= 1
    assert f"{link.efficiency:.0%} of the peak reached: " in link.source


def test_unknown_networks_and_empty_nodes():
    with pytest.raises(UnknownNameError, match="did you mean roce-400"):
        network("rocee-400", devices_per_node=8)
    with pytest.raises(InputError, match="devices_per_node=0"):
        network("roce-400", devices_per_node=0)
