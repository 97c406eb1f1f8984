"""Which keys of a file that nothing here reads could turn a verdict: kernels, offload, plugins.

Names of folders, of data and of logs could not, and stay in the list of what is not read.
"""

import json
from collections.abc import Iterable
from typing import Any

_WORDS = (
    "kernel", "plugin", "converters", "offload", "compile", "fused", "cross_entropy", "tiled",
    "unsloth", "empty_cache", "freeze", "lora", "tune_mm", "galore", "badam", "lisa", "fp8",
    "float8", "quantiz", "parallel", "dropout", "shard", "qat",
)  # fmt: skip
"""Parts of the names of keys that change what is in memory."""
_LISTS = ("plugin", "converters")
"""Of which a list is what is on, and no list of names beside a switch."""
_INERT = (
    "dataloader", "dataset", "eval", "save", "wandb", "preprocessing", "float8.", "compile.",
    "lora_dropout", "lora_bias", "lora_model_dir", "lora_on_cpu", "lora_plus", "loraplus",
)  # fmt: skip
"""How keys begin that have such a part and say nothing of memory on a GPU, or little beside a
switch that is read."""
_DEGREES = ("parallel", "shard")
"""Parts of the names of degrees, of which 1 shares nothing."""
_OF_HOST = ".pin_memory"
"""How keys end that are of the host's memory alone."""
_OFF = ("", "none", "no", "off", "disabled", "false")


def could_matter(unread: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that are on and could change what fits.

    ``unread``: each as ``key=value``, the value in JSON.
    """
    parted = (each.partition("=") for each in unread)
    return tuple(key for key, _, text in parted if _is_of_memory(key) and _is_on(key, text))


def _is_of_memory(key: str) -> bool:
    name = key.lower()
    return (
        any(word in name for word in _WORDS)
        and not name.startswith(_INERT)
        and not name.endswith(_OF_HOST)
    )


def _is_on(key: str, text: str) -> bool:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        return True
    if isinstance(value, list):
        return bool(value) and any(word in key.lower() for word in _LISTS)
    if isinstance(value, str):
        return value.lower() not in _OFF
    is_alone = value == 1 and not isinstance(value, bool) and any(w in key for w in _DEGREES)
    return bool(value) and not is_alone
