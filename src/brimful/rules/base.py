"""What a rule is, what a check finds, and how a rule's figure is held against ours."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from brimful.rules.subject import Subject
from brimful.units import GIB

Verdict = Literal["holds", "holds only when", "wrong", "not checkable here", "unknown"]
"""``not checkable here``: no arithmetic can tell. ``unknown``: no formula of ours covers it yet."""
TOLERANCE = 0.1
"""A rule of thumb holds where its figure is within this share of ours."""
FAR = 10
"""Relative errors beyond this are no figure that anybody needs."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a check found for one model on one GPU.

    Attributes:
        says: The rule's figure for this model and GPU.
        ours: Ours, and which rung it is of.
        verdict: Whether the rule holds.
        error: Signed relative error of the rule's figure against ours; None: no two figures.
        why: When it holds, what it leaves out, or where the evidence is.
    """

    says: str
    ours: str
    verdict: Verdict
    error: float | None
    why: str


class Rule(NamedTuple):
    """A rule of thumb.

    Attributes:
        key: Its name.
        group: What it is about.
        statement: The rule, in our words.
        stated: The figures as they circulate.
        check: Holds it against our numbers; may raise ``UnsupportedError``.
        is_of_full: Whether it is about training every parameter, and of nothing else.
    """

    key: str
    group: str
    statement: str
    stated: str
    check: Callable[[Subject], Finding]
    is_of_full: bool = False


class Checked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule with what its check found: ``Rule`` and ``Finding`` in one row."""

    key: str
    group: str
    statement: str
    stated: str
    says: str
    ours: str
    verdict: Verdict
    error: float | None
    why: str


def compare(
    says: float, ours: float, words: Callable[[float], str], *, why: str, rung: str = "predicted"
) -> Finding:
    """Hold one figure against ours.

    ``ours``: ours, of the same unit; at 0 or below no relative error says anything. ``rung``: of
    our figure; empty where it is a count or a datasheet's.
    """
    label = f" {rung}" if rung else ""
    if ours <= 0 < says:
        return stated("wrong", says=words(says), ours=f"{words(ours)}{label}", why=why)
    error = says / ours - 1
    verdict: Verdict = "holds" if abs(error) <= TOLERANCE else "wrong"
    return Finding(
        says=words(says), ours=f"{words(ours)}{label}", verdict=verdict, error=error, why=why
    )


def compare_range(
    says: tuple[float, float],
    ours: float,
    words: Callable[[float], str],
    *,
    why: str,
    rung: str = "predicted",
) -> Finding:
    """Hold a range against our figure: it holds within, and to the tolerance beyond.

    The error is that of the end of the range which is nearer.
    """
    low, high = says
    nearest = min(max(ours, low), high)
    found = compare(nearest, ours, words, why=why, rung=rung)
    return msgspec.structs.replace(found, says=f"{words(low)} to {words(high)}")


def stated(
    verdict: Verdict, *, says: str, ours: str, why: str, error: float | None = None
) -> Finding:
    """Return a finding whose verdict is no mere comparison of two figures."""
    return Finding(says=says, ours=ours, verdict=verdict, error=error, why=why)


def gibibytes(num_bytes: float) -> str:
    """Print GiB, as everywhere; rules that say GB mean 1e9 bytes, of which one is 0.93 GiB."""
    return f"{num_bytes / GIB:.4g} GiB"


def percent(share: float) -> str:
    """Print a share."""
    return f"{share:.0%}".replace("%", " %")


def times(factor: float) -> str:
    """Print a factor."""
    return f"{factor:.3g} x"


def verdict_words(checked: Checked) -> str:
    """Spell a verdict with its error: ``wrong: 38 % too high``."""
    if checked.error is not None and checked.verdict == "wrong" and abs(checked.error) > FAR:
        return "wrong by far"
    if checked.verdict == "wrong" and checked.error is not None:
        way = "high" if checked.error > 0 else "low"
        return f"wrong: {percent(abs(checked.error))} too {way}"
    return checked.verdict
