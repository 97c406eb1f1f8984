"""Runs the commands of the pages and compares, or writes anew, what they print.

``python docs/run_recipes.py`` checks what is fast, ``--all`` everything, ``--write`` puts what was
printed into the pages. A block that is run looks like this in a page::

    <!-- run: show=/fits/,2-4 exit=1 -->
    ```console
    $ brimful estimate llama-3.1-8b --gpus rtx-4090
    what it printed
    ```

``show`` picks lines, by number from 1 or by a pattern that they hold; without it all are shown.
What is left out stands as ``...``. ``exit`` is the exit code (0). ``slow``: by ``--all`` alone.
``measured`` says that the output holds seconds or rates of the machine that ran it: it is compared
with every number taken out. The commands of a page share one folder, in which ``examples/`` lies.
Only ``brimful`` and ``python`` are run.
"""

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGES = (
    *sorted((HERE / "cookbook").glob("*.md")), HERE / "tour.md", HERE / "faq.md",
    HERE / "how-it-works.md", HERE / "shop.md", ROOT / "README.md",
)  # fmt: skip
WIDTH = "100"
_BLOCK = re.compile(
    r"^<!-- run:(?P<rules>[^\n]*?)-->\n```console\n\$ "
    r"(?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_WHILE_IT_WAITS = re.compile(
    r"^(?:proving the plan|simulating|tracing|comparing GPUs): .*\n", re.MULTILINE
)
"""What only a machine that is slow prints."""
_NUMBER = re.compile(r"[+-]?\d+(?:[.,:]\d+)*")


class Block(NamedTuple):
    """One command of a page.

    Attributes:
        page: The page.
        command: As a user types it, without the prompt.
        output: What the page shows.
        rules: What stands behind ``run:``.
        span: Where the output stands in the page's text.
    """

    page: Path
    command: str
    output: str
    rules: tuple[str, ...]
    span: tuple[int, int]

    def value(self, name: str, otherwise: str) -> str:
        """Return what a rule ``name=value`` says."""
        found = [rule.partition("=")[2] for rule in self.rules if rule.startswith(f"{name}=")]
        return found[0] if found else otherwise


def blocks_of(page: Path) -> list[Block]:
    """Return the commands of a page, in order."""
    return [
        Block(
            page, found["command"], found["output"], tuple(shlex.split(found["rules"])),
            found.span("output"),
        )
        for found in _BLOCK.finditer(page.read_text("utf-8"))
    ]  # fmt: skip


def run_page(
    page: Path, *, slow: bool, begin: tuple[str, ...] = ("",)
) -> Iterator[tuple[Block, str]]:
    """Run a page's commands in a folder of their own; yield each with what it printed, trimmed.

    Args:
        page: The page.
        slow: Run what is marked slow as well; without it, the page's other commands are run.
        begin: Run commands that begin so.

    Raises:
        RuntimeError: A command ended with another exit code than the page says.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "examples").symlink_to(ROOT / "examples")
        for block in blocks_of(page):
            if ("slow" in block.rules and not slow) or not block.command.startswith(begin):
                continue
            code, text = run(block.command, folder)
            if code != int(block.value("exit", "0")):
                said = f"{page.name}: $ {block.command}\nended with {code}:\n{text}"
                raise RuntimeError(said)
            yield block, shown(text, block.value("show", ""))


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run one command in a folder; return its exit code and what it printed.

    What is arithmetic runs in this process, the rest in one of its own: both take the same path.
    """
    words = shlex.split(command.replace("\\\n", " "))
    if words[0] == "brimful" and words[1] in {"estimate", "plan", "gpus", "models", "rules"}:
        return _run_here(words[1:], folder)
    module = ["-m", "brimful"] if words[0] == "brimful" else []
    done = subprocess.run(  # noqa: S603
        [sys.executable, *module, *words[1:]],
        cwd=folder, env={**os.environ, "COLUMNS": WIDTH, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def _run_here(arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    from brimful.cli.main import main as brimful

    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            code = brimful(arguments)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return code, printed.getvalue()


def shown(text: str, rule: str) -> str:
    """Return the lines that a ``show`` rule picks; what it leaves out becomes ``...``."""
    text = _WHILE_IT_WAITS.sub("", text)
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    kept = [
        number for number, line in enumerate(lines) if not rule or _is_picked(number, line, rule)
    ]
    parts: list[str] = []
    last = -1
    for number in kept:
        if number > last + 1 and any(lines[last + 1 : number]):
            parts.append("...")
        parts.append(lines[number])
        last = number
    if any(lines[last + 1 :]):
        parts.append("...")
    return "".join(f"{part}\n" for part in parts)


def _is_picked(number: int, line: str, rule: str) -> bool:
    for part in rule.split(","):
        if part.startswith("/"):
            if re.search(part.strip("/"), line):
                return True
        else:
            first, _, last = part.partition("-")
            if int(first) <= number + 1 <= int(last or first):
                return True
    return False


def compared(text: str, rules: Sequence[str]) -> str:
    """Return what of an output is compared: all of it, or its words where numbers are measured."""
    if "measured" not in rules:
        return text
    return re.sub(r"[ \t]+", " ", _NUMBER.sub("N", text))


def differences(block: Block, printed: str) -> str:
    """Return what a page shows and the command did not print, and the other way round."""
    before, after = (compared(text, block.rules) for text in (block.output, printed))
    if before == after:
        return ""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "page", "printed", lineterm="", n=0
    )
    return "\n".join([f"{block.page.name}: $ {block.command}", *lines])


def rewrite(page: Path, *, slow: bool) -> None:
    """Put what the commands print into the page, where it differs in what is compared."""
    text = page.read_text("utf-8")
    for block, printed in reversed(list(run_page(page, slow=slow))):
        if differences(block, printed):
            start, end = block.span
            text = text[:start] + printed + text[end:]
    page.write_text(text, encoding="utf-8")


def main() -> int:
    """Check or write the pages.

    Returns:
        0: every page shows what its commands print. 1: some do not.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="*", type=Path, help="without: all")
    parser.add_argument("--all", action="store_true", help="also what is slow")
    parser.add_argument("--write", action="store_true", help="put what is printed into the pages")
    args = parser.parse_args()
    wrong = 0
    for page in args.pages or PAGES:
        if args.write:
            rewrite(page, slow=args.all)
            continue
        for block, printed in run_page(page, slow=args.all):
            found = differences(block, printed)
            wrong += bool(found)
            print(found or f"{page.name}: $ {block.command}: as the page says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
