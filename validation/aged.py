"""Which evidence is old or of other versions: told where it is made, and never a failing test."""

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path

from evidence import PARTS, path_of, read_evidence

MAX_AGE_DAYS = 90


def aged(folder: Path, today: dt.date, versions: Sequence[str]) -> Iterator[str]:
    """Yield a line for each part that is older, or was made with other versions.

    Args:
        folder: Of the evidence files; those that are not there are left out.
        today: To tell ages by.
        versions: Of today, as ``name version``.
    """
    for part in PARTS:
        if not path_of(part, folder).is_file():
            continue
        made = read_evidence(part, folder).provenance
        age_days = (today - dt.date.fromisoformat(made.date)).days
        if age_days > MAX_AGE_DAYS:
            yield f"{part} is {age_days} days old, more than {MAX_AGE_DAYS}; make it again"
        others = [was for was in made.versions if was not in versions]
        if others:
            yield f"{part} was made with {', '.join(others)}; make it again"
