"""What the driver says, read from its own front end; nothing where there is no driver."""

import pytest

from brimful.hardware.nvidia_smi import (
    FoundNode,
    Pair,
    describe_pairs,
    find_gpus,
    find_node,
    read_gpu,
    read_topology,
)
from brimful.units import MIB

H100 = "NVIDIA H100 80GB HBM3, 9.0, 81559, 551, 5, 16"
TWO = "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m"
TOPOLOGY = f"""{TWO}
GPU0\t X \tNV18\tPIX\t0-51\t0
GPU1\tNV18\t X \tSYS\t0-51\t0
NIC0\tPIX\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
"""As on two GPUs with an adapter, underlined header and all."""


def answer(text):
    return f"cat <<'END'\n{text}\nEND"


def node_script(lines, topology):
    return f'case "$*" in *topo*) {answer(topology)}\n;; *) {answer(lines)}\n;; esac'


def test_gpus_are_counted_with_their_links(nvidia_smi):
    nvidia_smi(node_script(f"{H100}\n{H100}", TOPOLOGY))
    node = find_node()
    assert [gpu.name for gpu in node.gpus] == ["NVIDIA H100 80GB HBM3"] * 2
    assert {gpu.usable_bytes for gpu in node.gpus} == {(81559 - 551) * MIB}
    assert {gpu.total_bytes for gpu in node.gpus} == {81559 * MIB}
    assert {(gpu.pcie_generation, gpu.pcie_lanes) for gpu in node.gpus} == {(5, 16)}
    assert node.pairs == (Pair(first=0, second=1, way="NV18"),)


def test_one_gpu_has_no_pairs_and_is_not_asked_for_them(nvidia_smi):
    nvidia_smi(f'case "$*" in *topo*) exit 1;; *) {answer(H100)}\n;; esac')
    assert len(find_node().gpus) == 1
    assert find_node().pairs == ()


@pytest.mark.parametrize("script", ["exit 9", "kill -9 $$", "echo 'No devices were found'", ":"])
def test_a_driver_that_fails_means_no_gpus(nvidia_smi, script):
    nvidia_smi(script)
    assert find_node() == FoundNode(gpus=(), pairs=())


def test_bytes_that_are_no_text_mean_no_gpus(nvidia_smi):
    nvidia_smi("printf '\\377\\376\\0\\n'")
    assert find_gpus() == ()


def test_without_a_driver_there_are_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_node() == FoundNode(gpus=(), pairs=())


@pytest.mark.parametrize("visible", ["", " ", "-1"])
def test_hidden_gpus_are_not_found(nvidia_smi, monkeypatch, visible):
    nvidia_smi(answer(H100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert find_gpus() == ()


@pytest.mark.parametrize(
    ("visible", "only_first", "asked"),
    [("2,5", False, "--id=2,5"), ("2,5", True, "--id=2"), (None, True, "--id=0"),
     ("GPU-1a2b", False, "--id=GPU-1a2b")],
)  # fmt: skip
def test_visible_gpus_are_asked_for_by_name(nvidia_smi, monkeypatch, visible, only_first, asked):
    nvidia_smi(f'case "$*" in *{asked}) {answer(H100)}\n;; *) exit 1;; esac')
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(find_gpus(only_first=only_first)) == 1


@pytest.mark.parametrize("line", ["", "NVIDIA GB10, 12.1, [N/A], [N/A]", "No devices were found",
                                  "a, b, -5", "a, 8.0, 1e9", ",,,,,,,,,"])  # fmt: skip
def test_lines_without_a_size_are_no_gpu(line):
    assert read_gpu(line) is None


def test_what_a_line_does_not_say_is_unknown():
    gpu = read_gpu("Tesla T4, [N/A], 15360")
    assert (gpu.capability, gpu.usable_bytes) == (0, 15360 * MIB)
    assert (gpu.pcie_generation, gpu.pcie_lanes) == (0, 0)


@pytest.mark.parametrize("text", ["", "GPU0", TWO, "nonsense\n\n", "GPU0 GPU1\nGPU0\nGPU1 X"])
def test_a_topology_that_is_none_is_empty(text):
    assert read_topology(text) == ()


def test_ways_in_words():
    four = [Pair(first=a, second=b, way="NV4" if (a, b) in {(0, 1), (2, 3)} else "SYS")
            for a in range(4) for b in range(a + 1, 4)]  # fmt: skip
    assert describe_pairs(tuple(four)) == "NV4 in 2 pairs, SYS in 4 pairs"
    assert describe_pairs(tuple(four[:1])) == "NV4 between all"
    assert describe_pairs(()) == "unknown"
