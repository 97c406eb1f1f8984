import re
import subprocess
import sys

import pytest

from brimful.cli.main import main
from brimful.cost.estimate import allocatable_bytes, tensor_limit_bytes
from brimful.errors import InputError, UnknownNameError, UnsupportedError
from brimful.hardware.cluster import offered_bytes
from brimful.hardware.gpus import gpus, load_cluster
from brimful.hardware.links import assumed_network
from brimful.hardware.probe import probe_local
from brimful.search.tries import same_strategy
from brimful.search.ways_out import ways_out
from brimful.units import GIB
from brimful.values.plan import PLAN_SCHEMA, Plan
from each_case import each
from samples import make_cluster, make_job, make_strategy

AMD = {90.0, 94.2, 95.0, 110.0, 115.1, 120.1}
"""gfx90a, gfx942, gfx950, gfx1100, gfx1151 and gfx1201."""


@each("name", sorted(gpus()))
def test_every_device_is_within_reason_and_says_its_source(name):
    device = gpus()[name]
    assert device.name == name
    assert device.kernels == "cuda"
    assert not device.calibrated
    assert device.usable_bytes > 3 * GIB
    assert 6.0 <= device.capability <= 12.1 or device.capability in AMD
    assert (device.matrix_flops_per_s.bf16 == 0) == (device.capability < 8.0)
    assert device.op_overhead_s == 1.3e-5
    assert device.source.startswith("rates: ")
    assert "usable bytes: " in device.source
    assert "launch time assumed" in device.source


def test_usable_is_less_than_the_number_in_the_name():
    for name, size_gib in {"h100-80gb": 80, "a100-40gb": 40, "t4": 16, "rtx-4090": 24}.items():
        assert 0.9 * size_gib < gpus()[name].usable_bytes / GIB < size_gib


@pytest.mark.parametrize("name", ["h100-80gb", "1xh100-80gb", "1XH100-80GB"])
def test_one_gpu_by_name(name):
    cluster = load_cluster(name, memory_limit_bytes=None)
    assert cluster.name == "h100-80gb"
    assert cluster.num_devices == 1
    assert cluster.device == gpus()["h100-80gb"]
    assert cluster.host_ram_bytes == 0


def test_local_is_this_machine():
    cluster = load_cluster("local", memory_limit_bytes=None)
    assert cluster.device == probe_local()
    assert cluster.host_ram_bytes > 0


@pytest.mark.parametrize(
    ("name", "nodes", "each", "link", "network"),
    [
        ("8xh100-80gb", 1, 8, "nvlink-4", ""),
        ("4x8xh100-80gb", 4, 8, "nvlink-4", "ib-ndr-400"),
        ("4x1xl4", 4, 1, "", "ethernet-25"),
        ("2xl4", 1, 2, "pcie-4x16", ""),
        ("1x8xh200", 1, 8, "nvlink-4", ""),
        ("2xlocal", 1, 2, "", ""),
    ],
)
def test_nodes_and_devices_are_counted(name, nodes, each, link, network):
    cluster = load_cluster(name, memory_limit_bytes=None)
    assert (cluster.num_nodes, cluster.devices_per_node) == (nodes, each)
    assert cluster.num_devices == nodes * each
    assert (cluster.link, cluster.network) == (link, network)


def test_a_network_lies_between_nodes_only():
    names = [load_cluster(f"{nodes}8xh100-80gb", memory_limit_bytes=None, network_name="efa-400")
             for nodes in ("", "2x")]  # fmt: skip
    assert [cluster.network for cluster in names] == ["", "efa-400"]


def test_a_misspelt_network():
    with pytest.raises(UnknownNameError, match="did you mean ib-ndr-400"):
        load_cluster("2x8xh100-80gb", memory_limit_bytes=None, network_name="ib-ndr")


