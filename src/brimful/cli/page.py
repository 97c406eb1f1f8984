"""``--page``: an answer as a page, or as one picture to send on."""

import argparse
from typing import TYPE_CHECKING

from brimful.cli import output_paths
from brimful.files.writing import write_text
from brimful.text.escaping import shell_words

if TYPE_CHECKING:
    from brimful.show.answer import Answer

SUFFIXES = (".html", ".svg")


def add_page(parser: argparse.ArgumentParser) -> None:
    """Add the flag."""
    parser.add_argument(
        "--page",
        metavar="FILE",
        type=output_paths.output_file("--page", suffixes=SUFFIXES),
        help="write the answer here too, with every table (.html) or as one picture (.svg)",
    )


def write_page(args: argparse.Namespace, answer: "Answer") -> None:
    """Write the page that was asked for.

    ``args``: has the flag of ``add_page``, and the words of the command. Raises RunError: the file
    cannot be written.
    """
    if callable(args.page):  # a page that is open takes the answer itself (brimful.web)
        args.page(answer)
        return
    command = shell_words(["brimful", *args.command])
    if args.page.suffix == ".svg":
        from brimful.show.card import card

        drawn = card(answer.summary, command=command, timeline=answer.timeline)
    else:
        from brimful.report.answer import answer_page

        drawn = answer_page(answer, command=command)
    write_text(args.page, drawn)
