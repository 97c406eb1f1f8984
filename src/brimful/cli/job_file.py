"""A job file: the flags of a command, written down in YAML.

``global_batch: 8`` is ``--global-batch 8``, and ``model:`` is what stands first. One file serves
every verb: each takes the flags that it has, and what the command line says as well wins.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from brimful.cli.parsing import Parser
from brimful.cli.resolved import PLAN_SUFFIXES
from brimful.errors import FileFormatError, unknown_name

_MODEL = "model"


def expand(
    arguments: Sequence[str], parser: Parser, others: Callable[[], Sequence[Parser]]
) -> list[str]:
    """Put a job file's flags in the place of its name; anything else stays as it is.

    ``others``: makes those of every verb that reads job files; what only they know is left out.
    Raises FileFormatError: a value cannot be a flag's. Raises UnknownNameError: a key is no flag of
    any verb.
    """
    if not arguments or Path(arguments[0]).suffix not in PLAN_SUFFIXES:
        return list(arguments)
    path = Path(arguments[0])
    fields = _read(path)
    if fields is None:
        return list(arguments)
    known = {flag for other in (parser, *others()) for flag in _options(other)}
    spelled = [fields[_MODEL]]
    for key, value in _flat(fields):
        if key not in known:
            raise unknown_name(f"key of {path}", key, known, more="(keys are flags)")
        if key in _options(parser):
            spelled += _spell(path, key, value, takes_value=_options(parser)[key])
    return [*spelled, *arguments[1:]]


def _read(path: Path) -> dict[str, Any] | None:
    """Return the fields of a job file; None where it is another kind of file, such as a plan."""
    from brimful.values.plan import load_yaml

    if not path.is_file():
        return None
    raw = load_yaml(path)
    if not isinstance(raw, dict) or not isinstance(raw.get(_MODEL), str):
        return None
    return {str(key): value for key, value in raw.items()}


def _flat(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values: ``data: {path: x, split: y}`` is ``data: x`` and ``data_split: y``."""
    for name, value in fields.items():
        if name in {_MODEL, "schema"}:
            continue
        key = name.replace("_", "-")
        if isinstance(value, dict):
            for inner, inner_value in value.items():
                whole = key if inner == "path" else f"{key}-{str(inner).replace('_', '-')}"
                yield whole, inner_value
        else:
            yield key, value


def _options(parser: Parser) -> dict[str, bool]:
    """Map the names of a parser's flags to whether they take a value."""
    return {
        flag.removeprefix("--"): action.nargs != 0
        for action in parser._actions  # noqa: SLF001 - argparse tells in no other way
        for flag in action.option_strings
        if flag.startswith("--")
    }


def _spell(path: Path, key: str, value: Any, *, takes_value: bool) -> list[str]:
    """Write one flag as it would be typed; null and false leave it out."""
    if value is None or value is False:
        return []
    if not takes_value or value is True:
        if takes_value or value is not True:
            raise FileFormatError(
                f"{path}: {key} is {value!r} and --{key} takes "
                f"{'a value' if takes_value else 'none'}; write {'one' if takes_value else 'true'}"
            )
        return [f"--{key}"]
    if isinstance(value, list):
        return [f"--{key}={','.join(map(str, value))}"]
    if isinstance(value, dict):
        raise FileFormatError(f"{path}: {key} is a mapping; write one value or a list")
    return [f"--{key}={value}"]
