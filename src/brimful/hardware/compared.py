"""Of which GPUs a predicted speed was ever laid beside a run, and how far off it was.

Runs that others published, told before their speed was looked at; made by
``validation/compared_gpus.py``.
"""

from functools import cache
from importlib import resources

import msgspec

FILE = "compared_gpus.json"


class Compared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a GPU's predicted speeds.

    Attributes:
        runs: That were compared.
        error: Median of the sizes of predicted / published - 1.
    """

    runs: int
    error: float


@cache
def _all() -> dict[str, Compared]:
    content = resources.files("brimful").joinpath("data", FILE).read_bytes()
    return msgspec.json.decode(content, type=dict[str, Compared])


def runs_words(name: str) -> str:
    """Say how many runs of a GPU were compared, and how far off its speed was."""
    found = _all().get(name)
    if found is None:
        return "no run of this GPU was compared"
    runs = "1 run" if found.runs == 1 else f"{found.runs} runs, at the median"
    return f"tokens/s {found.error:.0%} off in {runs}, told before they were looked at"


def compared_words(name: str, band: float) -> str:
    """Say of a GPU's speed that its range is not borne out by runs; nothing where it is.

    ``band``: half the width of the range that is told around a speed, as a share of it.
    """
    found = _all().get(name)
    if found is None:
        return "speed by the data sheet (no run of this GPU was compared)"
    if found.error <= band:
        return ""
    runs = "the one run" if found.runs == 1 else f"{found.runs} runs"
    return f"speed {found.error:.0%} off in {runs} of this GPU that were compared"
