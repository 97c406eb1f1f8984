"""TRL's ``trl sft`` and ``trl dpo``: their own scripts, from the YAML or the flags they are given.

What needs files is replaced: rows are mock rows, each as long as a row may be; nothing is saved or
logged elsewhere; two steps are run, of at most two micro-batches. Models that are not on this
machine need no weights (``pretend.hub_models``).

Source: ``trl/scripts/sft.py``, ``dpo.py`` and ``trainer/*_config.py`` of TRL 1.16.0.
"""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from brimful.errors import InputError, NotInstalledError
from brimful.programs.arguments import read_config, resolved, said, script_of, whole
from brimful.programs.base import FOLDER, Command, Program, Rank, flags_of
from brimful.programs.mock_rows import PLACE, few_steps, few_words, rows_file
from brimful.text.escaping import yaml_text

COMMAND = "trl"
_KINDS = ("sft", "dpo")
READ = (*_KINDS, "grpo")
"""What is run here; and whose settings are read."""
_CONFIG = "config.yaml"
_NOT_TAKEN = frozenset({
    "config", "dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split",
    "dataset_streaming", "datasets", "streaming", "test_split_size", "dataset_text_field",
    "eval_steps", "num_train_epochs", "resume_from_checkpoint", "warmup_ratio", "num_processes",
    "accelerate_config",
})  # fmt: skip
"""What is data, or of schedules and launchers."""
_LENGTH, _MICRO_BATCH = 1024, 8
"""TRL's own ``max_length`` of both, and the Trainer's rows of a device."""


def program(command: Command, world_size: int | None) -> Program:
    """Return what is run for a command line: ``trl sft --config FILE --flag value``.

    ``world_size``: processes, where that is asked for. Raises InputError: it trains nothing that is
    run here, or TRL is not installed.
    """
    kind = command.arguments[0] if command.arguments else ""
    if kind in READ and kind not in _KINDS:
        raise NotInstalledError(f"trl {kind} is not run by this version")
    kind, content = settings_of(command)
    return program_of(kind, content, world_size or command.num_processes or 1)


def settings_of(command: Command) -> tuple[str, dict[str, Any]]:
    """Return the kind of training, and the arguments of a command line and of its file."""
    kind, *rest = command.arguments or ("",)
    if kind not in READ:
        raise InputError(
            f"trl {kind} is not run by this version; give trl sft or trl dpo, or run your own "
            f"script by brimful pretend -- SCRIPT"
        )
    flags = {flag.removeprefix("--"): given for flag, given in flags_of(rest, f"trl {kind}").values}
    config = read_config(Path(flags["config"][0])) if flags.get("config") else {}
    typed = {name: said(given) for name, given in flags.items()}
    return kind, {**config, **typed}


def program_of(kind: str, content: Mapping[str, Any], world_size: int) -> Program:
    """Return what is run for the YAML's content.

    ``kind``: ``sft`` or ``dpo``. Raises InputError: TRL is not installed, or a size is no number.
    """
    if find_spec(COMMAND) is None:
        raise NotInstalledError("TRL runs here as it is, and is not installed; pip install trl")
    told = {name: value for name, value in content.items() if name not in _NOT_TAKEN}
    length = whole(told, "max_length", _LENGTH)
    micro_batch = whole(told, "per_device_train_batch_size", _MICRO_BATCH)
    changed = few_steps({**told, **resolved(told), "dataset_name": PLACE})
    accumulated = changed["gradient_accumulation_steps"]
    rows = "messages" if told.get("assistant_only_loss") else "text"
    file = rows_file(
        rows if kind == "sft" else "preference",
        num_rows=micro_batch * accumulated * world_size,
        num_tokens=length,
    )
    return Program(
        name=f"TRL {version(COMMAND)}'s {kind}.py",
        argv=(script_of(COMMAND, "scripts", f"{kind}.py"), "--config", f"{FOLDER}/{_CONFIG}"),
        world_size=world_size,
        ranks=(Rank(0, "every GPU does the same"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1"},
        notes=(few_words(length),),
        files=((_CONFIG, yaml_text(changed)), file),
    )
