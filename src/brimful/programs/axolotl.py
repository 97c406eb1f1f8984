"""Axolotl's ``axolotl train``: its own program, from the YAML that it is given.

What needs files is replaced, as for TRL: rows are mock rows that are tokens already, each as long
as a row may be; nothing is saved or logged elsewhere; two steps are run, of at most two
micro-batches.

Source: ``src/axolotl/cli/train.py``, ``utils/schemas/*.py`` and ``docs/dataset-formats`` of
Axolotl 0.19.0.
"""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from brimful.errors import InputError, NotInstalledError, UnsupportedError
from brimful.programs.arguments import read_arguments, resolved, whole
from brimful.programs.base import FOLDER, Command, Program, Rank
from brimful.programs.mock_rows import few_words, num_few, rows_file
from brimful.text.escaping import yaml_text

COMMAND = "axolotl"
_MODULE, _CONFIG = "axolotl.cli.train", "train.yaml"
_MODEL, _LENGTH, _MICRO_BATCH = "base_model", 512, 1
"""Its own ``sequence_len`` and ``micro_batch_size``, where the YAML says none."""
_NOT_TAKEN = frozenset({
    "datasets", "pretraining_dataset", "test_datasets", "dataset_prepared_path", "val_set_size",
    "num_epochs", "warmup_ratio", "saves_per_epoch", "save_steps", "evals_per_epoch", "eval_steps",
    "eval_strategy", "early_stopping_patience", "resume_from_checkpoint", "load_best_model_at_end",
    "auto_resume_from_checkpoints", "hub_model_id", "hub_strategy", "streaming",
    "dataset_processes",
    "wandb_project", "wandb_entity", "wandb_watch", "wandb_name", "wandb_log_model", "use_wandb",
    "mlflow_tracking_uri", "mlflow_experiment_name", "use_mlflow", "use_comet", "use_tensorboard",
})  # fmt: skip
"""What is data, or of schedules and logs."""
_NOT_RUN = ("rl", "deepspeed", "reward_model", "process_reward_model")


def program(command: Command, world_size: int | None) -> Program:
    """Return what is run for a command line: ``axolotl train FILE``.

    ``world_size``: processes, where that is asked for. Raises UnsupportedError: the YAML asks for
    what is not run here.
    """
    verb, *rest = command.arguments or ("",)
    if verb != "train" or len(rest) != 1:
        raise InputError(f"{COMMAND} {verb} is not run by this version; give {COMMAND} train FILE")
    return program_of(read_arguments(rest), world_size or command.num_processes or 1)


def program_of(content: Mapping[str, Any], world_size: int) -> Program:
    """Return what is run for the YAML's content.

    Raises InputError: Axolotl is not installed, or a size is no number.
    """
    if find_spec(COMMAND) is None:
        raise NotInstalledError(
            "Axolotl runs here as it is, and is not installed; pip install axolotl"
        )
    if asked := next((key for key in _NOT_RUN if content.get(key)), None):
        raise UnsupportedError(f"{asked}={content[asked]} of Axolotl is not run by this version")
    told = {name: value for name, value in content.items() if name not in _NOT_TAKEN}
    length = whole(told, "sequence_len", _LENGTH)
    micro_batch = whole(told, "micro_batch_size", _MICRO_BATCH)
    steps = num_few(told)
    rows = rows_file("tokens", num_rows=micro_batch * steps * world_size, num_tokens=length)
    changed = {
        **told,
        **resolved(told, _MODEL),
        "datasets": [{"path": f"{FOLDER}/{rows[0]}", "ds_type": "json", "type": None}],
        "dataset_prepared_path": f"{FOLDER}/prepared",
        "output_dir": f"{FOLDER}/out",
        "max_steps": 2,
        "gradient_accumulation_steps": steps,
        "save_strategy": "no",
        "warmup_steps": 0,
        "val_set_size": 0,
    }
    return Program(
        name=f"Axolotl {version(COMMAND)}'s train",
        argv=("-m", _MODULE, f"{FOLDER}/{_CONFIG}"),
        world_size=world_size,
        ranks=(Rank(0, "every GPU does the same"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1"},
        notes=(few_words(length),),
        files=((_CONFIG, yaml_text(changed)), rows),
    )
