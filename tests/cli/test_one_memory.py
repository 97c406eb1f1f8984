"""A GPU whose memory is the host's own: nothing is moved from the one to the other."""

import pytest

SPARK = ("qwen3-8b", "--seq-len", 2048, "--global-batch", 2)


def paragraph(out):
    return " ".join(out.split())


def test_one_of_several_nodes_offloads_nothing(brimful):
    said = brimful("plan", *SPARK, "--gpus", "2x1xdgx-spark", "--network", "roce-200", "--no-proof")
    assert said.code == 0
    assert "one node  does not hold it" in said.out


def test_no_plan_offloads(brimful):
    said = brimful("plan", *SPARK, "--gpus", "dgx-spark", "--no-proof", "--loss-chunks", 1)
    assert said.code == 1
    assert "offload" not in said.out


@pytest.mark.parametrize("flag", [("--offload", "optimizer"), ("--host-memory", "128GiB")])
@pytest.mark.parametrize("verb", ["plan", "estimate"])
def test_a_second_memory_is_refused_in_words(brimful, verb, flag):
    said = brimful(verb, "qwen3-0.6b", "--gpus", "dgx-spark", *flag, "--json")
    assert said.code == 2
    assert "share one" in said.err
    assert brimful("estimate", "qwen3-0.6b", "--gpus", "gh200", *flag, "--json").code == 0


@pytest.mark.torch
def test_what_cannot_be_simulated_is_not_advised(brimful):
    for gpu, is_known in (("p40", False), ("dgx-spark", True), ("h200", True)):
        told = brimful("estimate", "qwen3-0.6b", "--gpus", gpu).out
        assert ("brimful simulate" in told) is is_known
