"""Configurations of models that read images or sounds too, put together of what is known of each.

The registry has their text parts. What else such a model has is what its class fills in, but for a
few sizes that lie in one file, and what hangs on the text part, such as the width that images are
brought to. Only what has exactly the published number of parameters is used.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from brimful.models.encoders import why_other_count
from brimful.models.registry import registry

_FILE = "data/composites.json"
_AUTO = "AutoConfig"
"""A part that may be of any type, which it has to say then."""
_TEXT, _VISION, _WIDTH = "text_config", "vision_config", "out_hidden_size"
_SIZE, _ROWS, _TIED = "hidden_size", "vocab_size", "tie_word_embeddings"
_TOWER, _TOWERS = "vision tower", "towers"
_TWICE, _FURTHER = "embedding twice", "predicts a further token"
"""What a published count has besides, in the registry's words."""


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models whose configurations differ in their text parts alone.

    Attributes:
        model_type: As transformers calls their architecture.
        models: Their names in the registry.
        config: Their configuration, without what the class fills in and what is the registry's.
        processor: Settings that their processors are uploaded with and no class has.
    """

    model_type: str
    models: tuple[str, ...]
    config: dict[str, Any]
    processor: dict[str, Any] = {}


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    families: tuple[_Family, ...]


@cache
def _families() -> dict[str, _Family]:
    file = msgspec.json.decode(files("brimful").joinpath(_FILE).read_bytes(), type=_File)
    return {name: family for family in file.families for name in family.models}


def is_composite(name: str) -> bool:
    """Whether a model of the registry has parts there that are described nowhere but here."""
    why = why_other_count(name)
    return name in _families() or _TOWER in why or _TOWERS in why


def processor_of(name: str) -> dict[str, Any]:
    """Return what a processor of a model of the registry is uploaded with; empty: not known."""
    family = _families().get(name)
    return family.processor if family else {}


def composite_of(name: str) -> dict[str, Any] | None:
    """Return the whole configuration of a model of the registry; None: none that is borne out."""
    family = _families().get(name)
    if family is None:
        return None
    config = _joined(family, registry()[name])
    return config if _is_borne_out(name, config) else None


def _joined(family: _Family, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Put the registry's text part into its family's configuration."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = CONFIG_MAPPING[family.model_type]
    text = {**entry["config"], **family.config.get(_TEXT, {})}
    if kind.sub_configs[_TEXT].__name__ == _AUTO:
        text["model_type"] = entry["model_type"]
    seen = dict(family.config.get(_VISION, {}))
    if hasattr(getattr(kind(), _VISION, None), _WIDTH):
        seen[_WIDTH] = text[_SIZE]
    told = {"model_type": family.model_type, _TEXT: text, _VISION: seen}
    if _TIED in text:
        told[_TIED] = text[_TIED]
    return {**family.config, **told}


def _is_borne_out(name: str, config: Mapping[str, Any]) -> bool:
    """Whether what is built has as many parameters as are published, but for what is named."""
    official = registry()[name]["num_parameters_official"]
    if official is None:
        return False
    model, why = _built(config), why_other_count(name)
    text = config[_TEXT]
    beside = text[_ROWS] * text[_SIZE] if _TWICE in why else 0
    beside += _further(model, text[_SIZE]) if _FURTHER in why else 0
    return _num_parameters(model) + beside == int(official)


def _built(config: Mapping[str, Any]) -> nn.Module:
    """Build a model of shapes alone."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    kind = config["model_type"]
    told = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(kind, **told)
    named = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind]
    factory = getattr(transformers, named if isinstance(named, str) else named[0])
    with _disable_current_modes(), torch.device("meta"):
        model: nn.Module = factory(made)
    return model


def _further(model: nn.Module, width: int) -> int:
    """Count a module that predicts a further token: a block that attends, what joins, three norms.

    Source: ``mtp`` of the checkpoints of Qwen3.5; its class in transformers has none.
    """
    attending = (each for each in model.modules() if hasattr(each, "self_attn"))
    return _num_parameters(next(attending)) + 2 * width * width + 3 * width


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in nn.Module.parameters(module))
