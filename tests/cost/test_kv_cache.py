import pytest
import torch
from tests.models.meta import SMALL
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from brimful.cost.kv_cache import CACHED, cache_layers, grown_bytes, prefilled_bytes, windows
from brimful.errors import UnsupportedError
from brimful.models.config import load_model, read_config

pytestmark = pytest.mark.torch

WINDOW = {"sliding_window": 7}
CASES = [
    *((model_type, {}) for model_type in CACHED),
    ("mistral", WINDOW),
    ("mixtral", WINDOW),
    ("phi3", WINDOW),
    ("gemma2", WINDOW),
    ("gpt_oss", WINDOW),
    ("qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    ("qwen3", {**WINDOW, "use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3_moe", {**WINDOW, "use_sliding_window": True}),
    ("qwen3_moe", {**WINDOW, "use_sliding_window": False}),
    ("gpt_oss", {**WINDOW, "layer_types": ["full_attention"] * 2 + ["sliding_attention"]}),
    ("mistral", {"sliding_window": None}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 16}),
]


def build(model_type, changes):
    config = {**SMALL[model_type], "num_hidden_layers": 3, **changes}
    if model_type == "gpt2":
        del config["num_hidden_layers"]
    spec = read_config("tiny", {"model_type": model_type, **config})
    torch.manual_seed(0)
    made = AutoConfig.for_model(model_type, **spec.hf_config)
    return spec, AutoModelForCausalLM.from_config(made).eval()


def held(cache):
    """Sum the storages of a cache, and the counters it keeps where its keys are."""
    storages = {}
    for layer in cache.layers:
        counters = (getattr(layer, "_sliding_window_tensor", None), layer_counter(layer))
        for x in (layer.keys, layer.values, *counters):
            if isinstance(x, torch.Tensor):
                storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return sum(storages.values())


def layer_counter(layer):
    return getattr(layer, "cumulative_length", None)


@pytest.mark.parametrize("case", CASES, ids=str)
@torch.no_grad()
def test_bytes_are_those_of_the_caches_of_transformers(case):
    spec, model = build(*case)
    layers = cache_layers(spec)
    prompt, num_sequences = 11, 2
    cache = DynamicCache(config=model.config)
    model(torch.ones(num_sequences, prompt, dtype=torch.int64), past_key_values=cache)
    sizes = {"num_sequences": num_sequences, "element_bytes": 4}
    assert prefilled_bytes(layers, num_tokens=prompt, **sizes) == held(cache)
    for more in (1, 2, 3):
        model(torch.ones(num_sequences, 1, dtype=torch.int64), past_key_values=cache)
        assert grown_bytes(layers, num_tokens=prompt + more, **sizes) == held(cache)


def test_a_prompt_shorter_than_the_window_is_held_whole():
    spec, model = build("mistral", WINDOW)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.ones(1, 3, dtype=torch.int64), past_key_values=cache)
        model(torch.ones(1, 1, dtype=torch.int64), past_key_values=cache)
    sizes = {"num_sequences": 1, "num_tokens": 4, "element_bytes": 4}
    assert grown_bytes(cache_layers(spec), **sizes) == held(cache)
    assert grown_bytes(cache_layers(spec), **sizes) == prefilled_bytes(cache_layers(spec), **sizes)


def test_by_hand():
    spec = load_model("llama-3.1-8b")
    layers = cache_layers(spec)
    sizes = {"num_sequences": 1, "num_tokens": 8192, "element_bytes": 2}
    assert grown_bytes(layers, **sizes) == 2 * 32 * 8 * 128 * 8192 * 2 == 2**30
    latent = cache_layers(load_model("deepseek-v3"))
    assert grown_bytes(latent, **sizes) == 61 * (512 + 64) * 8192 * 2


def test_windows_of_published_models():
    assert windows(load_model("gemma-2-2b"))[:4] == (4096, None, 4096, None)
    assert windows(load_model("gpt-oss-20b"))[:3] == (128, None, 128)
    assert set(windows(load_model("qwen2.5-7b"))) == {None}


def test_what_writes_no_text_has_no_cache():
    with pytest.raises(UnsupportedError, match="type bert, whose cache"):
        cache_layers(load_model("bert-base-uncased"))
