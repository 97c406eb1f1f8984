"""What is read off a cache on ``meta`` is what one of real numbers holds, storage by storage."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from brimful.build.cached import read_cached
from brimful.cost.inference import InferenceJob
from brimful.cost.kv_cache import (
    CACHED,
    cache_layers,
    grown_bytes,
    num_shared_heads,
    prefilled_bytes,
)
from brimful.errors import UnsupportedError
from brimful.models.config import load_model, read_config
from brimful.models.traced import keep_cached
from hybrids import HYBRID, SPARSE
from other_decoders import COMMON, CONFIGS, PLAIN, WINDOW

pytestmark = pytest.mark.torch

SMALL = {**PLAIN, "num_hidden_layers": 3, "vocab_size": 97}
OTHERS = {
    "gemma3_text": {
        **COMMON, "sliding_window": WINDOW, "num_hidden_layers": 3, "sliding_window_pattern": 3,
    },
    "olmo3": {**SMALL, "sliding_window": WINDOW},
    "smollm3": SMALL,
    "cohere2": {**SMALL, "sliding_window": WINDOW},
    "glm4_moe_lite": {**CONFIGS["deepseek_v3"], "num_nextn_predict_layers": 0},
    **{name: {**SMALL, **own} for name, own in HYBRID.items()},
    "deepseek_v32": {**SMALL, **SPARSE["deepseek_v32"]},
}  # fmt: skip
PROMPT, NUM_SEQUENCES = 11, 2


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path))
    monkeypatch.setattr("brimful.models.traced._cached", {})


def spec_of(model_type, config):
    return read_config("tiny", {"model_type": model_type, **config})


def job_of(spec):
    return InferenceJob(
        model=spec, weights_format="bf16", compute="bf16", num_sequences=1, seq_len=8, prompt_len=8
    )


def tensors_of(value):
    """Yield the tensors of a layer of a cache, whatever holds them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)


def held(cache):
    """Sum the storages of a cache but for counters."""
    storages = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for layer in cache.layers
        for x in tensors_of(vars(layer))
        if x.is_floating_point()
    }
    return sum(storages.values())


@pytest.mark.few(6)
@pytest.mark.parametrize("model_type", OTHERS)
@torch.no_grad()
def test_bytes_are_those_of_a_cache_of_real_numbers(model_type):
    assert model_type not in CACHED
    spec = spec_of(model_type, OTHERS[model_type])
    keep_cached(spec, read_cached(job_of(spec)))
    layers = cache_layers(spec)
    config = AutoConfig.for_model(model_type, **spec.hf_config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    cache = DynamicCache(config=model.config)
    model(torch.ones(NUM_SEQUENCES, PROMPT, dtype=torch.int64), past_key_values=cache)
    sizes = {"num_sequences": NUM_SEQUENCES, "element_bytes": 2}
    counters = 8 * sum(layer.window is not None for layer in layers)
    assert prefilled_bytes(layers, num_tokens=PROMPT, **sizes) - counters == held(cache)
    model(torch.ones(NUM_SEQUENCES, 1, dtype=torch.int64), past_key_values=cache)
    assert grown_bytes(layers, num_tokens=PROMPT + 1, **sizes) - counters == held(cache)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "deepseek_v3", "gpt_oss"])
def test_what_is_read_is_what_a_file_here_describes(model_type):
    config = CONFIGS.get(model_type, SMALL)
    spec = spec_of(model_type, config)
    read = read_cached(job_of(spec))
    assert read.blocks == cache_layers(spec)


def test_a_latent_has_one_head_and_others_have_theirs():
    for model_type, heads in (("deepseek_v32", 1), ("olmo3", 2)):
        spec = spec_of(model_type, OTHERS[model_type])
        keep_cached(spec, read_cached(job_of(spec)))
        assert num_shared_heads(cache_layers(spec)) == heads


def test_what_was_not_read_is_refused():
    with pytest.raises(UnsupportedError, match="type olmo3, whose cache of keys and values has no"):
        cache_layers(spec_of("olmo3", OTHERS["olmo3"]))


def test_gemma_by_hand():
    """Five of six blocks see 1,024 tokens; 16 heads of keys and values of 128 numbers each."""
    spec = load_model("gemma-3-27b")
    keep_cached(spec, read_cached(job_of(spec)))
    sizes = {"num_sequences": 1, "num_tokens": 32768, "element_bytes": 2}
    layers = cache_layers(spec)
    widths = 2 * 16 * 128 * 2
    assert sum(layer.window is None for layer in layers) == 10
    assert grown_bytes(layers, **sizes) == widths * (10 * 32768 + 52 * 1024) + 52 * 8
