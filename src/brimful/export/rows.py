"""How long a run is in passes over the rows that are there, where each text is a row of its own.

A plan counts each row as full; what a run of so many tokens is in steps depends on how long the
texts are. Of packed rows it does not.
"""

import math
from typing import NamedTuple

from brimful.units import format_count
from brimful.values.job import PREFERENCE
from brimful.values.plan import Plan

BYTES_PER_TOKEN = 4.0
"""Of text, assumed: 4.2 of English in vocabularies of 100,000 words and more, 3 to 4 of code."""
_NEAR = 0.2
"""Passes this near to a whole number are that number: tokens are estimated, not counted."""


class Rows(NamedTuple):
    """What is in a file of data.

    Attributes:
        number: Of its rows.
        num_bytes: Of the texts in them, together.
    """

    number: int
    num_bytes: int


class Passes(NamedTuple):
    """A run as passes over data.

    Attributes:
        epochs: How many, a whole number; 0: it is none.
        steps: Optimizer steps in all.
        tokens: Of a row, estimated.
    """

    epochs: int
    steps: int
    tokens: int


def is_padded(plan: Plan) -> bool:
    """Whether a plan's steps were counted as full rows where texts may be shorter."""
    return bool(plan.asked_tokens) and plan.job.packing == "none"


def passes(plan: Plan, rows: Rows | None) -> Passes | None:
    """Return a plan's length in passes over rows; None: its steps are right, or nothing is known.

    ``rows``: what it is trained on; None: unknown.
    """
    if rows is None or not is_padded(plan):
        return None
    job = plan.job
    most = job.seq_len * (2 if job.task == PREFERENCE else 1)
    tokens = min(most, max(1, round(rows.num_bytes / rows.number / BYTES_PER_TOKEN)))
    times = plan.asked_tokens / (rows.number * tokens)
    whole = round(times)
    each = math.ceil(rows.number / job.global_batch)
    if whole and abs(times - whole) <= _NEAR:
        return Passes(whole, whole * each, tokens)
    return Passes(0, max(1, round(times * rows.number / job.global_batch)), tokens)


def length_words(plan: Plan, rows: Rows | None) -> str:
    """Say how the length of a run was counted; empty: there is nothing to say."""
    if not is_padded(plan):
        return ""
    job, asked = plan.job, format_count(plan.asked_tokens)
    found = passes(plan, rows)
    if found is None or rows is None:
        return (
            f"{job.num_steps:,} steps take every row for {job.seq_len:,} tokens, and of shorter "
            f"rows are less than {asked} tokens: set epochs, or give --data a file that is here"
        )
    length = f"{found.epochs} epochs, " if found.epochs else ""
    return (
        f"{rows.number:,} rows of some {found.tokens:,} tokens ({BYTES_PER_TOKEN:g} bytes each, "
        f"assumed): {asked} tokens are {length}{found.steps:,} steps, where the plan's "
        f"{job.num_steps:,} take every row for {job.seq_len:,}"
    )
