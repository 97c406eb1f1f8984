"""Writes docs/cli.md from the parsers' own --help: ``python docs/generate_cli.py``."""

import os
from pathlib import Path

from brimful.cli.main import VERBS, parser_of, usage
from brimful.cli.parsing import HELP_WIDTH

PAGE = Path(__file__).parent / "cli.md"
_HEAD = """# Command line

Generated from `--help` by `python docs/generate_cli.py`; a test keeps it up to date.

Exit codes: 0 fits or done; 1 does not fit; 2 bad input, said in one line on standard error, below
which `estimate`, `plan`, `shop` and `simulate` answer the nearest question that they can, if any;
124 a search that simulates ended with its `--budget` and found nothing that fits, which does not
mean that nothing does; 130 interrupted. A process that `torchrun` started ends with 75 where it ran
out of memory and is to be started again ([out of memory](out-of-memory.md)). `--json` prints one
object on standard output.
"""


def page() -> str:
    """Return the whole page, the same on every terminal."""
    os.environ["COLUMNS"] = str(HELP_WIDTH)
    helps = [(f"brimful {verb}", parser_of(verb).format_help()) for verb in VERBS]
    sections = [("brimful", usage()), *helps]
    blocks = [f"## {name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in sections]
    return "\n".join([_HEAD, *blocks])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
