"""``brimful completion``: what a shell needs to complete verbs and flags."""

import argparse

from brimful.cli import flags, parsing
from brimful.cli.output import show_json
from brimful.text.terminal import say

HELP = "print a script that teaches your shell brimful's verbs and flags"
SHELLS = ("bash", "zsh", "tcsh")
_WHERE = {
    "bash": 'eval "$(brimful completion bash)"   # in ~/.bashrc',
    "zsh": "brimful completion zsh > ~/.zfunc/_brimful   # a folder of $fpath",
    "tcsh": "brimful completion tcsh > ~/.brimful.tcsh; source it in ~/.tcshrc",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument(
        "shell",
        metavar="SHELL",
        type=parsing.choice("shell", SHELLS),
        help="; ".join(f"{shell}: {where}" for shell, where in _WHERE.items()),
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Put one parser together of all verbs', and let shtab write the script."""
    import shtab

    from brimful.cli.main import VERBS, parser_of

    whole = argparse.ArgumentParser(prog="brimful")
    verbs = whole.add_subparsers()
    for verb, what in VERBS.items():
        one = verbs.add_parser(verb, help=what, add_help=False, parents=[_shown(parser_of(verb))])
        one.prog = f"brimful {verb}"
    script = shtab.complete(whole, shell=args.shell)
    if args.json:
        show_json({"schema": "brimful.completion/1", "shell": args.shell, "script": script})
    else:
        say(script)
    return 0


def _shown(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Mark what takes a path, so that files are offered there."""
    import shtab

    for action in parser._actions:  # noqa: SLF001 - argparse shows them nowhere else
        if action.nargs != 0 and action.metavar in _PATHS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


_PATHS = frozenset({"PLAN", "FILE", "DIR", "PATH", "RUN_DIR", "MODEL"})
"""Metavars that stand for a path; a model may be one."""
