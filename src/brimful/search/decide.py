"""The decision tree in words: which technique first, and when to stop, all of it from the ledger.

Nothing here is advice by rote: every sentence is made of numbers that were estimated for this job.
"""

import msgspec

from brimful.search.alternatives import Alternative
from brimful.search.ledger import LedgerRow, Rival
from brimful.units import format_bytes, format_seconds


class Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node of the tree.

    Attributes:
        depth: How many switches were made before it.
        question: What is asked.
        answer: What the numbers say.
        action: What follows.
    """

    depth: int
    question: str
    answer: str
    action: str


def decide(rows: tuple[LedgerRow, ...], others: tuple[Alternative, ...]) -> tuple[Decision, ...]:
    """Say in words how one comes from the naive run to the plan.

    ``rows``: the ledger; where it is empty the naive run is the plan, and there is nothing to say.
    ``others``: what each switch of the plan does at its other values. Returns a question at every
    depth, and a last one on what could be left out.
    """
    if not rows:
        return ()
    nodes = [_node(depth, row) for depth, row in enumerate(rows)]
    return (*nodes, _end(rows[-1], len(rows), others))


def _node(depth: int, row: LedgerRow) -> Decision:
    name = "the naive run" if depth == 0 else "it"
    return Decision(
        depth=depth,
        question=f"Does {name} fit?" if depth == 0 else "Does it fit now?",
        answer=_fit(row.peak_before_bytes, row.usable_bytes, row.least_before_bytes),
        action=_action(row),
    )


def _fit(peak_bytes: int | None, usable_bytes: int, least_bytes: int | None = None) -> str:
    if peak_bytes is None:
        if least_bytes is None or least_bytes <= usable_bytes:
            return "Unknown: no formula covers that run."
        states = f"{format_bytes(least_bytes)} of parameters, gradients and optimizer state"
        return f"No: {states}, short by {format_bytes(least_bytes - usable_bytes)} before the rest."
    peak = format_bytes(peak_bytes)
    if peak_bytes <= usable_bytes:
        return f"Yes: {peak}, {format_bytes(usable_bytes - peak_bytes)} to spare."
    return f"No: {peak}, short by {format_bytes(peak_bytes - usable_bytes)}."


def _action(row: LedgerRow) -> str:
    change = f"{row.switch} {row.before or 'none'} -> {row.after}"
    if row.owner == "job":
        return f"Your job says {change}{_effect(row)}. That changes what is learnt: your choice."
    if row.owner == "both":
        return f"Your job and the planner say at once {change}{_effect(row)}."
    fitted = row.peak_before_bytes is not None and row.peak_before_bytes <= row.usable_bytes
    lead = "It could stop here; the plan goes on with" if fitted else "Next"
    return f"{lead} {change}{_effect(row)}{_why_first(row)}."


def _effect(row: LedgerRow) -> str:
    if row.saved_bytes is None:
        return ""
    saves = "saves" if row.saved_bytes >= 0 else "adds"
    words = f": {saves} {format_bytes(abs(row.saved_bytes))}"
    return words + (f", {_seconds(row.added_s)}" if row.added_s is not None else "")


def _seconds(added_s: float) -> str:
    return f"{format_seconds(abs(added_s))} a step {'more' if added_s > 0 else 'less'}"


def _why_first(row: LedgerRow) -> str:
    """Say why this one came before the switches that were left, by the rule of the ledger."""
    if not row.rivals or row.saved_bytes is None:
        return ""
    rival = max(row.rivals, key=lambda other: other.saved_bytes)
    other = f"{rival.switch} would have saved {format_bytes(rival.saved_bytes)}{_price(rival)}"
    if row.added_s is not None and row.added_s <= 0:
        return f"; first because it costs no time ({other})"
    rate = f", {format_bytes(row.saved_bytes / row.added_s)}" if row.added_s else ""
    return f"; first because it buys most memory per second{rate} ({other})"


def _price(rival: Rival) -> str:
    return f", {_seconds(rival.added_s)}" if rival.added_s is not None else ""


def _end(last: LedgerRow, depth: int, others: tuple[Alternative, ...]) -> Decision:
    needed = [other for other in others if not other.fits]
    words = "; ".join(f"{other.setting}: {other.words}" for other in needed)
    if last.fits:
        question, action = (
            "Could it do with less?",
            words or "Every other value of one switch fits.",
        )
    else:
        question, action = "What is left?", "Nothing of the planner's: see the ways out."
    return Decision(
        depth=depth,
        question=question,
        answer=_fit(last.peak_after_bytes, last.usable_bytes),
        action=action,
    )
