"""torchtitan's ``torchtitan.train``: its own trainer, from a module of configurations and flags.

Its configurations are functions of Python, which it imports itself, or until early 2026 TOML files.
What needs files is replaced (``steps/torchtitan_step.py``, ``steps/torchtitan_toml_step.py``): rows
are tokens in memory, each as long as a row may be; the tokenizer is made on the spot; two steps are
run, of at most two micro-batches.

Source: ``torchtitan/train.py``, ``trainer.py``, ``config/manager.py`` and ``run_train.sh`` of
torchtitan 0.3.0, and ``train.py``, ``config_manager.py`` and the shell scripts of 2024 and 2025.
"""

import json
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from brimful.allocator.config import EXPANDABLE, VARIABLES
from brimful.errors import InputError, NotInstalledError, UnsupportedError
from brimful.programs.base import FOLDER, STEPS, Command, Flags, Program, Rank, flags_of

MODULE, SCRIPT = "torchtitan.train", "run_train.sh"
OLD_SCRIPT, OLD_MAIN = "run_llama_train.sh", "train.py"
"""Its shell script until early 2025, and what that ran."""
FILE_FLAG = "--job.config_file"
"""Names its TOML files, until early 2026."""
LAUNCH = "launch"
"""The section in which a command line says what its launcher set; a TOML file has none."""
_PACKAGE, _STEP, _TOML_STEP = "torchtitan", "torchtitan_step.py", "torchtitan_toml_step.py"
_FILE, _TRAIN_FILE = "CONFIG_FILE", "TRAIN_FILE"
FILE_FLAGS = (FILE_FLAG, FILE_FLAG.replace("_", "-"))
_ALLOCATOR, _OLD_ALLOCATOR = VARIABLES
_AS_THEN = {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
"""Of attention's kernels PyTorch preferred cuDNN's to none before 2.11."""
_STAGES = "--parallelism.pipeline_parallel_degree"
_NEEDED = ("MODULE", "CONFIG")
"""Variables of its shell script, and so its flags."""
_NODE, _USUAL_NODE = "NGPU", 8
_DEGREE, _SECTIONS = "pipeline_parallel_degree", ("parallelism", "experimental")
"""Of a TOML; the section was another until early 2025."""
_NOTE = (
    "2 steps of at most 2 micro-batches on mock rows of one document each: no data, checkpoint or "
    "log is read or written"
)
_TORCH = (
    "torchtitan 0.3 is written for PyTorch from 2.14 on: with 2.13 parameters are sharded as "
    "DTensors (spmd_backend partial_dtensor), of the same bytes"
)
_OF_THEN = (
    "a torchtitan of TOML files is run as with the PyTorch of its day: FSDP's root keeps its "
    "parameters while the loss is computed, attention is not cuDNN's unless it is asked for, and "
    "PYTORCH_ALLOC_CONF of its newer scripts is not heard"
)
_OF_GRAPHS = frozenset({"graph_trainer", "compiler_toolkit"})
"""Experiments whose trainers are others."""
_TOKENIZER: dict[str, object] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}
_END = "</s>"
_OF_WORDS = {
    **_TOKENIZER,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "added_tokens": [
        {
            "id": 1,
            "content": _END,
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
    ],
}
"""A text has as many tokens as words."""
_TOKENIZERS = (
    ("tokenizer.json", json.dumps(_OF_WORDS)),
    ("tokenizer_config.json", json.dumps({"eos_token": _END})),
    ("tokenizer.model", ""),
)


def program(command: Command, world_size: int | None) -> Program:
    """Return what is run for ``-m torchtitan.train``, a ``train.py`` of it, or its shell scripts.

    ``command``: as it was given; of the script, variables stand before it. ``world_size``:
    processes, where that is asked for.
    """
    arguments = words_of(command)
    flags = flags_of([word for word in arguments if not is_choice(word)], MODULE)
    if any(map(flags.has, FILE_FLAGS)):
        return _of_file(command, arguments, flags, world_size)
    for name in _NEEDED:
        flag = f"--{name.lower()}"
        if not flags.text(flag):
            raise InputError(
                f"torchtitan was given no {flag}; say {MODULE} --module llama3 --config llama3_8b"
            )
    if (module := flags.text("--module").partition(".")[0]) in _OF_GRAPHS:
        raise UnsupportedError(
            f"{module} of torchtitan runs whole steps as graphs that passes of its own have "
            "changed, which are not simulated; use a model of torchtitan.models"
        )
    num_stages = flags.first(_STAGES, default=1)
    found = program_of(arguments, world_size=_world(command, world_size), num_stages=num_stages)
    return replace(found, environment={**found.environment, **_of_script(command)})


def _world(command: Command, asked: int | None) -> int:
    """Return the number of processes: as asked for, as the launcher or the script starts them."""
    told = command.environment.get(_NODE, "")
    usual = _USUAL_NODE if _is_script(command) else 1
    node = int(told) if told.isdecimal() and int(told) else usual
    return asked or command.num_processes or node


def _is_script(command: Command) -> bool:
    return command.script.endswith((SCRIPT, OLD_SCRIPT))


def _of_script(command: Command, *, as_then: bool = False) -> dict[str, str]:
    """Return the variables that a shell script sets.

    From August 2025 on it says the newer name, which PyTorch did not hear of expandable segments
    (its issue 183387) until early 2026, when there were no TOML files any longer.
    """
    if not _is_script(command):
        return {}
    script = Path(command.script)
    text = script.read_text("utf-8") if as_then and script.is_file() else _OLD_ALLOCATOR
    return {_ALLOCATOR: EXPANDABLE} if _OLD_ALLOCATOR in text else {}


def allocator_of(command: Command) -> str:
    """Return the settings of the allocator that a command line's processes have."""
    told = {**_of_script(command), **command.environment}
    return next((told[name] for name in VARIABLES if told.get(name)), "")


def _of_file(
    command: Command, arguments: Sequence[str], flags: Flags, world_size: int | None
) -> Program:
    """Return what is run of a torchtitan that is told a TOML file.

    Raises InputError: the file cannot be read, or its stages do not divide the processes.
    """
    name = next(text for text in map(flags.text, FILE_FLAGS) if text)
    content = read_toml(name)
    degrees = [content.get(section, {}).get(_DEGREE, 1) for section in _SECTIONS]
    names = [f"--{section}.{_DEGREE}" for section in _SECTIONS]
    num_stages = flags.first(*names, default=max(degrees))
    size = _world(command, world_size)
    module = ("-m", command.environment.get(_TRAIN_FILE, MODULE))
    script = OLD_MAIN if command.script.endswith(OLD_SCRIPT) else command.script
    train = (script,) if script.endswith(".py") else module
    return Program(
        name=f"torchtitan {_version()}'s trainer",
        argv=(str(STEPS / _TOML_STEP), FOLDER, str(num_stages), *train, *arguments),
        world_size=size,
        ranks=_ranks(size, num_stages),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1", **_AS_THEN, **_of_script(command, as_then=True)},
        notes=(_NOTE, _OF_THEN),
        files=_TOKENIZERS,
    )


def read_toml(name: str) -> dict[str, Any]:
    """Read a file of torchtitan's settings."""
    try:
        return tomllib.loads(Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read as torchtitan's TOML; check the path") from error


def words_of(command: Command) -> list[str]:
    """Return the arguments of a command line, those that its script makes of variables first."""
    return [*_of_variables(command), *command.arguments]


def _of_variables(command: Command) -> Iterator[str]:
    if _is_script(command) and command.environment.get(_FILE):
        yield from (FILE_FLAG, command.environment[_FILE])
    elif command.script.endswith(SCRIPT):
        for name in _NEEDED:
            if command.environment.get(name):
                yield from (f"--{name.lower()}", command.environment[name])


def is_choice(word: str) -> bool:
    """Whether a word chooses a kind of a section, as activation-checkpoint:full does."""
    return ":" in word and not word.startswith("-")


def program_of(
    arguments: Sequence[str],
    *,
    world_size: int,
    num_stages: int,
    module: tuple[str, str] | None = None,
) -> Program:
    """Return what is run for arguments of ``torchtitan.train``.

    ``arguments``: ``--module``, ``--config`` and what stands over that. ``num_stages``: of a
    pipeline, the outermost axis of its world. ``module``: a file of configurations and its text,
    which is written beside. Raises InputError: torchtitan is not installed, or the stages do not
    divide the processes.
    """
    if find_spec(_PACKAGE) is None:
        raise NotInstalledError(
            f"torchtitan runs here as it is, and is not installed; pip install {_PACKAGE}"
        )
    ranks = _ranks(world_size, num_stages)
    files = (("tokenizer.json", json.dumps(_TOKENIZER)), *([module] if module else []))
    return Program(
        name=f"torchtitan {_version()}'s trainer",
        argv=(str(STEPS / _STEP), FOLDER, str(num_stages), *arguments),
        world_size=world_size,
        ranks=ranks,
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1"},
        notes=(_NOTE, _TORCH),
        files=files,
    )


def _ranks(world_size: int, num_stages: int) -> tuple[Rank, ...]:
    """Return one process of each stage."""
    if world_size % num_stages:
        raise InputError(
            f"{num_stages} stages of a pipeline do not divide {world_size} processes; "
            f"give another --world-size"
        )
    each = world_size // num_stages
    ranks = (Rank(n * each, f"stage {n + 1} of {num_stages}") for n in range(num_stages))
    return tuple(ranks) if num_stages > 1 else (Rank(0, "every GPU does the same"),)


def _version() -> str:
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:  # a checkout on the path
        return "of a checkout"
