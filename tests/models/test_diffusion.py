"""Models that make images or videos: which a name means, and what is said of it."""

import pytest

from brimful.errors import UnsupportedError
from brimful.models.by_name import find_named
from brimful.models.config import load_model
from brimful.models.diffusion import diffusion_models, find_diffusion, what_it_is
from brimful.models.language_parts import find_part, language_parts
from brimful.models.names import find
from brimful.models.registry import registry
from brimful.models.spec import MODULE

SAME = {
    "FLUX.1-dev": (
        "black-forest-labs/FLUX.1-dev", "black-forest-labs/FLUX.1-Kontext-dev", "flux-dev",
    ),
    "FLUX.1-schnell": ("black-forest-labs/FLUX.1-schnell",),
    "FLUX.2-dev": ("black-forest-labs/FLUX.2-dev",),
    "SDXL": ("stabilityai/stable-diffusion-xl-base-1.0", "stabilityai/sdxl-turbo", "sdxl"),
    "SDXL's refiner": ("stabilityai/stable-diffusion-xl-refiner-1.0",),
    "Stable Diffusion 1": (
        "stable-diffusion-v1-5/stable-diffusion-v1-5", "CompVis/stable-diffusion-v1-4", "sd1.5",
    ),
    "Stable Diffusion 2": ("stabilityai/stable-diffusion-2-1",),
    "Stable Diffusion 3.5 large": ("stabilityai/stable-diffusion-3.5-large-turbo",),
    "Qwen-Image": ("Qwen/Qwen-Image", "Qwen/Qwen-Image-Edit-2509"),
    "Wan2.1-T2V-14B": ("Wan-AI/Wan2.1-T2V-14B-Diffusers",),
    "Wan2.1-I2V-14B": ("Wan-AI/Wan2.1-I2V-14B-480P",),
    "Wan2.2-T2V-A14B": ("Wan-AI/Wan2.2-T2V-A14B",),
    "HunyuanVideo": ("tencent/HunyuanVideo",),
    "LTX-Video 2B": ("Lightricks/LTX-Video",),
    "CogVideoX-5b": ("zai-org/CogVideoX-5b",),
    "Sana 1.6B": ("Efficient-Large-Model/Sana_1600M_1024px_diffusers",),
    "PixArt-Sigma": ("PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",),
    "Kolors": ("Kwai-Kolors/Kolors-diffusers",),
    "Z-Image": ("Tongyi-MAI/Z-Image-Turbo",),
    "Lumina-Image-2.0": ("Alpha-VLLM/Lumina-Image-2.0",),
    "Chroma": ("lodestones/Chroma1-HD",),
}  # fmt: skip
OTHERS = (
    "FLUX.1-lite-8B", "Wan-AI/Wan2.5-T2V", "stabilityai/stablelm-2-1_6b", "stable-code-3b", "flux",
    "Qwen/Qwen3-8B", "", "9" * 5000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "name"), [(typed, name) for name, spelled in SAME.items() for typed in spelled]
)
def test_a_model_under_another_name(typed, name):
    found = find_diffusion(typed)
    assert found is not None
    assert found.name == name


