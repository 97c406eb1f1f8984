"""torchtitan's ``torchtitan.train``: its own trainer, from a module of configurations and flags.

Its configurations are functions of Python, which it imports itself. What needs files is replaced
(``steps/torchtitan_step.py``): rows are tokens in memory, each as long as a row may be; the
tokenizer is made on the spot; two steps are run, of at most two micro-batches.

Source: ``torchtitan/train.py``, ``trainer.py``, ``config/manager.py`` and ``run_train.sh`` of
torchtitan 0.3.0.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from brimful.errors import InputError
from brimful.programs.base import FOLDER, STEPS, Command, Program, Rank, flags_of

MODULE, SCRIPT = "torchtitan.train", "run_train.sh"
_PACKAGE, _STEP = "torchtitan", "torchtitan_step.py"
_STAGES = "--parallelism.pipeline_parallel_degree"
_NEEDED = ("MODULE", "CONFIG")
"""Variables of its shell script, and so its flags."""
_NODE = "NGPU"
_NOTE = (
    "2 steps of at most 2 micro-batches on mock rows of one document each: no data, checkpoint or "
    "log is read or written"
)
_TORCH = (
    "torchtitan 0.3 is written for PyTorch from 2.14 on: with 2.13 parameters are sharded as "
    "DTensors (spmd_backend partial_dtensor), of the same bytes"
)
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


def program(command: Command, world_size: int | None) -> Program:
    """Return what is run for ``-m torchtitan.train --module M --config C ...`` or its shell script.

    Args:
        command: As it was given; of the script, variables stand before it.
        world_size: Processes, where that is asked for.

    Raises:
        InputError: It names no configuration, or torchtitan is not installed.
    """
    arguments = [*_of_variables(command), *command.arguments]
    flags = flags_of([word for word in arguments if not _is_choice(word)], MODULE)
    for name in _NEEDED:
        flag = f"--{name.lower()}"
        if not flags.text(flag):
            raise InputError(
                f"torchtitan was given no {flag}; say {MODULE} --module llama3 --config llama3_8b"
            )
    told = command.environment.get(_NODE, "")
    node = int(told) if told.isdecimal() and int(told) else 1
    size = world_size or command.num_processes or node
    num_stages = flags.first(_STAGES, default=1)
    return program_of(arguments, world_size=size, num_stages=num_stages)


def _of_variables(command: Command) -> Iterator[str]:
    if command.script.endswith(SCRIPT):
        for name in _NEEDED:
            if command.environment.get(name):
                yield from (f"--{name.lower()}", command.environment[name])


def _is_choice(word: str) -> bool:
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

    Args:
        arguments: ``--module``, ``--config`` and what stands over that.
        world_size: Processes.
        num_stages: Of a pipeline, the outermost axis of its world.
        module: A file of configurations and its text, which is written beside.

    Raises:
        InputError: torchtitan is not installed, or the stages do not divide the processes.
    """
    if find_spec(_PACKAGE) is None:
        raise InputError(
            f"torchtitan runs here as it is, and is not installed; pip install {_PACKAGE}"
        )
    if world_size % num_stages:
        raise InputError(
            f"{num_stages} stages of a pipeline do not divide {world_size} processes; "
            f"give another --world-size"
        )
    each = world_size // num_stages
    ranks = [Rank(n * each, f"stage {n + 1} of {num_stages}") for n in range(num_stages)]
    files = (("tokenizer.json", json.dumps(_TOKENIZER)), *([module] if module else []))
    return Program(
        name=f"torchtitan {_version()}'s trainer",
        argv=(str(STEPS / _STEP), FOLDER, str(num_stages), *arguments),
        world_size=world_size,
        ranks=tuple(ranks) if num_stages > 1 else (Rank(0, "every GPU does the same"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1"},
        notes=(_NOTE, _TORCH),
        files=files,
    )


def _version() -> str:
    try:
        return version(_PACKAGE)
    except PackageNotFoundError:  # a checkout on the path
        return "of a checkout"
