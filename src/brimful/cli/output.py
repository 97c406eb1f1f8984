"""Printing: tables for people, one JSON object for programs."""

import sys
from typing import Any

import msgspec

from brimful.cli.flags import Asked
from brimful.plan import Estimate

FITS, DOES_NOT_FIT, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes; an interrupted run is what a shell calls a process ended by Ctrl-C."""
WIDTH = 100


def show(*renderables: Any) -> None:
    """Print tables, in colour on a terminal and as plain lines elsewhere."""
    from rich.console import Console

    from brimful.report.text import plain_lines

    if sys.stdout.isatty():
        console = Console(highlight=False)
        for renderable in renderables:
            console.print(renderable)
        return
    for renderable in renderables:
        print("\n".join(plain_lines(renderable, width=WIDTH)))


def show_json(content: dict[str, Any]) -> None:
    """Print one JSON object."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    print(text.decode())


def inputs_json(asked: Asked) -> dict[str, Any]:
    """Return the inputs in full, defaults included."""
    return {"job": asked.job, "cluster": asked.cluster, "strategy": asked.strategy}


def estimate_json(asked: Asked, estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as the JSON object of DESIGN."""
    return {
        "schema": "brimful.estimate/1",
        **inputs_json(asked),
        **msgspec.structs.asdict(estimate),
    }
