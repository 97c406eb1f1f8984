"""Printing: tables for people, one JSON object for programs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.cli.resolved import Asked
from brimful.text.escaping import json_text
from brimful.text.terminal import console, num_heading_lines, say
from brimful.values.plan import Estimate, HostMemory

if TYPE_CHECKING:
    from brimful.show.answer import Answer
    from brimful.show.summary import Fact, Summary

FITS, DOES_NOT_FIT, BAD_INPUT, OUT_OF_TIME, INTERRUPTED = 0, 1, 2, 124, 130
"""Exit codes; a search without an answer in its budget ends as ``timeout`` would end it, an
interrupted run is what a shell calls a process ended by Ctrl-C."""
WIDTH = 100
LINES_OF_WAYS = 3
"""Which ways out take below a NO, each with its GiB, beyond those of what comes next."""


def show(*renderables: Any) -> None:
    """Print tables, in colour on a terminal and as plain lines elsewhere."""
    from brimful.report.text import plain_lines

    if sys.stdout.isatty():
        screen = console()
        for renderable in renderables:
            screen.print(renderable)
        return
    for renderable in renderables:
        say("\n".join(plain_lines(renderable, width=WIDTH)))


def show_summary(
    summary: "Summary", assumed: "Sequence[Fact]" = (), *, leads_out: bool = False
) -> None:
    """Print the answer to a question.

    ``assumed``: what will stand below it, for which there is a line; more are taken off the answer.
    ``leads_out``: whether ways out follow where it is a NO.
    """
    from brimful.show.terminal import MOST_LINES, fact_lines, summary_lines

    more = max(0, len(fact_lines(assumed)) - 1)
    more += LINES_OF_WAYS if leads_out and summary.verdict == "NO" else 0
    show(*summary_lines(summary, MOST_LINES - more))


def show_answer(summary: "Summary", below: "Sequence[Fact]") -> None:
    """Print an answer of which all is known, in as many lines as an answer may take.

    What is said above it, but for which question it answers, is a part of it.
    """
    from brimful.show.terminal import MOST_OF_ALL, fact_lines, summary_lines

    last = fact_lines(below)
    most = MOST_OF_ALL - len(last) - num_heading_lines()
    show(*summary_lines(summary, most), *last)


def show_facts(*facts: "Fact") -> None:
    """Print what is known later than the rest of an answer."""
    from brimful.show.terminal import fact_lines

    show(*fact_lines(facts))


def tell(
    args: argparse.Namespace, answer: Callable[[], "Answer"], *, above: Sequence[str] = ()
) -> None:
    """Print an answer and write its page, as far as either was asked for.

    ``args``: has the flags of ``page.add_page``, ``flags.add_verbose`` and ``flags.add_json``.
    ``answer``: puts it together, which is not done where nobody sees it.
    """
    if args.json and args.page is None:
        return
    given = answer()
    if not args.json:
        show_answer(given.summary, given.facts)
        if args.verbose:
            show("", *above, *given.tables)
    if args.page is not None:
        from brimful.cli.page import write_page

        write_page(args, given)


def show_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    say(json_text(content, indent=1))


def host_may_fit(host: HostMemory | None) -> bool:
    """Whether nothing is known that speaks against it."""
    return host is None or host.fits is not False


def inputs_json(asked: Asked) -> dict[str, Any]:
    """Return the inputs in full, defaults included."""
    return {"job": asked.job, "cluster": asked.cluster, "strategy": asked.strategy}


def estimate_json(
    asked: Asked, estimate: Estimate | None, *, usable_bytes: int, fits: bool
) -> dict[str, Any]:
    """Return an estimate as the JSON object of DESIGN.

    ``estimate``: the first rung; None: no formula covers the job, and its fields are null.
    ``fits``: whether they do, on the highest rung that was climbed.
    """
    fields: dict[str, Any] = dict.fromkeys(Estimate.__struct_fields__)
    if estimate is not None:
        fields = msgspec.structs.asdict(estimate)
    return {
        "schema": "brimful.estimate/1",
        **inputs_json(asked),
        **fields,
        "usable_bytes": usable_bytes,
        "fits": fits,
    }
