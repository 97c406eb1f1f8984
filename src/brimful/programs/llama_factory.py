"""LLaMA-Factory's ``llamafactory-cli train``: its own program, from the YAML that it is given.

What needs files is replaced, as for TRL: rows are mock rows, each as long as a row may be; nothing
is saved or logged elsewhere; two steps are run, of at most two micro-batches.

Source: ``src/llamafactory/{launcher,hparams/*}.py`` and ``data/README.md`` of LLaMA-Factory 0.9.5.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from brimful.errors import InputError, NotInstalledError, UnsupportedError
from brimful.programs.arguments import read_arguments, resolved, script_of, whole
from brimful.programs.base import FOLDER, Command, Program, Rank
from brimful.programs.mock_rows import few_steps, few_words, rows_file
from brimful.text.escaping import yaml_text

COMMAND = "llamafactory-cli"
_PACKAGE, _CONFIG, _ROWS = "llamafactory", "train.yaml", "rows"
_KINDS = {"pt": "text", "sft": "messages", "dpo": "preference"}
"""Rows of a stage."""
_LENGTH, _MICRO_BATCH = 2048, 8
"""Its own ``cutoff_len``, and the Trainer's rows of a device."""
_NOT_TAKEN = frozenset({
    "dataset", "eval_dataset", "media_dir", "streaming", "max_samples", "val_size",
    "tokenized_path", "eval_steps", "num_train_epochs", "resume_from_checkpoint", "warmup_ratio",
    "overwrite_cache",
    "preprocessing_num_workers", "dataloader_num_workers", "plot_loss", "use_swanlab",
})  # fmt: skip
"""What is data, or of schedules and logs."""


def program(command: Command, world_size: int | None) -> Program:
    """Return what is run for a command line: ``llamafactory-cli train FILE key=value``.

    ``world_size``: processes, where that is asked for.
    """
    verb, *rest = command.arguments or ("",)
    if verb != "train":
        raise InputError(f"{COMMAND} {verb} is not run by this version; give {COMMAND} train FILE")
    return program_of(read_arguments(rest), world_size or command.num_processes or 1)


def program_of(content: Mapping[str, Any], world_size: int) -> Program:
    """Return what is run for the YAML's content.

    Raises InputError: LLaMA-Factory is not installed, or a size is no number.
    """
    if find_spec(_PACKAGE) is None:
        raise NotInstalledError(
            "LLaMA-Factory runs here as it is, and is not installed; pip install llamafactory"
        )
    stage = str(content.get("stage", "sft"))
    if stage not in _KINDS:
        raise UnsupportedError(f"stage={stage} is not run by this version; use pt, sft or dpo")
    told = {name: value for name, value in content.items() if name not in _NOT_TAKEN}
    length = whole(told, "cutoff_len", _LENGTH)
    data = {"dataset_dir": FOLDER, "dataset": _ROWS, "overwrite_output_dir": True}
    changed = few_steps({**told, **resolved(told), **data, "do_train": True})
    micro_batch = whole(told, "per_device_train_batch_size", _MICRO_BATCH)
    rows = rows_file(
        _KINDS[stage],
        num_rows=micro_batch * changed["gradient_accumulation_steps"] * world_size,
        num_tokens=length,
    )
    return Program(
        name=f"LLaMA-Factory {version(_PACKAGE)}'s {stage}",
        argv=(script_of(_PACKAGE, "launcher.py"), f"{FOLDER}/{_CONFIG}"),
        world_size=world_size,
        ranks=(Rank(0, "every GPU does the same"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1"},
        notes=(few_words(length),),
        files=(
            (_CONFIG, yaml_text(changed)),
            ("dataset_info.json", json.dumps({_ROWS: _info(stage, rows[0])})),
            rows,
        ),
    )


def _info(stage: str, file: str) -> Mapping[str, Any]:
    """Say how rows are laid out, in the words of its ``dataset_info.json``."""
    if stage == "pt":
        return {"file_name": file, "columns": {"prompt": "text"}}
    if stage == "dpo":
        columns = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
        return {"file_name": file, "ranking": True, "columns": columns}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user",
            "assistant_tag": "assistant"}  # fmt: skip
    return {
        "file_name": file,
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": tags,
    }
