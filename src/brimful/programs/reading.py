"""Reading what ``--from`` is given: a command line of a program that is known, or its YAML."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from brimful.errors import FileFormatError, InputError
from brimful.programs import (
    axolotl,
    llama_factory,
    megatron,
    nemo,
    swift,
    torchtitan,
    torchtune,
    trl,
)
from brimful.programs.base import Command, Program
from brimful.text.escaping import split_words
from brimful.values.plan import load_yaml

PROGRAMS: dict[str, Callable[[Command, int | None], Program]] = {
    **dict.fromkeys(megatron.SCRIPTS, megatron.program),
    trl.COMMAND: trl.program,
    llama_factory.COMMAND: llama_factory.program,
    axolotl.COMMAND: axolotl.program,
    torchtune.COMMAND: torchtune.program,
    swift.COMMAND: swift.program,
    **dict.fromkeys(
        (torchtitan.MODULE, torchtitan.SCRIPT, torchtitan.OLD_SCRIPT), torchtitan.program
    ),
}
"""By the name of the script or the command."""
_MODULES: dict[str, tuple[str, ...]] = {
    **{f"{trl.COMMAND}.scripts.{kind}": (trl.COMMAND, kind) for kind in trl.READ},
    **{f"{swift.COMMAND}.cli.{verb}": (swift.COMMAND, verb) for verb in swift.VERBS},
    f"{axolotl.COMMAND}.cli.train": (axolotl.COMMAND, "train"),
    "llamafactory.cli": (llama_factory.COMMAND,),
}
"""What their commands start, which other launchers start by its name or its file."""
_OF_FACTORY = frozenset({"--stage", "--finetuning_type"})
"""Flags of LLaMA-Factory's own script, which has been of several names."""
_BY_FLAG = dict.fromkeys(torchtitan.FILE_FLAGS, torchtitan.program)
"""By a flag: scripts of any name."""
_PER_NODE, _NODES, _SEEN = "NPROC_PER_NODE", "NNODES", "CUDA_VISIBLE_DEVICES"
_ALL_SEEN = frozenset({
    "accelerate", "axolotl", "deepspeed", "llamafactory-cli", "torchrun", "trl",
})  # fmt: skip
"""What starts a process for each GPU that it sees."""
_ARGUMENTS, _VARIABLES = "MODEL_ARGS", "ENV_VARS"
"""Keys of a YAML of arguments: a mapping of flags, and one of variables."""
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WORDS = re.compile(r"\[[^\]]* [^\]]*\]|\[\w+\]")
"""Words in brackets: several, or one; numbers with commas alone are one value."""
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?")
_YAML = frozenset({".yaml", ".yml"})


def is_program(text: str) -> bool:
    """Whether a text is a command line of a program that is known here, and no file's name."""
    words = text.split()
    is_named = any(
        Path(word).name in PROGRAMS or word.partition("=")[0] in _BY_FLAG or _started_by(word)
        for word in words
    )
    return is_named or _OF_FACTORY.issubset(words)


def read_program(text: str, world_size: int | None) -> Program:
    """Read a command line, or a YAML of arguments, alone or behind the script.

    ``world_size``: processes, where that is asked for; None: as the command line says. Raises
    FileFormatError: the YAML has no arguments.
    """
    command = read_command(text)
    read = program_reader(command)
    if read is None:
        known = ", ".join(sorted(PROGRAMS))
        raise InputError(
            f"--from runs {known} or a YAML of its arguments, and was given {command.script}; any "
            f"other script runs by brimful pretend -- {command.script}"
        )
    found = read(command, world_size)
    return replace(found, environment={**found.environment, **command.environment})


def program_reader(command: Command) -> Callable[[Command, int | None], Program] | None:
    """Return what reads a command line of a program that is known; None: it is none."""
    by_flag = (_BY_FLAG.get(word.partition("=")[0]) for word in command.arguments)
    return PROGRAMS.get(Path(command.script).name) or next(filter(None, by_flag), None)


def read_command(text: str) -> Command:
    """Take apart what was typed, whatever program it names.

    ``text``: a command line, or a YAML of arguments, alone or behind the script. Raises InputError:
    it cannot be read. Raises FileFormatError: the YAML has no arguments.
    """
    return _of_yaml(Path(text)) if is_arguments(text) else _of_line(text)


def is_arguments(text: str) -> bool:
    """Whether a text is a YAML of a program's arguments, and no command line."""
    # A path of a YAML may have spaces; a script before it makes a command line of it.
    is_line = any(Path(word).suffix == ".py" for word in text.split())
    return Path(text).suffix in _YAML and not is_line and not is_program(text)


def holds_arguments(text: str) -> bool:
    """Whether a text names a YAML of Megatron-LM's arguments, or of NeMo's."""
    if not is_arguments(text):
        return False
    try:
        content = load_yaml(Path(text), last_counts=True)
    except (FileFormatError, OSError):
        return False
    is_ours = isinstance(content, dict) and isinstance(content.get(_ARGUMENTS), dict)
    return is_ours or nemo.is_config(content)


