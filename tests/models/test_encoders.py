"""Models of speech and images: their counts are those of transformers' classes."""

import pytest

from brimful.models.config import load_model
from brimful.models.encoders import encoders, find_encoder, num_beside

WHISPER = {"tiny": (384, 4), "small": (768, 12), "large-v3": (1280, 32)}
OFFICIAL = {
    "whisper-tiny": 39e6, "whisper-base": 74e6, "whisper-small": 244e6, "whisper-medium": 769e6,
    "whisper-large-v2": 1550e6, "whisper-large-v3": 1550e6, "whisper-large-v3-turbo": 809e6,
    "vit-base-patch16-224": 86e6, "vit-large-patch16-224": 307e6, "vit-huge-patch14-224": 632e6,
    "dinov2-giant": 1100e6,
}  # fmt: skip
"""Millions. Source: Whisper's model cards; table 1 of arXiv:2010.11929; DINOv2's model card."""


@pytest.mark.parametrize("name", OFFICIAL)
def test_counts_are_what_is_published(name):
    assert encoders()[name].parameters == pytest.approx(OFFICIAL[name], rel=0.04)


@pytest.mark.torch
@pytest.mark.parametrize("size", WHISPER)
def test_counts_are_those_of_the_class(size):
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, blocks = WHISPER[size]
    heads = {f"{part}_attention_heads": width // 64 for part in ("encoder", "decoder")}
    inner = {f"{part}_ffn_dim": 4 * width for part in ("encoder", "decoder")}
    is_v3 = size.endswith("v3")
    config = WhisperConfig(
        d_model=width, encoder_layers=blocks, decoder_layers=blocks,
        num_mel_bins=128 if is_v3 else 80, vocab_size=51866 if is_v3 else 51865, **heads, **inner,
    )  # fmt: skip
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert encoders()[f"whisper-{size}"].parameters == count


def test_names_are_found_with_the_organisation_and_without():
    assert find_encoder("openai/whisper-large-v3")[0] == "whisper-large-v3"
    assert find_encoder("CLIP-ViT-Large-Patch14")[0] == "clip-vit-large-patch14"
    assert find_encoder("llama-3.1-8b") is None
    names = [name for encoder in encoders().values() for name in encoder.names]
    assert len(names) == len(set(names))


def test_what_a_checkpoint_has_beside_its_language_part():
    assert num_beside(load_model("gemma-3-4b")) == (419_816_304, False)
    num, is_most = num_beside(load_model("qwen3.5-0.8b"))
    assert (num, is_most) == (121_045_760, True)
    assert num_beside(load_model("llama-3.1-8b")) == (0, False)
