"""What a field of a config.json may hold. Knows no architecture beyond the names of its fields."""

import json
import re
from typing import Any

from brimful.errors import ModelConfigError

MAX_DEPTH = 2000
MAX_WIDTH = 10**6
MAX_VOCAB = 10**7
MAX_POSITIONS = 10**9
"""No published model comes near these (Llama 4 has 10,485,760 positions); more is a slip."""

_HALF = re.compile(r"[\ud800-\udfff]")
_SIZES = {
    "hidden_size": MAX_WIDTH,
    "n_embd": MAX_WIDTH,
    "intermediate_size": MAX_WIDTH,
    "n_inner": MAX_WIDTH,
    "num_hidden_layers": MAX_DEPTH,
    "n_layer": MAX_DEPTH,
    "num_attention_heads": MAX_WIDTH,
    "n_head": MAX_WIDTH,
    "num_key_value_heads": MAX_WIDTH,
    "head_dim": MAX_WIDTH,
    "vocab_size": MAX_VOCAB,
    "max_position_embeddings": MAX_POSITIONS,
    "n_positions": MAX_POSITIONS,
    "sliding_window": MAX_POSITIONS,
    "type_vocab_size": MAX_VOCAB,
    "num_labels": MAX_VOCAB,
    "d_model": MAX_WIDTH,
    "d_kv": MAX_WIDTH,
    "d_ff": MAX_WIDTH,
    "num_layers": MAX_DEPTH,
    "num_decoder_layers": MAX_DEPTH,
    "num_heads": MAX_WIDTH,
    "num_experts": MAX_WIDTH,
    "expert_capacity": MAX_POSITIONS,
    "relative_attention_num_buckets": MAX_POSITIONS,
}
_MAY_BE_NULL = frozenset({
    "num_key_value_heads", "head_dim", "n_inner", "num_decoder_layers", "num_experts",
    "sliding_window",
})  # fmt: skip
_EXPERT_SIZES = {
    "moe_intermediate_size": MAX_WIDTH,
    "num_experts": MAX_WIDTH,
    "num_local_experts": MAX_WIDTH,
    "n_routed_experts": MAX_WIDTH,
    "n_shared_experts": MAX_WIDTH,
    "n_group": MAX_WIDTH,
    "topk_group": MAX_WIDTH,
    "num_experts_per_tok": MAX_WIDTH,
    "decoder_sparse_step": MAX_DEPTH,
    "q_lora_rank": MAX_WIDTH,
    "kv_lora_rank": MAX_WIDTH,
    "qk_nope_head_dim": MAX_WIDTH,
    "qk_rope_head_dim": MAX_WIDTH,
    "v_head_dim": MAX_WIDTH,
}
_NULL_EXPERT_SIZES = frozenset({"q_lora_rank", "n_group", "topk_group"})
"""Null where queries have no latent, and in V2 where experts have no groups."""
_DENSE_FIRST = "first_k_dense_replace"
_SWITCHES = ("tie_word_embeddings", "attention_bias", "mlp_bias", "router_bias")


def check_fields(name: str, config: dict[str, Any]) -> None:
    """Check every field that decides bytes, under the name that it has in the file."""
    if found := _HALF.search(json.dumps(config, ensure_ascii=False, default=str)):
        raise ModelConfigError(
            f"{name} holds {found.group()!a}, half of a character; take it out of its config.json"
        )
    for field, most in _SIZES.items():
        if field in config and not (config[field] is None and field in _MAY_BE_NULL):
            _check_size(name, field, config[field], most)
    for field in _SWITCHES:
        if field in config and type(config[field]) is not bool:
            raise ModelConfigError(f"{name} has {field}={config[field]!r}; write true or false")


def check_experts(name: str, config: dict[str, Any]) -> None:
    """Check the fields of a mixture of experts of ours; other architectures use these otherwise."""
    for field, most in _EXPERT_SIZES.items():
        if field in config and not (config[field] is None and field in _NULL_EXPERT_SIZES):
            _check_size(name, field, config[field], most)
    if _DENSE_FIRST in config:
        _check_size(name, _DENSE_FIRST, config[_DENSE_FIRST], MAX_DEPTH, least=0)
    blocks = config.get("mlp_only_layers") or []
    if not isinstance(blocks, list) or any(type(block) is not int for block in blocks):
        raise ModelConfigError(
            f"{name} has mlp_only_layers={blocks!r}; give a list of whole numbers, such as [0, 1]"
        )


def _check_size(name: str, field: str, size: Any, most: int, *, least: int = 1) -> None:
    # bool is an int to Python and a slip of the pen in a config.json.
    if type(size) is not int or not least <= size <= most:
        shown = repr(size) if len(repr(size)) < 40 else f"{repr(size)[:20]}..."  # noqa: PLR2004
        raise ModelConfigError(
            f"{name} has {field}={shown}; it must be a whole number from {least} to {most}"
        )