@pytest.mark.parametrize("name", ["8xh100-80gb", "4x8xh100-80gb"])
def test_training_on_gpus_that_are_not_there_is_refused(name, capsys):
    assert main(["train", "tinyllama-1.1b", "--gpus", name, "--data", "x.txt", "--out", "o"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"this machine (has none|has \d)|machines and this is 1", said), said


def test_plain_servers_are_assumed_of_cards_without_a_system_of_their_maker():
    assert load_cluster("2x8xrtx-4090", memory_limit_bytes=None).network == "ethernet-25"
    assert not assumed_network("rtx-4090")  # so that a market does not offer them


def test_gpus_without_fused_attention_of_rocm_are_known_and_refused():
    with pytest.raises(UnsupportedError, match="mi100 is gfx908, where PyTorch has no fused"):
        load_cluster("8xmi100", memory_limit_bytes=None)
    assert "mi100" not in gpus()
    assert load_cluster("8xmi300x", memory_limit_bytes=None).device.capability == 94.2


@pytest.mark.parametrize("name", ["h1000-80gb", "8xh1000-80gb", "", "x", "8x", "2x2x2xh200"])
def test_unknown_names(name):
    with pytest.raises(UnknownNameError, match="brimful gpus lists them"):
        load_cluster(name, memory_limit_bytes=None)


@pytest.mark.parametrize("name", ["0xh200", f"{'9' * 6000}xh200"])
def test_absurd_counts(name):
    with pytest.raises(InputError, match="use 1xh200"):
        load_cluster(name, memory_limit_bytes=None)


def test_misspelt_names_get_the_nearest():
    with pytest.raises(UnknownNameError, match=r"did you mean .*h100-80gb"):
        load_cluster("h100-8gb", memory_limit_bytes=None)


@pytest.mark.parametrize("limit_bytes", [GIB, gpus()["t4"].usable_bytes])
def test_a_memory_limit_is_the_runs_and_leaves_the_card_as_it_is(limit_bytes):
    cluster = load_cluster("t4", memory_limit_bytes=limit_bytes)
    assert cluster.device == gpus()["t4"]
    assert offered_bytes(cluster) == limit_bytes
    outside = cluster.device.usable_bytes - allocatable_bytes(cluster.device)
    assert tensor_limit_bytes(cluster) == limit_bytes - outside
    assert offered_bytes(load_cluster("t4", memory_limit_bytes=None)) == gpus()["t4"].usable_bytes


def test_a_card_of_another_size_is_asked_for():
    cluster = load_cluster("t4", memory_limit_bytes=None, card_memory_bytes=32 * GIB)
    assert offered_bytes(cluster) == cluster.device.usable_bytes == 32 * GIB
    assert cluster.device.source.endswith("usable bytes as given")
    both = load_cluster("t4", memory_limit_bytes=20 * GIB, card_memory_bytes=32 * GIB)
    assert offered_bytes(both) == 20 * GIB
    with pytest.raises(InputError, match="card of 0 bytes"):
        load_cluster("t4", memory_limit_bytes=None, card_memory_bytes=0)


@pytest.mark.parametrize("extra_bytes", [1, 10**15])
def test_a_memory_limit_over_what_there_is(extra_bytes):
    whole = gpus()["t4"].usable_bytes
    with pytest.raises(InputError) as caught:
        load_cluster("t4", memory_limit_bytes=whole + extra_bytes)
    assert str(whole) in str(caught.value)
    assert str(whole + extra_bytes) in str(caught.value)


@pytest.mark.parametrize("limit_bytes", [0, -5])
def test_a_memory_limit_of_nothing(limit_bytes):
    with pytest.raises(InputError, match=f"limit of {limit_bytes} bytes .* 14.56 GiB of t4"):
        load_cluster("t4", memory_limit_bytes=limit_bytes)


def test_planning_for_this_machine_imports_no_torch():
    code = (
        "import sys; from brimful.hardware.gpus import load_cluster; "
        "load_cluster('local', memory_limit_bytes=None); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def larger_gpu(precision, need_bytes):
    """Ask for the smallest GPU that fits, where nothing is known of two generations' kernels."""

    def shortfall(_job, cluster, _strategy):
        if cluster.device.capability in {6.0, 6.1, 10.3}:
            raise UnsupportedError("nothing is known of kernels on it")
        return need_bytes - cluster.device.usable_bytes

    plan = Plan(
        schema=PLAN_SCHEMA, job=make_job(precision=precision), cluster=make_cluster("cuda"),
        strategy=make_strategy(), estimate=None,
    )  # fmt: skip
    found = ways_out(plan, same_strategy(plan, shortfall), lambda tried: tried)
    return next(way.words for way in found if "GPU" in way.words or "the smallest" in way.words)


def test_a_gpu_that_cannot_run_a_plan_is_no_way_out():
    """A P40 has 22.38 GiB, a V100 31.73 GiB."""
    assert "--gpus rtx-4090 " in larger_gpu("fp16", int(22.1 * GIB))
    assert "--gpus v100-32gb " in larger_gpu("fp16", int(31.5 * GIB))


def test_a_gpu_that_would_emulate_a_plans_type_is_no_way_out():
    assert "--gpus a100-40gb" in larger_gpu("bf16-mixed", int(31.5 * GIB))


def test_a_plan_that_no_gpu_holds():
    assert "no single known GPU holds it" in larger_gpu("fp16", 10**12)
