"""Which model a builder of torchtune's makes, by the rule that its names follow.

``torchtune.models.FAMILY.[q]lora_FAMILY_SIZE[_KIND]``: points are underscores (``qwen2_5_1_5b`` of
``qwen2_5`` is ``qwen2.5-1.5b``), and where the module is of several families (``smol``) the builder
begins with its own (``smollm2_1_7b``).

Source: ``torchtune/models/*/_model_builders.py`` of commit bd2a0fc7.
"""

import re
from collections.abc import Mapping
from typing import Any

from brimful.errors import UnknownNameError
from brimful.models.names import find

COMPONENT = "_component_"
_MODELS = ("model", "policy_model")
"""Sections that say what trains; PPO's is the second."""
_ADAPTED = re.compile(r"q?lora_")
_FOUR_BITS = "qlora_"
_POINT = re.compile(r"(?<=\d)_(?=\d)")
_SIZE_POINT = re.compile(r"(?<![a-z0-9])(\d+)_(\d+[bm])(?![a-z0-9])")


def built(content: Mapping[str, Any]) -> str:
    """Return the builder of the model that trains; empty: none is named."""
    parts = (content.get(section) for section in _MODELS)
    found = (part.get(COMPONENT) for part in parts if isinstance(part, dict))
    return next((str(each) for each in found if each), "")


def takes_lora(builder: str) -> bool:
    """Whether a builder puts adapters beside a model."""
    return _ADAPTED.match(_last(builder)) is not None


def in_four_bits(builder: str) -> bool:
    """Whether a builder holds the base beside its adapters in 4 bits."""
    return _last(builder).startswith(_FOUR_BITS)


def name_of(builder: str) -> str:
    """Return the name that a builder stands for, as people write it.

    ``builder``: a dotted path; of one that says no size, its family and nothing else.
    """
    module, _, last = builder.rpartition(".")
    family = module.rpartition(".")[2]
    own = _ADAPTED.sub("", last, count=1)
    if not own.startswith(f"{family}_"):
        family = own.partition("_")[0]
    kind = _SIZE_POINT.sub(r"\1.\2", own.removeprefix(family).lstrip("_"))
    name = f"{_POINT.sub('.', family)}-{kind}" if kind else family
    return name.replace("_", "-")


def known_model(builder: str) -> str:
    """Return the known model that a builder stands for; empty: nobody knows one."""
    name = name_of(builder)
    if "-" not in name:  # a family without a size, whose numbers stand beside it
        return ""
    try:
        return name if find(name) else ""
    except UnknownNameError:
        return ""


def _last(builder: str) -> str:
    return builder.rpartition(".")[2]
