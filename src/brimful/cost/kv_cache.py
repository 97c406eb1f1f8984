"""What a decoder's cache of keys and values holds: widths by architecture, tokens by window.

Of each token a block keeps a key and a value; where attention is latent (DeepSeek), the narrow
latent in place of the keys and the one rotated key of all heads in place of the values. Blocks with
a window keep the tokens of the window only. Counted are storages as transformers' own caches hold
them (``DynamicLayer``, ``DynamicSlidingWindowLayer``, ``StaticLayer``, ``StaticSlidingWindowLayer``
of ``transformers/cache_utils.py``, 5.23); other engines page theirs and hold more. Of a class
that no file here describes what a block keeps was read off one forward (``build.cached``).
"""

from brimful.cost.recipes import FP32_BYTES
from brimful.errors import UnsupportedError
from brimful.models.architecture import LATENT_ROTARY
from brimful.models.architectures import named_with, record_of
from brimful.models.spec import ModelSpec
from brimful.models.traced import CacheLayer, find_cached

SLIDING = "sliding_attention"
_LATENT_WIDTHS = {"kv_lora_rank": 512, LATENT_ROTARY: 64}
"""Defaults of both DeepSeek configurations."""
_MAX_WINDOW_LAYERS = 28
"""What classes fill in whose last blocks have a window."""
CACHED = tuple(sorted(named_with("task", "causal-lm")))
"""Architectures with a cache whose size is known here."""
POSITION_BYTES = 8
"""A counter of 64 bits that every block with a window holds on the device."""


def cache_layers(spec: ModelSpec) -> tuple[CacheLayer, ...]:
    """List what every block of a decoder keeps.

    Raises UnsupportedError: the architecture writes no text, or its cache is not known.
    """
    if spec.model_type not in CACHED:
        # What was read off a model that no file here describes.
        cached = find_cached(spec)
        if cached is None or cached.why_not:
            why = f": {cached.why_not}" if cached else ""
            raise UnsupportedError(
                f"{spec.name} is of type {spec.model_type}, whose cache of keys and values has no "
                f"formula{why}; use one of {', '.join(CACHED)}"
            )
        return cached.blocks
    widths, is_latent = _widths(spec), record_of(spec.model_type).is_latent
    heads = 1 if is_latent else spec.num_kv_heads
    return tuple(CacheLayer(*widths, window, num_heads=heads) for window in windows(spec))


def num_shared_heads(layers: tuple[CacheLayer, ...]) -> int:
    """Return by how many heads a cache is shared out; 1: not at all, as one latent of all heads."""
    return min((layer.num_heads for layer in layers if layer.key_width), default=1)


def _widths(spec: ModelSpec) -> tuple[int, int]:
    """Return the widths of a key and of a value: K d each, or those of the latents."""
    if record_of(spec.model_type).is_latent:
        latent, rotary = (
            int(spec.hf_config.get(field, default)) for field, default in _LATENT_WIDTHS.items()
        )
        return latent, rotary
    return spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim


def windows(spec: ModelSpec) -> tuple[int | None, ...]:
    """Return the window of every block in tokens, None where it sees all."""
    window = window_of(spec)
    kinds: list[str] | None = spec.hf_config.get("layer_types")
    if kinds is not None:
        return tuple(window if kind == SLIDING else None for kind in kinds)
    return tuple(window if _slides(spec, i) else None for i in range(spec.num_layers))


def window_of(spec: ModelSpec) -> int | None:
    """Return how many tokens blocks with a window see; None where none has one."""
    known, config = record_of(spec.model_type).window, spec.hf_config
    if known.is_switched and not config.get("use_sliding_window", False):
        return None
    window: int | None = config.get("sliding_window", known.default)
    return window


def _slides(spec: ModelSpec, block: int) -> bool:
    """Whether a block has the window, where the configuration does not list the kinds."""
    blocks = record_of(spec.model_type).window.blocks
    if blocks == "every-other":
        return block % 2 == 0
    if blocks == "last":
        first: int = spec.hf_config.get("max_window_layers", _MAX_WINDOW_LAYERS)
        return block >= first
    return True


def prefilled_bytes(
    layers: tuple[CacheLayer, ...], *, num_sequences: int, num_tokens: int, element_bytes: int
) -> int:
    """Return what a dynamic cache takes after one forward over a whole prompt.

    Blocks with a window hold it whole too: what they keep are views of the keys and values of all
    tokens, until the next token makes them anew.
    """
    return sum(
        _layer_bytes(layer, num_sequences, num_tokens, element_bytes) for layer in layers
    ) + _counters(layers)


def grown_bytes(
    layers: tuple[CacheLayer, ...], *, num_sequences: int, num_tokens: int, element_bytes: int
) -> int:
    """Return what a dynamic cache takes after at least one token was added to a prompt."""
    return sum(
        _layer_bytes(layer, num_sequences, kept(layer, num_tokens), element_bytes)
        for layer in layers
    ) + _counters(layers)


def kept(layer: CacheLayer, num_tokens: int) -> int:
    """Return how many of its tokens a block holds while it decodes: at most its window.

    A window of 1 is cut with ``[-0:]`` and so never shrinks.
    """
    if layer.window is None or layer.window == 1:
        return num_tokens
    return min(num_tokens, layer.window)


def _layer_bytes(layer: CacheLayer, num_sequences: int, num_tokens: int, element_bytes: int) -> int:
    numbers = (layer.key_width + layer.value_width) * num_tokens + layer.state
    return num_sequences * (numbers * element_bytes + layer.wide_state * FP32_BYTES)


def _counters(layers: tuple[CacheLayer, ...]) -> int:
    return POSITION_BYTES * sum(layer.window is not None for layer in layers)
