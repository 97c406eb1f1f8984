"""Asks every question of a list and writes what was printed and when.

``python validation/questions/ask.py`` writes ``answers.md``. Who judges reads that beside
``rubric.md``; nothing here judges.
"""

import argparse
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MOST_S = 120
LATE = 124
"""Exit code of ``timeout``, and ours of a search whose time was over."""
_COMMAND = re.compile(r"""(?:"[^"]*"|'[^']*'|(?! && |; ).)+""")
"""Up to what follows it, behind ``&&`` or a semicolon."""
VERDICTS = ("FITS", "TIGHT", "NO ", "ANSWER", "UNKNOWN")


class Question(NamedTuple):
    """What somebody wants to know, and types: a command, or several that follow one another."""

    words: str
    command: str

    @property
    def commands(self) -> list[str]:
        """Each by itself; what is quoted stays whole."""
        return [match[0].strip(" &;") for match in _COMMAND.finditer(self.command)]


def questions(path: Path) -> Iterator[Question]:
    """Read a list: a question and its command on a line each, ``#`` begins a comment."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line and line[0] != "#"]
    for words, command in zip(lines[::2], lines[1::2], strict=True):
        question = Question(words, command)
        if not all(each.startswith(("brimful ", "python ", "head ")) for each in question.commands):
            raise ValueError(f"{path.name}: '{command}' is no command of ours")
        yield question


class Asked(NamedTuple):
    """What came of a question.

    Attributes:
        code: Exit code; None: it did not end in time.
        first_s: Seconds until the answer began, or until the end where there was none.
        seconds: Seconds until the end, the proof included.
        cpu_s: Seconds of CPU that it took, which another's work on the machine does not lengthen.
        said: What was printed.
    """

    code: int | None
    first_s: float
    seconds: float
    cpu_s: float
    said: str


def cpu_of_children_s() -> float:
    """Seconds of CPU of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _as_run(command: str) -> list[str]:
    """Run a command by this Python; one that a shell reads (a pipe, a file) by a shell."""
    ours = re.sub(r"(^|\| )python ", rf"\1{sys.executable} ", command)
    ours = re.sub(r"^brimful ", f"{sys.executable} -m brimful ", ours)
    unquoted = re.sub(r"\"[^\"]*\"|'[^']*'", "", command)
    return ["bash", "-c", ours] if {*unquoted} & {*"|>"} else shlex.split(ours)


def ask(question: Question) -> Asked:
    """Run its commands as somebody who compares would: each, whatever the one before said.

    The code is that of the first that did not end well.
    """
    begin, first_s, lines = time.perf_counter(), None, list[str]()
    cpu_before_s = cpu_of_children_s()
    codes: list[int | None] = []
    for command in question.commands:
        started = time.perf_counter()
        lines.append(f"$ {command}\n")
        with subprocess.Popen(  # noqa: S603 - our own list
            ["timeout", str(MOST_S), *_as_run(command)],  # noqa: S607
            cwd=ROOT, env={**os.environ, "COLUMNS": "80", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as running:  # fmt: skip
            assert running.stdout is not None
            for line in running.stdout:
                lines.append(line.replace(f"{ROOT}/", "").replace(f"{sys.prefix}/", ".venv/"))
                if first_s is None and line.startswith(VERDICTS):
                    first_s = time.perf_counter() - begin
            ended = running.wait()
        is_late = ended == LATE and time.perf_counter() - started >= MOST_S
        codes.append(None if is_late else ended)
    code = next((each for each in codes if each != 0), 0)
    seconds = time.perf_counter() - begin
    cpu_s = cpu_of_children_s() - cpu_before_s
    return Asked(code, first_s or seconds, seconds, cpu_s, "".join(lines))


def main() -> None:
    """Ask, and write the answers in the order of the list."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("list", nargs="?", type=Path, default=HERE / "ours.txt")
    parser.add_argument("--out", type=Path, default=HERE / "answers.md")
    args = parser.parse_args()
    parts = [f"# Answers to {args.list.name}\n"]
    for number, question in enumerate([*questions(args.list)], 1):
        asked = ask(question)
        ended = "did not end" if asked.code is None else f"exit code {asked.code}"
        took = (
            f"answer after {asked.first_s:.1f} s, end after {asked.seconds:.1f} s, "
            f"{asked.cpu_s:.1f} s of CPU"
        )
        print(f"{number:3} {ended:12} {took}  {question.command}", flush=True)
        parts.append(
            f"## {number}. {question.words}\n\n{ended}, {took}\n\n```\n{asked.said.rstrip()}\n```\n"
        )
        args.out.write_text("\n".join(parts), "utf-8")  # what is there, if it is cut off


if __name__ == "__main__":
    main()
