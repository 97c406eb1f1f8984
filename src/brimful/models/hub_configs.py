"""Models of the hub whose configuration is known here, though no formula is: speech, images, texts.

What a script loads by their names is built of these on the pretend GPU. How many parameters each
has stands in ``encoders.py``; language models are the registry's.
"""

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

_FILE = "data/hub_configs.json"


class Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one of several repositories has otherwise.

    Attributes:
        architecture: The class that it was uploaded as; empty: as the others.
        config: Keys of its configuration.
    """

    architecture: str = ""
    config: dict[str, Any] = {}


class HubConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as it is published.

    Attributes:
        names: Its repositories.
        model_type: As transformers calls its architecture.
        architecture: The class that it was uploaded as.
        dtype: Of its weights.
        config: Its configuration, without what is its class's default.
        processor: What turns images or sounds into tensors for it; empty: nothing does.
        named: What repositories have otherwise, by their names.
    """

    names: tuple[str, ...]
    model_type: str
    architecture: str
    dtype: str
    config: dict[str, Any]
    processor: dict[str, Any] = {}
    named: dict[str, Named] = {}


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    models: dict[str, HubConfig]


@cache
def hub_configs() -> dict[str, HubConfig]:
    """Return all that are known, by their keys."""
    return msgspec.json.decode(files("brimful").joinpath(_FILE).read_bytes(), type=_File).models


def find_hub_config(text: str) -> HubConfig | None:
    """Return what a repository holds; None: it is none of these."""
    given = text.strip().lower()
    for found in hub_configs().values():
        for name in found.names:
            if name.lower() == given:
                other = found.named.get(name, Named())
                return msgspec.structs.replace(
                    found,
                    architecture=other.architecture or found.architecture,
                    config={**found.config, **other.config},
                )
    return None
