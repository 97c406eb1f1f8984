"""The verbs of the command line as functions, with its flags as keyword arguments.

A keyword is the flag with underscores: ``seq_len=8192`` is ``--seq-len 8192``. Names, defaults and
checks are the command line's own: its parser reads what is given here. What cannot be used raises a
``BrimfulError`` with the sentence that the command line prints.
"""

import argparse
import contextlib
import html
import io
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from os import PathLike
from typing import Any

from brimful.cli.main import parse, parser_of
from brimful.cli.parsing import Parser
from brimful.errors import InputError, unknown_name

__all__ = ["Answer", "estimate", "plan", "report", "shop", "simulate", "train"]

Given = str | float | bool | PathLike[str] | Sequence[Any] | None
"""What a flag takes; True sets a flag without a value, None and False leave it out, a sequence is a
list by comma."""


class Answer:
    """What a verb answers: printed as on the terminal, drawn in a notebook, read as values.

    Attributes:
        exit_code: What the command line would end with: 0 fits or done, 1 does not fit.
        values: The object that ``--json`` prints.
    """

    def __init__(self, exit_code: int, values: dict[str, Any], say: Callable[[], str]) -> None:
        """Keep what was answered, and how to say it."""
        self.exit_code = exit_code
        self.values = values
        self._say = say

    @property
    def fits(self) -> bool:
        """Whether the job fits, or what was asked is done."""
        return self.exit_code == 0

    @cached_property
    def text(self) -> str:
        """What the terminal shows; found when it is first asked for."""
        return self._say()

    def __str__(self) -> str:
        """Return what the terminal shows."""
        return self.text

    def __repr__(self) -> str:
        """Return the same, as a console shows it."""
        return self.text

    def _repr_html_(self) -> str:
        """Draw it in a notebook; nothing that the user gave is markup."""
        return f"<pre>{html.escape(self.text)}</pre>"


def estimate(model: str, /, **flags: Given) -> Answer:
    """Predict peak memory and step time of one strategy.

    Args:
        model: A name, folder, config.json, job file or plan.yaml.
        flags: Of ``brimful estimate``.

    Returns:
        The answer.

    Raises:
        BrimfulError: What was given cannot be used.
    """
    return _ask("estimate", model, flags)


def plan(model: str, /, **flags: Given) -> Answer:
    """Find the fastest strategy that fits; a strategy flag pins it.

    Args:
        model: A name, folder, config.json or job file.
        flags: Of ``brimful plan``.

    Returns:
        The answer.

    Raises:
        BrimfulError: What was given cannot be used.
    """
    return _ask("plan", model, flags)


def shop(model: str, /, **flags: Given) -> Answer:
    """Compare GPUs by time and money.

    Args:
        model: A name, folder, config.json or job file.
        flags: Of ``brimful shop``.

    Returns:
        The answer.

    Raises:
        BrimfulError: What was given cannot be used.
    """
    return _ask("shop", model, flags)


def simulate(model: str, /, **flags: Given) -> Answer:
    """Run the code that trains on a pretend GPU and read its memory.

    Args:
        model: A name, folder, config.json, job file or plan.yaml.
        flags: Of ``brimful simulate``.

    Returns:
        The answer.

    Raises:
        BrimfulError: What was given cannot be used.
    """
    return _ask("simulate", model, flags)


def report(run_dir: str | PathLike[str], /, **flags: Given) -> Answer:
    """Write the page of a run, and judge it.

    Args:
        run_dir: The folder of a run.
        flags: Of ``brimful report``.

    Returns:
        The answer.

    Raises:
        BrimfulError: What was given cannot be used.
    """
    return _ask("report", str(run_dir), flags)


def train(model: str, /, **flags: Given) -> Answer:
    """Run a plan for real, measured; its answer prints as the run's report.

    Args:
        model: A name, folder, config.json, job file or plan.yaml.
        flags: Of ``brimful train``; ``out`` is where the run goes.

    Returns:
        The answer.

    Raises:
        BrimfulError: What was given cannot be used.
    """
    args = _parsed("train", model, {**flags, "json": True})
    code, printed = _run("train", args)
    return Answer(code, _last_object(printed), lambda: _text("report", str(args.out), {}))


def _ask(verb: str, subject: str, given: dict[str, Given]) -> Answer:
    code, printed = _run(verb, _parsed(verb, subject, {**given, "json": True}))
    return Answer(code, _last_object(printed), lambda: _text(verb, subject, given))


def _text(verb: str, subject: str, given: dict[str, Given]) -> str:
    with contextlib.redirect_stderr(io.StringIO()):  # what is noted there was said before
        return _run(verb, _parsed(verb, subject, given))[1].rstrip("\n")


def _run(verb: str, args: argparse.Namespace) -> tuple[int, str]:
    """Run a verb; return its exit code and what it printed."""
    from brimful.text.terminal import forget_notes

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            code: int = import_module(f"brimful.cli.{verb}").run(args)
    finally:
        forget_notes(of_a_program=True)
    return code, printed.getvalue()


def _parsed(verb: str, subject: str, given: dict[str, Given]) -> argparse.Namespace:
    """Let the verb's own parser read keyword arguments.

    Raises UnknownNameError: a keyword is no flag of the verb.
    """
    options = _options(parser_of(verb))
    arguments = [str(subject)]
    for name, value in given.items():
        if name not in options:
            raise unknown_name("keyword", name, options, more=f"(the flags of brimful {verb})")
        flag, takes_value = options[name]
        if value is None or value is False:
            continue
        if takes_value == (value is True):
            need = "a value" if takes_value else "True or False"
            raise InputError(f"{name}={value!r} is not what {flag} takes; give {need}")
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        spelled = ",".join(map(str, value)) if is_list else value  # type: ignore[arg-type]
        arguments.append(f"{flag}={spelled}" if takes_value else flag)
    return parse(verb, arguments)


def _options(parser: Parser) -> dict[str, tuple[str, bool]]:
    """Map keywords to a verb's flags, and whether these take a value.

    A keyword is the flag itself, so that ``from`` is ``**{"from": ...}``; ``-o`` is ``output``.
    """
    return {
        flag.removeprefix("--").replace("-", "_"): (flag, action.nargs != 0)
        for action in parser._actions  # noqa: SLF001 - argparse tells in no other way
        for flag in action.option_strings
        if flag.startswith("--") and action.dest != "help"
    }


def _last_object(printed: str) -> dict[str, Any]:
    """Read the JSON object that a verb printed."""
    values: dict[str, Any] = json.loads(printed[printed.index("{") :])
    return values
