"""Flags of ``brimful pretend`` that stand behind the script: whose they are, by what it reads."""

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from brimful.cli.parsing import Parser
from brimful.errors import InputError
from brimful.text.escaping import shell_words
from brimful.text.terminal import note

GPU_FLAGS = ("--gpu", "--gpus")
"""How a GPU is named here and by other verbs."""
_ONLY_OURS = frozenset({*GPU_FLAGS, "--memory-budget", "--weights-dtype", "--largest", "--assume"})
"""Flags that hardly any script has."""
_READS = re.compile(
    r"argv|argparse|Parser|parse_args|\b(click|fire|hydra|tyro|absl|typer|docopt|getopt|optparse"
    r"|plac|draccus|pyrallis|jsonargparse|simple_parsing|chz|tap|gin|cli|from_cli|LightningCLI"
    r"|add_config_arguments|flags)\b|\bparse\("
)
"""Words of a text that reads what it was started with, or has others do so."""
_MOST_BYTES, _MOST_FILES = 10**6, 100


def taken_from_behind(
    args: argparse.Namespace,
    program: Sequence[str],
    add_arguments: Callable[[argparse.ArgumentParser], None],
) -> list[str]:
    """Return a program without the flags behind it that are ours, which are put into ``args``.

    ``args``: what was typed before the program.
    """
    parser = Parser(prog="brimful pretend", add_help=False)
    add_arguments(parser)
    known = {word for action in parser._actions for word in action.option_strings}  # noqa: SLF001
    behind = [i for i, word in enumerate(program) if i and word.partition("=")[0] in known]
    if not behind:
        return list(program)
    texts = list(_texts(Path(program[0])))  # none of a module or a notebook
    flags = [program[i].partition("=")[0] for i in behind]
    start = behind[0]
    before, moved = list(program[:start]), list(program[start:])
    if texts and not any(map(_READS.search, texts)):
        parser.parse_args(moved, namespace=args)
        left, args.program = [*before, *args.program], list(program)
        note(f"{' '.join(flags)} behind {program[0]}, which reads no arguments, is taken as ours")
        return left
    lone = [i for i in behind if _is_only_ours(program[i].partition("=")[0], texts)]
    if lone:
        at, num = lone[0], 1 if "=" in program[lone[0]] else 2
        own, rest = list(program[at : at + num]), [*program[:at], *program[at + num :]]
        raise InputError(
            f"{own[0].partition('=')[0]} stands behind {program[0]}, whose text reads arguments "
            f"and none of that name; what is meant for brimful stands before it: brimful pretend "
            f"{shell_words([*own, '--', *rest])}"
        )
    if gpu := next((flag for flag in flags if flag in GPU_FLAGS), ""):
        note(
            f"{gpu} stands behind {program[0]}, which is given it; what is meant for brimful "
            f"stands before: brimful pretend --gpu NAME -- {program[0]}"
        )
    return list(program)


def _is_only_ours(flag: str, texts: Sequence[str]) -> bool:
    """Whether no text has a word that begins with the name of a flag that hardly any script has."""
    name = flag.strip("-").replace("-", "[-_]")
    is_said = any(re.search(rf"(?<![A-Za-z]){name}", text) for text in texts)
    return flag in _ONLY_OURS and bool(texts) and not is_said


def _texts(script: Path) -> Iterator[str]:
    """Yield the text of a script, and of the modules beside it that it imports."""
    wanted, seen = [script], set[Path]()
    while wanted and len(seen) < _MOST_FILES:
        path = wanted.pop()
        if path in seen or path.suffix != ".py":
            continue
        seen.add(path)
        try:
            text = path.read_text("utf-8") if path.stat().st_size <= _MOST_BYTES else ""
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        yield text
        wanted += _beside(script.parent, tree)


def _beside(folder: Path, tree: ast.AST) -> Iterator[Path]:
    """Yield the files in a folder, or its packages, that a text imports."""
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [
                node.module or "",
                *(f"{node.module or ''}.{each.name}" for each in node.names),
            ]
        for name in filter(None, names):
            place = folder.joinpath(*filter(None, name.split(".")))
            yield from filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))
