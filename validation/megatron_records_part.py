"""Megatron-LM by formula against what its own tests recorded: every run of them that trains.

The figures are of the last process, over hundreds of steps, on A100s, H100s and GB200s, in
containers of several years; some belong to tests that no recipe runs any longer, with arguments
that have changed since. Nothing is left out, and nothing is drawn.
"""

import re
from collections import Counter

from evidence import Summary, spread_of
from megatron_records import SOURCE, MegatronRecord, read_records
from program_rows import RecordRow
from progress import shown

from brimful.errors import BrimfulError
from brimful.programs.formulas import Machines, predict_program

MEDIAN_BAR, FAR_BAR, FAR_SHARE, TOLD_SHARE = 0.02, 0.1, 0.9, 0.6
_QUICK = 40
_DETAILS = re.compile(r" \([^()]*\)| of Megatron-LM.*|[,;] .*")
_NUMBERS = re.compile(r"\b\d+\b")


def run(*, seed: int, quick: bool) -> tuple[list[RecordRow], Summary]:
    """Predict every record."""
    del seed
    records = read_records()[:: _QUICK if quick else 1]
    rows = [predicted(each) for each in shown("records of Megatron-LM", records)]
    return rows, summarize(rows)


def predicted(record: MegatronRecord) -> RecordRow:
    """Predict a record, by nothing but its command line, card and number of processes."""
    peak = between = None
    refused = ""
    try:
        found = predict_program(record.command, record.world_size, Machines(record.gpu))
        peak = found.ranks[-1].predicted_peak_allocated_bytes
        between = found.ranks[-1].predicted_between_steps_bytes
    except BrimfulError as error:
        refused = str(error)
    published = record.published_peak_allocated_bytes
    return RecordRow(
        name=record.name,
        gpu=record.gpu,
        world_size=record.world_size,
        has_recipe=record.has_recipe,
        refused=refused,
        predicted_peak_allocated_bytes=peak,
        published_peak_allocated_bytes=published,
        peak_error=None if peak is None else peak / published - 1,
        predicted_between_steps_bytes=between,
        published_between_steps_bytes=record.published_between_steps_bytes,
    )


def summarize(rows: list[RecordRow]) -> Summary:
    """Sum up; how many are far is counted over all that are told."""
    errors = [row.peak_error for row in rows if row.peak_error is not None]
    spread = spread_of("peak", errors)
    between = [
        row.predicted_between_steps_bytes / row.published_between_steps_bytes - 1
        for row in rows
        if row.predicted_between_steps_bytes and row.published_between_steps_bytes
    ]
    told, near = len(errors) / len(rows), [abs(error) <= FAR_BAR for error in errors]
    missed = (
        [f"told: {told:.0%}"] * (told < TOLD_SHARE)
        + [f"median {spread.median:.2%}"] * (spread.median > MEDIAN_BAR)
        + [f"within {FAR_BAR:.0%}: {sum(near)} of {len(near)}"]
        * (sum(near) < FAR_SHARE * len(near))
    )
    reasons = Counter(_NUMBERS.sub("N", _DETAILS.sub("", row.refused)) for row in rows)
    del reasons[""]
    of_recipes = [abs(r.peak_error) for r in rows if r.peak_error is not None and r.has_recipe]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread, spread_of("between steps", between)),
        bars=(
            (
                f"{TOLD_SHARE:.0%} of all have a formula; their median within {MEDIAN_BAR:.0%}, "
                f"{FAR_SHARE:.0%} of them within {FAR_BAR:.0%}"
            ),
        ),
        missed=tuple(missed),
        findings=(
            f"records of {SOURCE}",
            (
                f"told: {len(errors)} of {len(rows)}; within 1% {_share(errors, 0.01)}, within 4% "
                f"{_share(errors, 0.04)}, within {FAR_BAR:.0%} {_share(errors, FAR_BAR)}"
            ),
            f"of tests that recipes still run, within 4%: {_share(of_recipes, 0.04)}",
            *(f"not told, {num}: {why}" for why, num in reasons.most_common()),
        ),
    )


def _share(errors: list[float], bar: float) -> str:
    return f"{sum(abs(error) <= bar for error in errors)} of {len(errors)}"
