"""What the network between nodes takes of a step."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.network import times_by, waiting_share, yardstick
from brimful.hardware.gpus import load_cluster
from brimful.hardware.links import assumed_network, network
from brimful.models.config import load_model
from brimful.show.compared import network_fact
from brimful.values.job import plain_job
from brimful.values.strategy import Strategy

JOB = plain_job(load_model("llama-3.1-8b"), seq_len=2048, global_batch=16, num_steps=10)
STRATEGY = Strategy(
    micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa", zero=3,
    dp_shard=16,
)  # fmt: skip


def on(network_name):
    cluster = load_cluster("2x8xh100-80gb", memory_limit_bytes=None, network_name=network_name)
    return JOB, cluster, STRATEGY, estimate(JOB, cluster, STRATEGY).predicted_step_s


def test_what_waits_is_what_one_node_would_not_take():
    slow, fast = on("ethernet-10"), on("ib-ndr-400")
    together = msgspec.structs.replace(slow[1], num_nodes=1, devices_per_node=16, network="")
    least_s = estimate(JOB, together, STRATEGY).predicted_step_s
    assert waiting_share(*slow) == pytest.approx(1 - least_s / slow[3])
    assert 0 <= waiting_share(*fast) < 0.5 < waiting_share(*slow) < 1


def test_another_networks_time_is_that_of_the_same_step_there():
    slow, fast = on("ethernet-100"), on("ib-ndr-400")
    assert times_by(*slow, "ib-ndr-400") == pytest.approx(fast[3] / slow[3])
    assert times_by(*fast, "ethernet-100") == pytest.approx(slow[3] / fast[3])


@pytest.mark.parametrize(
    ("own", "slower", "faster"),
    [("ethernet-100", "", "ib-ndr-400"), ("ib-ndr-400", "ethernet-100", ""),
     ("roce-200", "ethernet-100", "ib-ndr-400"), ("ib-xdr-800", "ethernet-100", "")],
)  # fmt: skip
def test_a_network_lies_between_a_slower_and_the_makers_own(own, slower, faster):
    assert yardstick(on(own)[1]) == (slower, faster)


def test_four_boards_of_mi250x_share_four_adapters():
    name = assumed_network("mi250x")
    assert 8 * network(name, devices_per_node=8).bytes_per_s == 4 * 200e9 / 8


def test_what_was_assumed_is_told_with_what_it_decides():
    both = network_fact("slow-1", ("", None), ("fast-9", 0.25), is_assumed=True).text
    assert both.startswith("slow-1 is assumed; --network says another: by fast-9 4 x as fast")
    told = network_fact("fast-9", ("slow-1", 2.1), ("", None), is_assumed=True).text
    assert "by slow-1 2.1 x slower" in told
    assert network_fact("fast-9", ("slow-1", 2.1), ("", None), is_assumed=False) is None
    assert network_fact("fast-9", ("slow-1", 1.01), ("", None), is_assumed=True) is None


def test_of_what_a_host_updates_no_share_is_told():
    job, cluster, strategy, step_s = on("ethernet-10")
    away = msgspec.structs.replace(strategy, offload="optimizer")
    assert waiting_share(job, cluster, away, step_s) is None