AS_BEFORE = {
    "Stable Diffusion 1": ("sd-1.5-inpainting", "v1/stable-diffusion-v1-5"),
    "Stable Diffusion 2": ("stabilityai/sd-turbo", "stabilityai/stable-diffusion-2-inpainting"),
    "SDXL": ("ByteDance/SDXL-Lightning", "stabilityai/stable-diffusion-xl-1.0"),
    "FLUX.1-dev": ("black-forest-labs/FLUX.1-Fill-dev", "city96/FLUX.1-dev-gguf"),
    "HunyuanVideo": ("tencent/HunyuanVideo-I2V",),
    "Chroma": ("lodestones/Chroma1-Flash", "chroma-unlocked-v35"),
    "Sana 1.6B": ("Efficient-Large-Model/Sana_Sprint_1.6B_1024px",),
    "Kolors": ("Kwai-Kolors/Kolors-Inpainting",),
    "AuraFlow": ("fal/AuraFlow-v0.2",),
}  # fmt: skip
LANGUAGE_MODELS = (
    "sd-llama", "acme/sd-chat", "acme/sd-chat-turbo", "acme/chroma-chat", "chroma1-chat",
    "kolors-llm", "kolors-instruct", "sdxl-llama", "ltx-2-llama", "flux-llama-dev",
)  # fmt: skip
NETWORKS = (
    "sd-vae-ft-mse", "stabilityai/sdxl-vae", "diffusers/sdxl-controlnet",
    "Wan-AI/Wan2.2-Animate-14B", "Wan-AI/Wan2.2-S2V-14B", "Wan-AI/Wan2.1-VACE-14B",
    "Wan-AI/Wan2.1-FLF2V-14B-720P", "tencent/HunyuanVideo-Foley", "hunyuan-video-foley",
    "black-forest-labs/FLUX.1-Redux-dev", "black-forest-labs/FLUX.1-Depth-dev-lora",
    "InstantX/FLUX.1-dev-Controlnet-Canny", "InstantX/Qwen-Image-ControlNet-Union",
    "Kwai-Kolors/Kolors-IP-Adapter-Plus", "flux-dev-text-encoder",
)  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "name"), [(typed, name) for name, spelled in AS_BEFORE.items() for typed in spelled]
)
def test_a_short_name_with_the_words_of_the_hub_is_taken(typed, name):
    assert find_diffusion(typed).name == name


@pytest.mark.parametrize("typed", LANGUAGE_MODELS)
def test_a_language_model_that_begins_as_one_is_not_taken(typed):
    """Every name that began with sd and said no size was Stable Diffusion 2."""
    assert find_diffusion(typed) is None


@pytest.mark.parametrize("typed", NETWORKS)
def test_a_network_beside_one_is_not_taken(typed):
    """A decoder of 84M parameters was SDXL, and an adapter of pictures was FLUX."""
    assert find_diffusion(typed) is None


@pytest.mark.parametrize("typed", OTHERS)
def test_another_is_not_taken(typed):
    assert find_diffusion(typed) is None


def test_no_language_model_is_taken_for_one_nor_one_for_it():
    sources = [entry["source"] for entry in registry().values()]
    known = (*registry(), *sources, *language_parts())
    assert [name for name in known if find_diffusion(name)] == []
    assert [name for name in diffusion_models() if find(name) or find_part(name)] == []


def test_every_entry_says_what_it_is():
    for name, model in diffusion_models().items():
        assert find_diffusion(name) == model
        assert 5e8 < model.parameters < 5e10
        assert model.kind in {"transformer", "UNet"}
        assert model.name in what_it_is(model)


def test_weights_are_two_bytes_a_parameter():
    flux = diffusion_models()["flux.1-dev"]
    assert flux.weight_bytes == 2 * 11_901_408_320
    assert flux.all_bytes == 2 * (11_901_408_320 + 4_762_310_656 + 123_060_480)
    assert "22.17 GiB in bf16 (31.27 GiB with its text encoders, T5-XXL and CLIP-L)" in (
        what_it_is(flux)
    )
    wan = diffusion_models()["wan2.2-t2v-a14b"]
    assert wan.weight_bytes == 2 * 2 * 14_288_491_584
    assert "2 diffusion transformers of 14.3B parameters each that make videos" in what_it_is(wan)


def test_one_is_refused_in_one_sentence():
    with pytest.raises(UnsupportedError, match="brimful pretend --gpu CARD") as refused:
        load_model("black-forest-labs/FLUX.1-dev")
    assert "plans language models by name" in str(refused.value)
    assert not refused.value.nearest


def test_a_factory_and_a_path_are_none_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sdxl").mkdir()
    named = ("kolors:build", "sdxl", "./kolors", "kolors.json")
    assert [find_named(name) for name in named] == [None] * len(named)
    assert find_named("kolors").name == "Kolors"
    assert find_named("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert load_model("kolors:build").model_type == MODULE
