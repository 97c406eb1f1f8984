"""Scripts on top of transformers' Trainer: the flags of ``HfArgumentParser`` are its settings.

``python run_clm.py --per_device_train_batch_size 4 --bf16 ...`` says what a file of its arguments
does, and is read as that is (``export.read_trainer``).

Source: ``transformers/hf_argparser.py`` of 5.23.0: each field is a flag of its name, with hyphens
too, and a switch stands alone or before true or false.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.programs.arguments import scalar
from brimful.programs.base import Command, flags_of

_OWN = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"})
"""Flags by which a script is known to have the Trainer's."""
_ENGINE, _FILE, _STAGE = "deepspeed", "deepspeed_config", "zero_stage"


def is_of_trainer(command: Command) -> bool:
    """Whether a command line runs a script that takes the Trainer's arguments."""
    named = {_name(word.partition("=")[0]) for word in command.arguments if word.startswith("--")}
    is_module = "." in command.script and "/" not in command.script
    return (is_module or Path(command.script).suffix == ".py") and bool(_OWN & named)


def settings_of(command: Command) -> Mapping[str, Any]:
    """Return the arguments of a command line.

    Raises InputError: it begins with what belongs to no flag.
    """
    given = flags_of(command.arguments, Path(command.script).name).values
    read = {_name(flag): [scalar(word) for word in words] for flag, words in given}
    said = {
        name: True if not words else words[0] if len(words) == 1 else words
        for name, words in read.items()
    }
    if _FILE in said and said.get(_ENGINE) in {True, None}:
        said[_ENGINE] = said.pop(_FILE)
    elif _STAGE in said:
        said |= {_ENGINE: _engine(said)}
    return said


def _engine(said: dict[str, Any]) -> dict[str, Any]:
    """Return DeepSpeed's settings as DeepSpeed-Chat's flags make them.

    Source: ``get_train_ds_config`` of ``dschat/utils/ds_utils.py``, DeepSpeedExamples.
    """
    half = str(said.pop("dtype", "fp16"))
    zero: dict[str, Any] = {"stage": said.pop(_STAGE)}
    if said.pop("offload", False):
        zero |= {f"offload_{what}": {"device": "cpu"} for what in ("param", "optimizer")}
    return {"zero_optimization": zero, half: {"enabled": True}}


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