def _of_line(text: str) -> Command:
    try:
        words = split_words(text)
    except ValueError as error:
        raise InputError(f"--from {text!r} is no command line: {error}") from error
    variables: dict[str, str] = {}
    while words and _ASSIGNED.fullmatch(words[0]) and not words[0].startswith("-"):
        name, _, variables[name] = words.pop(0).partition("=")
    if not words:
        raise InputError("--from names no program; give its command line, or a YAML of arguments")
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()  # launchers import torch
    from brimful.pretend.launchers import MODULE_FLAG, UncountedError
    from brimful.pretend.scripts import launched

    num: int | None = None
    environment: Mapping[str, str] = {}
    launcher = ""
    try:
        program, num, launcher, environment, finds = launched(words)
        num = None if finds else num
    except UncountedError as error:
        program = error.program
    if program[:1] == [MODULE_FLAG]:
        program = program[1:]
    if not program:
        raise InputError(f"--from {text!r} names no script; give one")
    if num is None:
        num, launcher = _seen(words, {**environment, **variables})
    program = _command_of(program)
    if len(program) == 2 and Path(program[1]).suffix in _YAML:  # noqa: PLR2004 - and its arguments
        read = _of_yaml(Path(program[1]))
        return Command(
            program[0], read.arguments, {**environment, **read.environment, **variables}, num
        )
    found = {**environment, **variables}
    return Command(program[0], tuple(program[1:]), found, num, launcher=launcher)


def _seen(words: Sequence[str], variables: Mapping[str, str]) -> tuple[int | None, str]:
    """Return how many processes variables say, and which; None: they say nothing of them.

    Who starts a process for each GPU that it sees is told which it sees; what is started without a
    launcher is one process, unless it starts some itself.
    """
    each = variables.get(_PER_NODE, "")
    if each.isdecimal() and int(each):
        nodes = variables.get(_NODES, "1")
        num = int(each) * (int(nodes) if nodes.isdecimal() and int(nodes) else 1)
        return num, f"{_PER_NODE}={each}" + (f" x {_NODES}={nodes}" if num > int(each) else "")
    seen = variables.get(_SEEN, "")
    num = len([each for each in seen.split(",") if each.strip()])
    is_all = bool({Path(word).name for word in words[:3]} & _ALL_SEEN)
    return (num, f"{_SEEN}={seen}") if num == 1 or (num and is_all) else (None, "")


def _command_of(program: list[str]) -> list[str]:
    """Return the command that starts a module or a script which was started by its name."""
    script, *rest = program
    if found := _started_by(script):
        return [*found, *rest]
    if Path(script).suffix == ".py" and _OF_FACTORY.issubset(rest):
        return [llama_factory.COMMAND, "train", *rest]
    return program


def _started_by(word: str) -> tuple[str, ...]:
    """Return the command that starts a module, or the file of one; nothing of any other word."""
    dotted = word.removesuffix(".py").replace("/", ".")
    return next(
        (each for name, each in _MODULES.items() if f".{dotted}".endswith(f".{name}")),
        (),
    )


def _of_yaml(path: Path) -> Command:
    try:
        content = load_yaml(path, last_counts=True)  # as argparse takes the last of two flags
    except OSError as error:
        raise InputError(f"{path} cannot be read; check the path") from error
    if nemo.is_config(content):
        return nemo.command_of(content, megatron.SCRIPT, path.name)
    flags = content.get(_ARGUMENTS) if isinstance(content, dict) else None
    if not isinstance(flags, dict):
        raise FileFormatError(
            f"{path} has no {_ARGUMENTS}, a mapping of flags to values, and is no configuration of "
            f"NeMo (model, trainer); give a command line instead"
        )
    variables = content.get(_VARIABLES) or {}
    if not isinstance(variables, dict):
        raise FileFormatError(f"{path} has {_VARIABLES} that is no mapping of names to values")
    plain = {str(k): str(v) for k, v in variables.items() if "$" not in str(v)}
    arguments = [word for flag, value in flags.items() for word in _words(str(flag), value)]
    # A YAML of a checkout of the program's own belongs to a script of that.
    script = megatron.script_of(path.resolve().parents, {str(k): v for k, v in flags.items()})
    return Command(script, tuple(arguments), plain, None)


def _words(flag: str, value: Any) -> list[str]:
    """Return a flag as it is typed: alone, or with its values."""
    if value is True or (isinstance(value, str) and value.strip() == "true"):
        return [flag]
    if value is False or value is None or value == "":
        return []
    if isinstance(value, list):
        return [flag, *map(str, value)]
    text = str(value).strip()
    if _WORDS.fullmatch(text):
        return [flag, *text[1:-1].replace(",", " ").split()]
    words = text.split()
    are_numbers = len(words) > 1 and all(_NUMBER.fullmatch(word) for word in words)
    return [flag, *words] if are_numbers else [flag, text]
