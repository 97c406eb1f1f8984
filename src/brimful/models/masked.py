"""A head that tells hidden tokens, in the place of an encoder's classes.

A configuration says so under ``architectures``, by a name that no published one has: those say
from which class weights were saved, whatever is learnt now.
"""

from typing import Any

_FIELD = "architectures"
_HEAD = ["ForMaskedLM"]


def has_masked_head(config: dict[str, Any]) -> bool:
    """Whether an encoder's configuration was made for telling hidden tokens."""
    return config.get(_FIELD) == _HEAD


def with_masked_head(config: dict[str, Any], *, masked: bool) -> dict[str, Any]:
    """Return an encoder's configuration with a head for hidden tokens, or for classes."""
    if masked == has_masked_head(config):
        return config
    own = {field: value for field, value in config.items() if field != _FIELD}
    return {**own, _FIELD: _HEAD} if masked else own
