"""Published runs, rebuilt as programs: what the simulation says beside what was published."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from evidence import PublishedRow, Spread, Summary, spread_of
from progress import shown

FOLDER = Path(__file__).parent / "published"
FAMILIES = ("litgpt", "bert", "hf_trainer", "fsdp_qlora", "torchtitan")
GIB = 1 << 30
NEAR, CLOSE = 0.05, 0.02
NEAR_SHARE, CLOSE_SHARE = 0.8, 0.6
OPEN = FOLDER / "rows" / "explained.json"
"""Why rows are off by more than 5 %, naming the bytes."""


def run(*, seed: int, quick: bool) -> tuple[list[PublishedRow], Summary]:
    """Run every row's program; nothing is drawn."""
    del seed
    families = ("bert",) if quick else FAMILIES
    rows = [row for family in shown("published runs", families) for row in rows_of(family)]
    return rows, summarize(rows)


def eligible() -> frozenset[str]:
    """Name the rows that count: complete settings, no fused third-party kernels, no compiler."""
    return frozenset(json.loads((FOLDER / "rows" / "eligible.json").read_bytes()))


def explained() -> dict[str, str]:
    """Say, by row, which bytes are missing or too many."""
    return dict(json.loads(OPEN.read_bytes()))


def rows_of(family: str) -> Iterator[PublishedRow]:
    """Run a family's programs in a process of their own.

    Raises:
        subprocess.CalledProcessError: A program failed.
    """
    published = {row["id"]: row for row in _read(family)}
    script = FOLDER / f"{family}.py"
    done = subprocess.run(  # noqa: S603 - our own scripts
        [sys.executable, "-W", "ignore", str(script), "--all", "--json"],
        stdout=subprocess.PIPE,
        check=True,
    )
    errors = {said["id"]: said["error"] for said in map(json.loads, done.stdout.splitlines())}
    for name, row in published.items():
        yield published_row(family, row, errors.get(name))


def published_row(family: str, row: dict[str, Any], error: float | None) -> PublishedRow:
    """Put what was published and what was simulated side by side; None: it was not simulated."""
    gib = None if error is None else round(row["published_gib"] * (1 + error), 4)
    return PublishedRow(
        id=row["id"],
        family=family,
        mem_class=row["mem_class"],
        published_gib=row["published_gib"],
        simulated_gib=gib,
        peak_error=error,
        is_eligible=row["id"] in eligible(),
        explanation=explained().get(row["id"], ""),
        source=row["source"],
        versions=row["versions"],
    )


def _read(family: str) -> list[dict[str, Any]]:
    return msgspec.json.decode((FOLDER / "rows" / f"{family}.json").read_bytes(), type=list[Any])


def summarize(rows: list[PublishedRow]) -> Summary:
    """Sum up by family, and say which bars are missed."""
    counted = [row for row in rows if row.is_eligible]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=tuple(_spreads(rows, counted)),
        bars=(
            f"{NEAR_SHARE:.0%} of the eligible rows within {NEAR:.0%}",
            f"{CLOSE_SHARE:.0%} of them within {CLOSE:.0%}",
            f"every row off by more than {NEAR:.0%} explained",
        ),
        missed=tuple(_missed(rows, counted)),
    )


def _spreads(rows: list[PublishedRow], counted: list[PublishedRow]) -> Iterator[Spread]:
    yield spread_of("peak", _errors(rows))
    if counted:
        yield spread_of("peak", _errors(counted), factor="rows", value="eligible")
    for family in sorted({row.family for row in rows}):
        errors = _errors([row for row in rows if row.family == family])
        yield spread_of("peak", errors, factor="family", value=family)


def _errors(rows: list[PublishedRow]) -> list[float]:
    return [row.peak_error for row in rows if row.peak_error is not None]


def is_near(row: PublishedRow, bound: float) -> bool:
    """Whether a row was simulated, and within ``bound`` of what was published."""
    return row.peak_error is not None and abs(row.peak_error) <= bound


def share_within(rows: list[PublishedRow], bound: float) -> float:
    """Return the share of rows that are near; one that was not simulated is not."""
    return sum(is_near(row, bound) for row in rows) / len(rows)


def _missed(rows: list[PublishedRow], counted: list[PublishedRow]) -> Iterator[str]:
    for bound, least in ((NEAR, NEAR_SHARE), (CLOSE, CLOSE_SHARE)):
        share = share_within(counted, bound) if counted else 0.0
        if share < least:
            yield f"{share:.0%} of {len(counted)} eligible rows within {bound:.0%}, not {least:.0%}"
    for row in rows:
        if not is_near(row, NEAR) and not row.explanation:
            yield f"{row.id} is off by more than {NEAR:.0%} and not explained"
