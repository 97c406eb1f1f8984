"""Whether a class runs by itself, as drawn: for real, with CUDA's lists of autocast."""

import class_alone
import pytest
from class_alone import ends_alone

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "vocab_size": 97, "max_position_embeddings": 64,
}  # fmt: skip


def test_few_tokens_and_fake_ones_tell_what_all_of_them_would(monkeypatch):
    """XLNet keeps sines of positions in fp32 beside weights in 16 bits, and is slow."""
    ran, run = [], class_alone._ended

    def noted(*asked, is_fake):
        ran.append((asked[-1], is_fake))
        return run(*asked, is_fake=is_fake)

    monkeypatch.setattr(class_alone, "_ended", noted)
    sizes = {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 48, "vocab_size": 97}
    asked = "xlnet", sizes, "sequence-classification"
    assert "BFloat16" in ends_alone(*asked, "bf16", 64)
    assert not ends_alone(*asked, "bf16-mixed", 64)
    assert ran == [(32, False), (64, True)] * 2
    reformer = "reformer", {"axial_pos_shape": [8, 8]}, "sequence-classification"
    assert not ends_alone(*reformer, "fp32", 64)
    assert ran[-1] == (64, False)


@pytest.mark.parametrize(
    ("model_type", "precision", "what"),
    [
        ("fnet", "bf16-mixed", "Unsupported dtype BFloat16"),  # the CPU's autocast widens it
        ("yoso", "bf16-mixed", "same dtype|scalar type"),  # and leaves an arc cosine in bf16
        ("yoso", "bf16", ""),
        ("bert", "bf16-mixed", ""),
        ("fnet", "fp32", ""),
    ],
)
def test_a_class_is_run_as_cuda_would_cast(model_type, precision, what):
    import re

    told = ends_alone(model_type, SIZES, "sequence-classification", precision, 16)
    assert bool(told) == bool(what)
    assert re.search(what, told)
