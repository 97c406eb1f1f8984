"""Rotated positions in Megatron-LM's words.

Source: ``core/models/common/embeddings/rotary_pos_embedding.py`` of Megatron-LM 0.20
(``_apply_scaling`` has Llama 3's numbers; a whole factor of interpolation is another argument);
``core/transformer/multi_latent_attention.py``, whose rotation is YaRN's: of a factor of 1 a plain
one. ``modeling_rope_utils.py`` of transformers 5.23.
"""

from collections.abc import Mapping
from typing import Any

from brimful.megatron.by_layer import every_nth, listed
from brimful.megatron.classes import Facts
from brimful.models.spec import ModelSpec

_OF_LLAMA = {
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_OF_YARN = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
"""What Megatron's own code has, where no argument says it."""


def parameters(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration says of its rotation, by either name of the field."""
    found: dict[str, Any] = {}
    for field in ("rope_scaling", "rope_parameters"):
        found |= fields.get(field) or {}
    return found


def words(
    model: ModelSpec, facts: Facts, fields: Mapping[str, Any]
) -> tuple[list[object], list[str]]:
    """Say a model's rotation: its arguments, and what of it none says."""
    if "rope" not in facts.words:
        return [], []
    rope = parameters(fields)
    said: list[object] = []
    if base := rope.get("rope_theta", fields.get("rope_theta")):
        said += ["--rotary-base", int(base)]
    share = rope.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
    if share != 1 and not facts.is_latent:
        said += ["--rotary-percent", share]
    scaled = _scaled(rope, is_latent=facts.is_latent)
    kind = rope.get("rope_type", rope.get("type", "default"))
    left = [f"rope_scaling ({kind}), which no argument says"] if scaled is None else []
    return [*said, *(scaled or ()), *_unrotated(model, fields)], left


def _scaled(rope: Mapping[str, Any], *, is_latent: bool) -> list[object] | None:
    """Say how a rotation is stretched; None: no argument does."""
    factor = rope.get("factor", 1.0)
    match rope.get("rope_type", rope.get("type", "default")):
        case "default":
            return []
        case "llama3" if not is_latent and _are(rope, _OF_LLAMA):
            return ["--use-rope-scaling", "--rope-scaling-factor", factor]
        case "linear" if not is_latent and factor == int(factor):
            return ["--rotary-seq-len-interpolation-factor", int(factor)]
        case "yarn" if is_latent and _are(rope, _OF_YARN):
            return [
                "--rotary-scaling-factor", factor, "--mscale", rope.get("mscale", 1.0),
                "--mscale-all-dim", rope.get("mscale_all_dim", 0.0),
            ]  # fmt: skip
    return None


def _are(rope: Mapping[str, Any], numbers: Mapping[str, float]) -> bool:
    return all(rope.get(name, number) == number for name, number in numbers.items())


def _unrotated(model: ModelSpec, fields: Mapping[str, Any]) -> list[object]:
    """Say which layers rotate nothing: those that a list has as 0, or every n-th."""
    turns = fields.get("no_rope_layers")
    n = fields.get("no_rope_layer_interval")
    if turns:
        without = [not each for each in turns]
    elif n:
        without = [(layer + 1) % n == 0 for layer in range(model.num_layers)]
    else:
        return []
    return ["--no-rope-freq", every_nth(without) or listed(without)] if any(without) else []
