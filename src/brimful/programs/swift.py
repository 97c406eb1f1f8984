"""ms-swift's ``swift sft``, ``swift pt`` and ``swift rlhf``: their flags are the settings.

Source: ``swift/cli/main.py`` and ``swift/llm/argument/*.py`` of ms-swift 3.9.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.errors import NotInstalledError, UnsupportedError
from brimful.programs.arguments import read_config, said
from brimful.programs.base import Command, Program, flags_of

COMMAND = "swift"
VERBS: Mapping[str, Mapping[str, Any]] = {
    "sft": {"loss_scale": "default"},
    "pt": {"loss_scale": "all"},
    "rlhf": {"rlhf_type": "dpo"},
}
"""What a verb says that its flags may say otherwise."""


def program(command: Command, world_size: int | None) -> Program:
    """Refuse to run it.

    Raises NotInstalledError: its settings are planned, and it is not run by this version.
    """
    del world_size
    verb = " ".join(command.arguments[:1])
    raise NotInstalledError(f"{COMMAND} {verb} is not run by this version")


def settings_of(command: Command) -> dict[str, Any]:
    """Return the arguments of a command line, and of the file behind its verb.

    Raises UnsupportedError: it trains nothing that is read here.
    """
    verb, *rest = command.arguments or ("",)
    if verb not in VERBS:
        raise UnsupportedError(
            f"{COMMAND} {verb} is not read by this version; give {COMMAND} sft, pt or rlhf"
        )
    named = rest and not rest[0].startswith("--")
    config = read_config(Path(rest.pop(0))) if named else {}
    typed = flags_of(rest, f"{COMMAND} {verb}").values
    return {
        **VERBS[verb],
        **config,
        **{flag.removeprefix("--"): said(given) for flag, given in typed},
    }
