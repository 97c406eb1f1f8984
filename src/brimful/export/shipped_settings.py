"""Settings of DeepSpeed that other programs bring along, known by their files' names.

A file of LLaMA-Factory or Axolotl names one of them by its place in that program's checkout.
"""

from functools import cache
from importlib import resources
from typing import Any

import msgspec

_FILE = "data/deepspeed_files.json"


class Shipped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program's own file says.

    Attributes:
        name: The end of its path.
        settings: Those that this version reads.
        source: Where they were read.
    """

    name: str
    settings: dict[str, Any]
    source: str


def shipped(name: str) -> Shipped | None:
    """Return a program's own file."""
    ending = f"/{name}".replace("\\", "/")
    return next((each for each in _all() if ending.endswith(f"/{each.name}")), None)


@cache
def _all() -> tuple[Shipped, ...]:
    data = resources.files("brimful").joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=tuple[Shipped, ...])
