"""Which decoders of transformers tensor parallelism cuts, by what their own plans say of layers.

A configuration class says of each layer how a group of devices shares it (``base_model_tp_plan``).
Cut are those of queries, keys and values apart, their product, a gated or a plain MLP and norms of
heads, in blocks that are all of attention. Asks no torch; transformers only of what is not listed.

Source: ``base_model_tp_plan`` in ``transformers/models/*/configuration_*.py`` of 5.23.0.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from brimful.models.generic import encoder_types, known_types, listed
from brimful.process.library_output import quiet_libraries

_BLOCK = "layers.*."
_NEEDED = {
    **{f"{_BLOCK}self_attn.{name}_proj": "colwise" for name in "qkv"},
    f"{_BLOCK}self_attn.o_proj": "rowwise",
    f"{_BLOCK}mlp.up_proj": "colwise",
    f"{_BLOCK}mlp.down_proj": "rowwise",
}
_ALSO = frozenset({f"{_BLOCK}mlp.gate_proj", *(f"{_BLOCK}self_attn.{name}_norm" for name in "qk")})
_ATTENTIONS = frozenset({"full_attention", "sliding_attention"})
_LEARNS = frozenset({"xielu"})
"""Activations with parameters of their own, each of which acts on all features."""
_OF_HEADS = ("head_dim", "num_attention_heads", "num_key_value_heads")
"""Sizes that are those of every block, or the devices' parts are not."""


def is_cut(model_type: str) -> bool:
    """Whether a decoder of ``transformers`` is one whose every matrix is cut."""
    of = listed()
    if model_type in of.modules:
        return model_type in of.cut
    return model_type in known_types() - encoder_types() and _is_planned(model_type)


def cut_types() -> frozenset[str]:
    """Name the model types that the installed ``transformers`` has such plans of."""
    return frozenset(filter(_is_planned, known_types() - encoder_types()))


@cache
def _is_planned(model_type: str) -> bool:
    quiet_libraries()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return False
    kind = CONFIG_MAPPING[model_type]
    if not _cuts_alike(getattr(kind, "base_model_tp_plan", None) or {}):
        return False
    try:
        made: Any = kind()
        for name in _OF_HEADS:
            getattr(made, name, None)
    except Exception:  # noqa: BLE001 - of its own checks, or a size that differs from block to block
        return False
    if getattr(made, "hidden_act", "") in _LEARNS:
        return False
    return {*(getattr(made, "layer_types", None) or ())} <= _ATTENTIONS


def _cuts_alike(plan: Mapping[str, str]) -> bool:
    """Whether a plan cuts a block as Llama's, heads' norms aside, and says of nothing else."""
    is_whole = all(str(plan.get(name)).startswith(way) for name, way in _NEEDED.items())
    return is_whole and {*plan} <= {*_NEEDED, *_ALSO}
