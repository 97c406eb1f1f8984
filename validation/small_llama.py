"""What the small decoders of several parts have in common; each part says how wide and deep."""

from typing import Any

SMALL_LLAMA: dict[str, Any] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
