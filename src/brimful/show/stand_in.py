"""The verdict on what stands in for what was asked: it is that of what was asked, or not known.

What takes more and has no room says nothing of what takes less, and the other way round.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from brimful.errors import LESS, MORE
from brimful.show.summary import Fact, Meter, Summary
from brimful.units import format_bytes


class StandIn(NamedTuple):
    """What is answered in place of what was asked.

    Attributes:
        words: What it is, as it is typed.
        takes: Whether it takes ``MORE`` or ``LESS`` than what was asked; empty: as much.
        on_top_bytes: What each GPU holds beside it; 0: nothing.
        card_bytes: What a GPU has for both.
        above: What takes no less than what was asked, and does not fit; None: nothing was tried.
    """

    words: str
    takes: str
    on_top_bytes: int = 0
    card_bytes: int = 0
    above: "Tried | None" = None


class Tried(NamedTuple):
    """What was answered first, and does not fit.

    Attributes:
        words: What it is, as it is typed.
        meter: Its memory; None: nothing is known of it.
    """

    words: str
    meter: Meter | None


_now: list[tuple[StandIn, list[Summary]]] = []


@contextmanager
def standing_in(stand_in: StandIn) -> Iterator[list[Summary]]:
    """Judge what is printed as an answer to another question; yields what was judged so far."""
    found = list[Summary]()
    _now.append((stand_in, found))
    try:
        yield found
    finally:
        _now.pop()


def judged(summary: Summary) -> Summary:
    """Return an answer with the verdict that it has for what was asked."""
    if not _now:
        return summary
    stand_in, found = _now[-1]
    found.append(_judged(summary, stand_in))
    return found[-1]


def _judged(summary: Summary, stand_in: StandIn) -> Summary:
    if stand_in.on_top_bytes and summary.meter is not None:
        has_room = summary.meter.used_bytes + stand_in.on_top_bytes <= stand_in.card_bytes
        facts = (_left(stand_in, summary.meter), *summary.facts)
        return summary._replace(verdict=summary.verdict if has_room else "NO", facts=facts)
    if stand_in.takes == MORE and summary.verdict == "NO":
        words = f"it may fit: {stand_in.words} takes more"
    elif stand_in.takes == LESS and summary.verdict in {"FITS", "TIGHT"}:
        words = f"it may not fit: {stand_in.words} takes less"
    else:
        return summary
    shorts = [meter.used_bytes - meter.usable_bytes for meter in summary.meters]
    differs = "is short by" if max(shorts, default=0) > 0 else "leaves"
    size = format_bytes(abs(max(shorts, default=0)))
    above = "" if stand_in.above is None else _above(stand_in.above)
    fact = Fact("not known", f"{words}, and {differs} {size}{above}")
    return summary._replace(verdict="UNKNOWN", facts=(fact, *summary.facts))


def _left(stand_in: StandIn, meter: Meter) -> Fact:
    """Say what a peak leaves of a GPU for what comes on top of it, beside what that holds."""
    left, wants = stand_in.card_bytes - meter.used_bytes, stand_in.on_top_bytes
    has = f"{format_bytes(left)} of {format_bytes(stand_in.card_bytes)}" if left > 0 else "nothing"
    short = f", short by {format_bytes(wants - max(0, left))}" if wants > left else ""
    return Fact("left", f"{has} for what comes on top, which takes {format_bytes(wants)}{short}")


def _above(tried: Tried) -> str:
    """Say what the one takes that takes no less than what was asked."""
    if tried.meter is None:
        return f"; {tried.words} takes more, and does not fit"
    peak, usable = map(format_bytes, (tried.meter.used_bytes, tried.meter.usable_bytes))
    return f"; {tried.words} takes more: {peak} of {usable}"
