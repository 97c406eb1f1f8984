"""What pages of comparisons are made of: results, tables, folded text."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

PEERS_FOLDER = Path(__file__).parents[1] / "benchmarks" / "peers"
sys.path[:0] = [str(Path(__file__).parents[1] / "validation"), str(PEERS_FOLDER)]

from peer_rows import Part, Result, read_result  # noqa: E402

RESULTS = PEERS_FOLDER / "results"
WIDTH = 100
SMALL = 0.01
"""Shares below this are written with one more place."""


def result_of(part: Part) -> Result[Any]:
    """Read a part's result; the short variant proves nothing and is refused."""
    found = read_result(RESULTS, part)
    assert found is not None, f"run python benchmarks/peers/run.py --part {part}"
    assert not found.quick
    return found


def made(result: Result[Any]) -> str:
    """Say when, where and with what a part was made."""
    how = result.provenance
    versions = ", ".join((*how.versions, *(v for v in result.peer_versions if "torch" not in v)))
    sitting = (
        "in several sittings, while other programs used the machine"
        if "--resume" in how.command
        else f"in {how.wall_s:.0f} s, while other programs used {how.others_load:.0%} of the CPU"
    )
    return folded(
        f"Made on {how.date} on {how.machine.cpu}, by `{how.command}` {sitting}; {versions}."
    )


def share(value: float) -> str:
    """Write a share in percent."""
    return f"{value:.2%}" if value < SMALL else f"{value:.1%}"


def ratio(times: float | None) -> str:
    """Write how many times."""
    return "-" if times is None else f"{times:.1f} x"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Lay out a table."""
    rows = [list(head), ["---"] * len(head), *map(list, lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def folded(text: str) -> str:
    """Fold a paragraph."""
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
