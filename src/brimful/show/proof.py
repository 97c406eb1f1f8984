"""What simulating said of a plan, as facts."""

from typing import TYPE_CHECKING

from brimful.show.predicted import most_bytes, replayed_meter
from brimful.show.settings import allocator_words, differing_words
from brimful.show.summary import Fact
from brimful.units import format_bytes
from brimful.values.plan import Plan
from brimful.values.results import Reserved

if TYPE_CHECKING:
    from brimful.simulate.proof import Proof, Trial


def replaced_facts(proof: "Proof") -> tuple[Fact, ...]:
    """Say why the strategy that was predicted to be best is not the plan."""
    if proof.has_room:
        return ()  # which is said of what is unproven
    first = proof.trials[0]
    if first.reserved.word == "fits":
        return ()  # with other settings of the allocator, which the plan has
    words = f"what was predicted to be best does not hold: {_why_not(first.reserved)}"
    return (Fact("left out", words),)


def proof_facts(plan: Plan, proof: "Proof") -> tuple[Fact, ...]:
    """Say whether a plan holds, with both numbers, and what else was tried."""
    tried = _tried(proof)
    if proof.word == "unproven":
        if proof.has_room:
            return (Fact("unproven", _roomier(proof, tried)),)
        if proof.can_be_simulated:
            return (Fact("unproven", f"{proof.why}; brimful simulate shows whether it holds"),)
        return (Fact("unproven", f"{proof.why}: its formulas and their replay say that it holds"),)
    if proof.word == "no":
        lacks = _short(proof.nearest.reserved)
        words = f"does not hold: {tried}, none completes; the nearest is {lacks}{_ended(proof)}"
        return (Fact("simulated", words),)
    last = _chosen(proof)
    held = format_bytes(last.reserved.simulated_peak_reserved_bytes)
    both = f"{held} of {format_bytes(most_bytes(last.reserved))}"
    if proof.word == "tight":
        words = (
            f"TIGHT: {both}, {_why_tight(last.reserved)}; {tried}, none holds with room to spare"
            f"{_ended(proof)}"
        )
        return (Fact("simulated", words),)
    more = f", with {words}" if (words := allocator_words(last.strategy)) else ""
    more += f" ({tried})" if len(proof.trials) > 1 else ""
    return (Fact("proven", f"simulated on a pretend GPU: {both}{more}"), *_faster(plan, proof))


def _roomier(proof: "Proof", tried: str) -> str:
    """Say why a plan is neither what was predicted to be best nor simulated."""
    words = f"{proof.why}; brimful simulate shows whether it holds. "
    if not proof.trials:
        return f"{words}What is faster leaves less than the allocator may take"
    return f"{words}What is faster does not: {tried}, {_short(proof.nearest.reserved)}"


def _faster(plan: Plan, proof: "Proof") -> tuple[Fact, ...]:
    """Name what is faster than the plan and only completes with retries."""
    faster = [each for each in proof.trials if each.reserved.word == "tight"]
    if not faster:
        return ()
    strategy, reserved = faster[0].strategy, faster[0].reserved
    what = ", ".join(differing_words(plan.job, plan.strategy, strategy)) or "another allocator"
    why = f"; it {_why_tight(reserved)}" if reserved.num_retries else ""
    return (Fact("", f"faster, but TIGHT: {what}{why}"),)


def _why_not(reserved: Reserved) -> str:
    return _why_tight(reserved) if reserved.word == "tight" else _short(reserved)


def _short(reserved: Reserved) -> str:
    """Say what lacks as the meter of the same answer does: of all that it would hold."""
    meter = replayed_meter(reserved)
    short = format_bytes(max(1, meter.used_bytes - meter.usable_bytes))
    return f"short by {short} of {format_bytes(meter.usable_bytes)}"


def _why_tight(reserved: Reserved) -> str:
    if reserved.num_retries:
        return f"empties the allocator's cache {reserved.num_retries} x (slow)"
    over = format_bytes(max(1, reserved.simulated_unhindered_bytes - reserved.firm_bytes))
    firm = format_bytes(reserved.firm_bytes)
    return f"takes {over} more than the {firm} that CUDA's context and NCCL leave for sure"


def _chosen(proof: "Proof") -> "Trial":
    assert proof.chosen is not None
    return proof.trials[proof.chosen]


def _tried(proof: "Proof") -> str:
    num = len(proof.trials)
    words = f"{num} {'strategy' if num == 1 else 'strategies'} simulated"
    if proof.num_passed_over:
        words += f", {proof.num_passed_over} passed over as they need hardly less"
    return words


def _ended(proof: "Proof") -> str:
    return f"; {proof.why}" if proof.why else ""
