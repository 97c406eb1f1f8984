"""torchtitan's own configurations by name, and what a command line says over them.

What comes out is the content of one of its TOML files, of which releases up to 0.2 have one:
``export/read_torchtitan.py`` reads it.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from brimful.errors import UnsupportedError
from brimful.programs.arguments import said, scalar
from brimful.programs.base import Command, flags_of
from brimful.programs.torchtitan import (
    FILE_FLAGS,
    LAUNCH,
    MODULE,
    allocator_of,
    is_choice,
    read_toml,
    words_of,
)

_FILE = "data/torchtitan_configs.json"
_TRAINING, _AGAIN = "training", "activation_checkpoint"
_TOKENS, _STEP, _CONTEXT = (
    "num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_train_step",
    "max_context_length",
)
"""How later releases say batches: in tokens; and how long a row is."""
_MODES = ("full", "selective", "none")


def settings_of(command: Command) -> Mapping[str, Any]:
    """Return what a command line of torchtitan says, in the sections of its TOML.

    Raises InputError: it cannot be read. Raises UnsupportedError: its configuration is none of
    those that are known here.
    """
    words = words_of(command)
    flags = flags_of([word for word in words if not is_choice(word)], MODULE)
    file = next((text for text in map(flags.text, FILE_FLAGS) if text), "")
    content = read_toml(file) if file else _shipped(flags.text("--config"))
    found = {name: dict(section) for name, section in content.items() if isinstance(section, dict)}
    for flag, given in flags.values:
        section, dot, key = flag.removeprefix("--").replace("-", "_").partition(".")
        if dot:
            found.setdefault(section, {})[key] = said(given, _number)
    for kind in _choices(words):
        found[_AGAIN] = {"mode": kind, "selective_ac_option": "op"}
    _rows(found.setdefault(_TRAINING, {}))
    found.get("job", {}).pop("config_file", None)
    found[LAUNCH] = {"allocator": allocator_of(command)}
    return found


def text_of(content: Mapping[str, Any]) -> str:
    """Write sections as TOML."""
    lines: list[str] = []
    for name, section in content.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8")


def _shipped(name: str) -> Mapping[str, Any]:
    known = _configs()
    if name not in known:
        raise UnsupportedError(
            f"torchtitan's configuration {name or 'without --config'} is not known here; known are "
            f"{', '.join(known)}; install torchtitan to run any"
        )
    return known[name]


@cache
def _configs() -> dict[str, dict[str, Any]]:
    content = files("brimful").joinpath(_FILE).read_bytes()
    configs: dict[str, dict[str, Any]] = msgspec.json.decode(content)["configs"]
    return configs


def _number(word: str) -> Any:
    value = scalar(word)
    try:
        return float(value) if isinstance(value, str) else value  # YAML takes 8e-5 for a text
    except ValueError:
        return value


def _choices(words: list[str]) -> Iterator[str]:
    """Yield which blocks are recomputed, where a word chooses it (activation-checkpoint:full)."""
    for word in filter(is_choice, words):
        section, _, kind = word.replace("-", "_").partition(":")
        if section == _AGAIN:
            yield from (mode for mode in _MODES if kind.startswith(mode))


def _rows(training: dict[str, Any]) -> None:
    """Say batches in rows, each as long as a context."""
    if _CONTEXT in training:
        length = training.pop(_CONTEXT)
        if "seq_len" in training and _TOKENS not in training:
            tokens = training["local_batch_size"] * training["seq_len"]
            training["local_batch_size"] = max(1, tokens // length)
        training["seq_len"] = length
    for theirs, ours in ((_TOKENS, "local_batch_size"), (_STEP, "global_batch_size")):
        if theirs in training:
            tokens = training.pop(theirs)
            training[ours] = max(1, tokens // training["seq_len"]) if tokens > 0 else -1
