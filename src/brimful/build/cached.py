"""What a model's cache of keys and values holds, read off one forward on the ``meta`` device.

Of an architecture that no file here describes: how wide a token's key and value are in every block
and how far back a block with a window keeps them, or how large a state is that it keeps instead.
"""

from typing import Any

import torch
from transformers import DynamicCache

from brimful.build.inference import inference_skeleton
from brimful.cost.inference import InferenceJob
from brimful.models.traced import Cached, CacheLayer

_NUM_TOKENS = 2
_OF_TOKENS = "DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer"
"""Layers of a cache that keep keys and values of tokens; the last of an indexer too. By name: some
are of later versions than the first that is run."""
_OF_SEQUENCE, _OF_NOTHING = "LinearAttentionLayer", "DummyLayer"


def read_cached(job: InferenceJob) -> Cached:
    """Run two tokens through a model and read what its cache keeps of each.

    ``job``: what is loaded, in 16 bits; its sizes do not matter. Returns what every block keeps;
    why nobody knows where one keeps something else, or the forward needs numbers that a model
    without any does not have.
    """
    model: Any = inference_skeleton(job)
    cache = DynamicCache(config=model.config)
    tokens = torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        with torch.no_grad():
            model(input_ids=tokens, past_key_values=cache, use_cache=True)
    except Exception as error:  # noqa: BLE001 - whatever a class does with numbers it does not have
        return Cached((), f"its forward does not run without numbers ({type(error).__name__})")
    found = [_block_of(layer) for layer in cache.layers]
    unread = [layer for layer, block in zip(cache.layers, found, strict=True) if block is None]
    if unread:
        return Cached((), f"its cache has a {type(unread[0]).__name__}")
    return Cached(tuple(block for block in found if block is not None))


def _block_of(layer: Any) -> CacheLayer | None:
    """Return what a layer of a cache keeps; None: of another kind, or nothing came to it."""
    kind = type(layer).__name__
    if kind == _OF_NOTHING:
        return CacheLayer(0, 0, None)
    if kind == _OF_SEQUENCE:
        states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
        tensors = [state for state in states if state is not None]
        wide = sum(each.numel() for each in tensors if each.dtype == torch.float32)
        every = sum(each.numel() for each in tensors)
        return CacheLayer(0, 0, None, state=every - wide, wide_state=wide)
    if kind not in _OF_TOKENS or not layer.is_initialized:
        return None
    keys, values = (tensor.numel() // _NUM_TOKENS for tensor in (layer.keys, layer.values))
    indexer = getattr(layer, "indexer_keys", None)
    more = 0 if indexer is None else indexer.numel() // _NUM_TOKENS
    window = getattr(layer, "sliding_window", None)
    return CacheLayer(keys + more, values, window, num_heads=layer.keys.shape[1])
