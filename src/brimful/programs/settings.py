"""What a command line of a trainer says, as the file of its settings: read without the program."""

import atexit
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from brimful.errors import InputError, UnsupportedError
from brimful.files.writing import is_there
from brimful.programs import (
    axolotl,
    llama_factory,
    swift,
    titan_settings,
    torchtitan,
    torchtune,
    trainer_scripts,
    trl,
)
from brimful.programs.arguments import read_arguments
from brimful.programs.base import Command
from brimful.programs.counted import LAUNCHED
from brimful.programs.launcher_settings import with_launcher
from brimful.programs.reading import is_program, program_reader, read_command
from brimful.programs.shell_scripts import Call, Started, started
from brimful.text.escaping import yaml_text


def settings_file(text: str) -> Path | None:
    """Write what a command line says into a file of settings, which goes when the process ends.

    ``text``: a command line; None is returned for a program that has no such file. Raises
    InputError: it cannot be read. Raises UnsupportedError: its kind of training is not read here.
    """
    command = read_command(text)
    read = _READ.get(Path(command.script).name)
    if read is None and trainer_scripts.is_of_trainer(command):
        read = trainer_scripts.settings_of
    if read is None:
        return None
    content = read(command)
    is_titan = read is titan_settings.settings_of
    if not is_titan:
        content = with_launcher(content, command.environment)
    if command.num_processes is not None and command.launcher:
        counts = {"processes": command.num_processes, "by": command.launcher}
        content = {**content, LAUNCHED: counts}
    name = "torchtitan.toml" if is_titan else f"{Path(command.script).name}.yaml"
    text = titan_settings.text_of(content) if is_titan else yaml_text(dict(content))
    file = Path(_folder()) / name
    file.write_text(text, encoding="utf-8")
    return file


def has_settings(text: str) -> bool:
    """Whether a text is a command line whose settings are read, and no file's name."""
    if is_program(text):
        return True
    return bool(script_of(text)) and trainer_scripts.is_of_trainer(read_command(text))


def read_script(call: Call) -> Started:
    """Return the command line that a script of a shell starts.

    Raises InputError: it starts none that is known. Raises FileFormatError: it is no text.
    """
    for is_known in (_is_read, lambda line: Path(script_of(line)).suffix == ".py"):
        if (found := started(call, is_known)).line:
            return found
    raise InputError(
        f"{call.path} starts no program that trains, as far as it is read without a shell; give "
        f"the command line itself: --from 'swift sft --model ...'"
    )


def _is_read(line: str) -> bool:
    """Whether the command of a line is a program that is known, and no word of another."""
    if not has_settings(line):
        return False
    command = read_command(line)
    if trainer_scripts.is_of_trainer(command):
        return True
    verbs = _VERBS.get(Path(command.script).name)
    verb = next(iter(command.arguments), "")
    return program_reader(command) is not None and (verbs is None or verb in verbs)


def script_of(text: str) -> str:
    """Return the script that a command line of Python starts; empty: a text is none, or a file."""
    is_line = len(text.split()) > 1 and not is_there(text)
    words = text.split()
    is_python = any(Path(word).suffix == ".py" for word in words)
    if not is_line or not (is_python or _MODULES & {*words}):
        return ""
    return read_command(text).script


_MODULES = frozenset({"-m", "--module"})


def name_of(path: Path) -> str:
    """Return how a file of settings is called: one that was written here by its program."""
    is_ours = _folder.cache_info().currsize and path.parent == Path(_folder())
    return path.stem if is_ours else str(path)


@cache
def _folder() -> str:
    folder = tempfile.TemporaryDirectory(prefix="brimful-settings-")
    atexit.register(folder.cleanup)
    return folder.name


def _of_trl(command: Command) -> Mapping[str, Any]:
    kind, content = trl.settings_of(command)
    usual: Mapping[str, Any] = {"dpo": {"loss_type": "sigmoid"}, "grpo": {"num_generations": 8}}
    return {**usual.get(kind, {}), **content}


def _of_words(command: Command) -> Mapping[str, Any]:
    verb, *rest = command.arguments or ("",)
    if verb != "train":
        raise UnsupportedError(
            f"{command.script} {verb} is not read by this version; give train FILE"
        )
    return read_arguments(rest)


_VERBS: Mapping[str, Collection[str]] = {
    trl.COMMAND: trl.READ, swift.COMMAND: swift.VERBS, torchtune.COMMAND: ("run",),
    **dict.fromkeys((llama_factory.COMMAND, axolotl.COMMAND), ("train",)),
}  # fmt: skip
"""Of commands that do other things too, the words behind them that train."""
_READ: dict[str, Callable[[Command], Mapping[str, Any]]] = {
    trl.COMMAND: _of_trl, llama_factory.COMMAND: _of_words, axolotl.COMMAND: _of_words,
    torchtune.COMMAND: torchtune.settings_of, swift.COMMAND: swift.settings_of,
    torchtitan.MODULE: titan_settings.settings_of, torchtitan.SCRIPT: titan_settings.settings_of,
}  # fmt: skip
