"""Packages that layers ask for: an answer says which are taken to be installed, and how without."""

import json

import pytest

from hybrids import HYBRID

pytestmark = pytest.mark.torch

CONFIG = {
    "model_type": "qwen3_next", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.fixture
def asked(folder):
    (folder / "next").mkdir()
    (folder / "next" / "config.json").write_text(json.dumps({**CONFIG, **HYBRID["qwen3_next"]}))
    return ("estimate", "next", "--gpus", "h100-80gb", "--seq-len", 256)


def test_an_answer_says_what_is_taken_to_be_installed(brimful, asked):
    said = " ".join(brimful(*asked).out.split())
    assert "causal-conv1d and flash-linear-attention, installed there" in said
    assert "(--fused-kernels torch: without)" in said


def test_without_them_it_says_what_runs(brimful, asked):
    said = " ".join(brimful(*asked, "--fused-kernels", "torch").out.split())
    assert "transformers' own code, not causal-conv1d and flash-linear-attention" in said
