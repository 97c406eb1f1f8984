"""Which model the ``model_config`` of a nanotron file describes, as a config.json says it.

Source: ``src/nanotron/config/models_config.py``, ``models/{llama,qwen,starcoder2}.py`` and
``nn/moe.py`` of nanotron's commit 2411b022, whose defaults stand in for what a file does not say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.errors import FileFormatError, UnknownNameError, UnsupportedError
from brimful.models.described import describe
from brimful.models.names import find

SECTION = "model_config"
_QWEN, _STARCODER = "is_qwen2_config", "is_starcoder2_config"
_READ = {"is_llama_config": "llama", _QWEN: "qwen2", _STARCODER: "starcoder2"}
"""By the switch that says of which kind a configuration is."""
_SIZES: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "max_position_embeddings": 2048,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
_STARCODER_SIZES: dict[str, Any] = {
    "vocab_size": 49280, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "max_position_embeddings": 4096, "rope_theta": 10000,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "num_experts": 8, "top_k": 2, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "enable_shared_expert": False, "layers": [-1],
}  # fmt: skip


def name_of(path: Path, content: Mapping[str, Any]) -> str:
    """Return by which name a file's model is known from now on: the file's, if that is free.

    Raises UnsupportedError: it is none that this version reads.
    """
    try:
        is_free = find(path.stem) is None
    except UnknownNameError:
        is_free = True
    name = path.stem if is_free else f"nanotron-{path.stem}"
    describe(name, config_of(path, content))
    return name


def config_of(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's model as a config.json has it.

    Raises FileFormatError: a size is no number. Raises UnsupportedError: it is none that this
    version reads.
    """
    given: Mapping[str, Any] = content["model"][SECTION]
    switch = next((key for key in given if key.startswith("is_") and given[key] is True), _QWEN)
    if switch not in _READ:
        kind = switch.removeprefix("is_").removesuffix("_config")
        raise UnsupportedError(
            f"{path}: model.{SECTION} is of nanotron's {kind}, which this version does not read; "
            f"give MODEL beside it, one that is as large"
        )
    config = _starcoder(given) if switch == _STARCODER else _llama(given, is_qwen=switch == _QWEN)
    words = config["vocab_size"]
    if type(words) is not int or words < 1:  # -1 is that of the data
        raise FileFormatError(
            f"{path}: model.{SECTION}.vocab_size is no number of tokens; give that of the tokenizer"
        )
    degrees = content.get("parallelism")
    tp = degrees.get("tp", 1) if isinstance(degrees, dict) else 1
    multiple = tp * content["model"].get("make_vocab_size_divisible_by", 1)
    if type(multiple) is int and multiple > 0:
        config["vocab_size"] = -(-words // multiple) * multiple
    return config


def _filled(given: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: given.get(key, usual) for key, usual in sizes.items()}
    return {key: value for key, value in found.items() if value is not None}


def _llama(given: Mapping[str, Any], *, is_qwen: bool) -> dict[str, Any]:
    """Return a decoder of Llama's parts; of Qwen's switches biases and experts change its sizes."""
    config = _filled(given, _SIZES)
    experts = given.get("moe_config") if is_qwen else None
    if not isinstance(experts, dict):
        has_bias = is_qwen and given.get("attention_bias", False)
        return {"model_type": "qwen2" if has_bias else "llama", **config}
    told = _filled(experts, _EXPERTS)
    sizes = {"num_experts_per_tok": told["top_k"]}
    if not told["enable_shared_expert"]:
        width = told["moe_intermediate_size"]
        sizes |= {"num_local_experts": told["num_experts"], "intermediate_size": width}
        return {"model_type": "mixtral", **config, **sizes}
    same = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")
    sizes |= {key: told[key] for key in same}
    if told["layers"] != [-1]:
        every = range(config["num_hidden_layers"])
        sizes["mlp_only_layers"] = [block for block in every if block not in told["layers"]]
    sizes["qkv_bias"] = bool(given.get("attention_bias", False))
    return {"model_type": "qwen2_moe", **config, **sizes}


def _starcoder(given: Mapping[str, Any]) -> dict[str, Any]:
    config = _filled(given, _STARCODER_SIZES)
    width = given.get("intermediate_size") or 4 * config["hidden_size"]
    heads = given.get("num_kv_heads") if given.get("grouped_query") else 1
    return {
        "model_type": "starcoder2",
        **config,
        "intermediate_size": width,
        "num_key_value_heads": heads,
    }
