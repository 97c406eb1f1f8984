"""Models that a file of another program describes by their sizes: known while the process lasts.

Such a file names no model, and no folder holds its configuration; a plan holds it in full.
"""

from collections.abc import Mapping
from typing import Any

_DESCRIBED: dict[str, dict[str, Any]] = {}


def describe(name: str, config: Mapping[str, Any]) -> None:
    """Have a name mean a configuration, as a config.json has it."""
    _DESCRIBED[name] = dict(config)


def described(name: str) -> dict[str, Any] | None:
    """Return the configuration that a name was given; None: it was given none."""
    return _DESCRIBED.get(name)
