"""Arguments of programs on top of the Trainer: from a YAML and from what stands behind it."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from brimful.errors import InputError
from brimful.programs.base import flags_of
from brimful.values.plan import load_yaml

MODEL = "model_name_or_path"


def read_config(path: Path) -> dict[str, Any]:
    """Return what a file of arguments says."""
    try:
        content = load_yaml(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read; check the path") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is no mapping of arguments to values; give the program's YAML")
    return content


def read_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return what ``FILE key=value ...`` says, words behind the file over it; or flags alone."""
    if words and words[0].startswith("--"):
        values = flags_of(words, "train").values
        return {flag.removeprefix("--").replace("-", "_"): said(given) for flag, given in values}
    if not words or "=" in words[0]:
        raise InputError("no YAML of arguments was given; give one")
    content = read_config(Path(words[0]))
    for word in words[1:]:
        name, is_given, value = word.partition("=")
        if not is_given:
            raise InputError(f"{word} stands behind {words[0]} and assigns nothing; say key=value")
        content[name] = scalar(value)
    return content


def scalar(text: str) -> Any:
    """Return what a word stands for, as YAML reads it; a text where that is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def whole(told: Mapping[str, Any], name: str, default: int) -> int:
    """Return a number of arguments; the default where it is missing or null."""
    value = told.get(name)
    if value is None:
        return default
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise InputError(f"{name} is {text}, no whole number of 1 or more; give one")
    return int(text)


def said(given: Sequence[str], read: Callable[[str], Any] = scalar) -> Any:
    """Return what a flag says: a switch is true, several words are a list."""
    values = [read(word) for word in given]
    return True if not values else values[0] if len(values) == 1 else values


def resolved(told: Mapping[str, Any], key: str = MODEL) -> dict[str, str]:
    """Return where a model's folder is, from wherever the program is run."""
    name = str(told.get(key, ""))
    return {key: str(Path(name).resolve())} if Path(name).is_dir() else {}


def script_of(package: str, *parts: str) -> str:
    """Return where a file of a package that is installed lies."""
    found = find_spec(package)
    assert found is not None, "asked before"
    assert found.origin is not None, "a package"
    return str(Path(found.origin).parent.joinpath(*parts))
