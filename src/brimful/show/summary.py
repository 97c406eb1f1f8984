"""The answer to one question as a value, from which terminal and page are rendered."""

from typing import Literal, NamedTuple

from brimful.units import format_bytes
from brimful.values.plan import Word

Verdict = Literal["FITS", "TIGHT", "NO", "UNKNOWN"]
VERDICTS: dict[Word, Verdict] = {"fits": "FITS", "tight": "TIGHT", "no": "NO"}


class Meter(NamedTuple):
    """Memory used of what a GPU has for it.

    Attributes:
        used_bytes: What is needed.
        usable_bytes: What there is.
        how: Which figure this is and how it was found, in words.
        label: Whose memory it is.
    """

    used_bytes: int
    usable_bytes: int
    how: str
    label: str = "memory"

    @property
    def share(self) -> float:
        """Return what is used as a share of what there is; 1 or more of nothing."""
        return self.used_bytes / self.usable_bytes if self.usable_bytes else float("inf")

    @property
    def words(self) -> str:
        """Say both numbers, and what is missing where it does not suffice."""
        both = f"{format_bytes(self.used_bytes)} of {format_bytes(self.usable_bytes)}"
        short = self.used_bytes - self.usable_bytes
        missing = f", short by {format_bytes(short)}" if short > 0 else ""
        return f"{both}{missing}, {self.how}"


def on_each(meter: Meter, num_devices: int, kernels: str = "cuda") -> Meter:
    """Say of a meter that each of several devices has as much, and needs it."""
    label = "each CPU" if kernels == "cpu" else "per GPU"
    return meter if num_devices == 1 else meter._replace(label=label)


AS_FAR = " as far as kernels are known"
LOWER_BOUND = f"{AS_FAR.strip()}:"
"""Said in the first line where some kernels may take memory that is not known."""


def at_least(meter: Meter) -> Meter:
    """Say of a meter that there may be more."""
    return meter._replace(how=f"{meter.how}, at least")


class Fact(NamedTuple):
    """One line of the answer.

    Attributes:
        label: What it is about.
        text: What is said of it.
        short: The same in fewer words, for where lines are lacking; empty: nothing can be left out.
        least: In fewer yet, for where a line more is lacking.
    """

    label: str
    text: str
    short: str = ""
    least: str = ""


class Summary(NamedTuple):
    """The answer to one question.

    Attributes:
        verdict: Whether it fits; None where that was not the question.
        subject: What was asked about.
        meter: Memory at its peak; None where nothing is known of it.
        facts: What else is to be known, the most important first.
        host: Memory of a node's host, where that does not suffice; None: it does, or may.
    """

    verdict: Verdict | None
    subject: str
    meter: Meter | None
    facts: tuple[Fact, ...]
    host: Meter | None = None

    @property
    def meters(self) -> tuple[Meter, ...]:
        """What there is too little of, or may be."""
        return tuple(each for each in (self.meter, self.host) if each is not None)
