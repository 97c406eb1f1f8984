"""Reading prompts and writing tokens, by the steps of ``generate``: the same real and pretended."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache

_PER_TOKEN = ("keys", "values", "indexer_keys")
"""Of a layer, what has an entry for each token, in its last dimension but one."""


def new_cache(model: Any) -> DynamicCache:
    """Return an empty cache of keys and values."""
    return DynamicCache(config=model.config)


def prompts(num_sequences: int, num_tokens: int, place: torch.device) -> torch.Tensor:
    """Return prompts of one token again and again: [sequences, tokens]."""
    return torch.zeros((num_sequences, num_tokens), dtype=torch.int64, device=place)


def next_token(model: Any, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
    """Return the likeliest next token of each sequence: [sequences, 1].

    ``tokens``: [sequences, tokens], what is new to the cache. ``cache``: of keys and values; it
    grows.
    """
    out = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits = out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
    del out
    return logits.argmax(dim=-1)[:, None]


def grow(cache: Any, *, num_tokens: int) -> None:
    """Let a cache be as it is after decoding that far, without decoding; its values are nothing.

    What a layer keeps of a sequence however long, as a recurrence does, stays as it is.
    """
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", None)
        length = num_tokens if window is None else min(num_tokens, window - 1)
        for name in _PER_TOKEN:
            now = getattr(layer, name, None)
            if not isinstance(now, torch.Tensor):
                continue
            *before, _, width = now.shape
            setattr(layer, name, None)
            like = {"dtype": now.dtype, "device": now.device}
            del now
            setattr(layer, name, torch.zeros((*before, length, width), **like))
        if window is not None:
            layer.cumulative_length = num_tokens


def cache_tensors(cache: Any) -> list[torch.Tensor]:
    """List what a cache holds."""
    held = tree_leaves([vars(layer) for layer in cache.layers])
    return [each for each in held if isinstance(each, torch.Tensor)]
