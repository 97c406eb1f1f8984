"""Of which GPUs a predicted speed was ever laid beside a run, and how far off it was.

Runs that others published, told before their speed was looked at; made by
``validation/compared_gpus.py``.
"""

from functools import cache
from importlib import resources

import msgspec

FILE = "compared_gpus.json"


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where eight of ten runs were, in parts of the seconds that are told of them now.

    Attributes:
        projects: Whose runs they are; each counts once.
        low: A tenth took less.
        high: A tenth took more.
    """

    projects: int
    low: float
    high: float


class Compared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a GPU's predicted speeds.

    Attributes:
        runs: That were compared.
        error: Median of the sizes of predicted / published - 1, as first told.
        range: Of this GPU alone; None: too few projects ran on it.
    """

    runs: int
    error: float
    range: Range | None = None


class AllCompared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of all.

    Attributes:
        gpus: By name.
        others: The range of all that have none of their own.
    """

    gpus: dict[str, Compared]
    others: Range


@cache
def compared() -> AllCompared:
    """Read what is known of all."""
    content = resources.files("brimful").joinpath("data", FILE).read_bytes()
    return msgspec.json.decode(content, type=AllCompared)


def range_of(name: str) -> Range:
    """Return the range of a GPU's speeds: its own, or that of all which have none."""
    found = compared().gpus.get(name)
    return (found and found.range) or compared().others


def runs_words(name: str) -> str:
    """Say how many runs of a GPU were compared, and how far off its speed was."""
    found = compared().gpus.get(name)
    if found is None:
        return "no run of this GPU was compared"
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs, at the median"
    return f"tokens/s {found.error:.0%} off in {runs}, told before they were looked at"


def compared_words(name: str) -> str:
    """Say of a GPU's speed that its range is not borne out by runs; nothing where it is."""
    found, around = compared().gpus.get(name), range_of(name)
    if found is None:
        return "speed by the data sheet (no run of this GPU was compared)"
    if found.error <= around.high - 1:
        return ""
    runs = "the one run" if found.runs == 1 else f"{found.runs} runs"
    return f"speed {found.error:.0%} off in {runs} of this GPU that were compared"
