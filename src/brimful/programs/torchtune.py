"""torchtune's ``tune run``: what its command line says, as the file of its settings.

It is read and planned by Brimful's own loop (``export/read_torchtune.py``), and not run: its
recipes load a checkpoint before all else.

Source: ``torchtune/_cli/run.py`` and ``torchtune/config/{_parse,_utils}.py`` of torchtune's commit
bd2a0fc7.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from brimful.allocator.config import VARIABLES
from brimful.errors import InputError, NotInstalledError, UnsupportedError
from brimful.programs.arguments import read_config, scalar
from brimful.programs.base import Command, Program

COMMAND = "tune"
_RUN, _CONFIG = "run", "--config"
_COMPONENT, _NONE, _LEFT_OUT = "_component_", "None", "~"
_LEARNS_NOTHING = ("generate", "dev/generate", "eleuther_eval", "quantize")
"""How recipes begin that train nothing."""
_USAGE = "say tune run [--nnodes N] [--nproc_per_node N] RECIPE --config FILE key=value ..."


class _Launched(NamedTuple):
    """What is started.

    Attributes:
        recipe: Its name, or a path.
        arguments: Of the recipe.
        num_processes: That torchrun starts; None: it is not asked to.
    """

    recipe: str
    arguments: Sequence[str]
    num_processes: int | None


def program(command: Command, world_size: int | None) -> Program:
    """Refuse to run it, so that its settings are planned in its place.

    ``world_size``: processes, where that is asked for. Raises InputError: its command line cannot
    be read. Raises UnsupportedError: it trains nothing.
    """
    del world_size
    settings_of(command)
    raise NotInstalledError("tune run is read by this version, and not run as it is")


def settings_of(command: Command) -> Mapping[str, Any]:
    """Return what a command line says, in the sections of its YAML and one of its own.

    Raises InputError: it cannot be read.
    """
    verb, *rest = command.arguments or ("",)
    if verb != _RUN:
        raise UnsupportedError(f"{COMMAND} {verb} is not read by this version; {_USAGE}")
    launched = _launched(rest)
    if launched.recipe.startswith(_LEARNS_NOTHING):
        raise UnsupportedError(
            f"{COMMAND} {_RUN} {launched.recipe} trains nothing, and training is planned here; "
            f"brimful estimate MODEL --task inference says what running a model takes"
        )
    file, words = _parted(launched.arguments)
    content = _content(file)
    for word in words:
        _override(content, word)
    said: dict[str, Any] = {"run": launched.recipe}
    if launched.num_processes is not None:
        said["processes"] = launched.num_processes
    given = [name for name in VARIABLES if name in command.environment]
    if given:
        said["allocator"] = command.environment[given[0]]
    return {**content, COMMAND: said}


def _launched(words: Sequence[str]) -> _Launched:
    """Take torchrun's flags off, by its own parser, as torchtune does."""
    if words and not words[0].startswith("-"):
        return _Launched(words[0], words[1:], None)
    from brimful.pretend.launchers import of_torchrun

    try:
        found = of_torchrun(words, rank=0)
    except InputError as error:
        raise InputError(f"{COMMAND} {_RUN}: {str(error).partition(';')[0]}; {_USAGE}") from error
    recipe, *arguments = found.program
    return _Launched(recipe, arguments, found.num_processes)


def _parted(words: Sequence[str]) -> tuple[str, list[str]]:
    """Part a recipe's arguments: the file, and what is said over it."""
    file, rest = "", list[str]()
    left = list(words)
    while left:
        word = left.pop(0)
        if word == _CONFIG and left:
            file = left.pop(0)
        elif word.startswith(f"{_CONFIG}="):
            file = word.partition("=")[2]
        else:
            rest.append(word)
    if not file:
        raise InputError(f"{COMMAND} {_RUN} names no {_CONFIG}; {_USAGE}")
    return file, rest


def _content(name: str) -> dict[str, Any]:
    """Return a file's content; a name may be one of torchtune's own configs, if it is installed."""
    file = Path(name)
    if not file.is_file():
        # The folder of torchtune's own configs, which lies beside its package.
        spec = find_spec("torchtune")
        package = Path(spec.origin).parent if spec is not None and spec.origin else Path()
        file = (package.parent / "recipes" / "configs") / f"{name}.yaml"
    if not file.is_file():
        raise InputError(
            f"there is no file {name}, nor is torchtune installed here with a config of that name; "
            f"give a path ({COMMAND} cp NAME FILE writes one of torchtune's)"
        )
    return read_config(file)


def _override(content: dict[str, Any], word: str) -> None:
    """Say a word of a command line over a file: a part by its builder, or a key left out."""
    path, is_given, text = word.partition("=")
    if word.startswith(_LEFT_OUT):
        _leave_out(content, path.removeprefix(_LEFT_OUT).split("."))
        return
    if not is_given or path.startswith("-"):
        raise InputError(f"{word} stands behind {_CONFIG} and assigns nothing; say key=value")
    *above, name = path.split(".")
    place = content
    for each in above:
        if not isinstance(place.get(each), dict):
            place[each] = {}
        place = place[each]
    there = place.get(name)
    if not above and isinstance(there, dict) and _COMPONENT in there:
        place, name = there, _COMPONENT
    place[name] = None if text == _NONE else scalar(text)


def _leave_out(content: dict[str, Any], path: Sequence[str]) -> None:
    place: Any = content
    for each in path[:-1]:
        place = place.get(each) if isinstance(place, dict) else None
    if not isinstance(place, dict) or path[-1] not in place:
        raise InputError(f"{_LEFT_OUT}{'.'.join(path)} leaves out a key that is not there")
    del place[path[-1]]
