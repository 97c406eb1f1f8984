"""The architectures that are read here, by ``model_type``: one line each."""

from typing import Any, NoReturn

from brimful.models import (
    bert,
    deepseek_v2,
    deepseek_v3,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    switch_transformers,
    t5,
)
from brimful.models.architecture import Architecture

_MODULES = (
    bert, gemma2, gpt2, llama, mistral, olmo2, phi3, qwen2, qwen3, t5,
    deepseek_v2, deepseek_v3, gpt_oss, mixtral, qwen3_moe, switch_transformers,
)  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {
    module.ARCHITECTURE.model_type: module.ARCHITECTURE for module in _MODULES
}
"""``generic`` reads others, of which none of this is known."""
MIXTURES = {kind: record for kind, record in ARCHITECTURES.items() if record.experts is not None}
"""Those with experts."""


def _unread(*_given: object) -> NoReturn:
    raise AssertionError("nobody reads this architecture here")


_UNREAD = Architecture(model_type="", read=_unread, layout=_unread, traced={})


def record_of(model_type: str) -> Architecture:
    """Return what is known of an architecture: of one that is not read here a record of nothing."""
    return ARCHITECTURES.get(model_type, _UNREAD)


def named_with(fact: str, value: object = None) -> frozenset[str]:
    """Name the architectures of which a fact of ``Architecture`` has a value; None: any but empty.

    Raises AttributeError: there is no such fact.
    """
    facts = {kind: getattr(record, fact) for kind, record in ARCHITECTURES.items()}
    return frozenset(k for k, own in facts.items() if (own if value is None else own == value))


def type_of_class(config: dict[str, Any]) -> str:
    """Name the architecture whose class a configuration names, whatever it calls itself.

    So Kimi-K2's does, which is of type kimi_k2 and DeepSeek-V3's class. Empty: it names none.
    """
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    classes = {f"{kind.replace('_', '')}forcausallm": kind for kind in ARCHITECTURES}
    return classes.get(str(first).lower(), "")
