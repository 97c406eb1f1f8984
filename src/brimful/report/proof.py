"""What simulating said of a plan, in sentences."""

from typing import TYPE_CHECKING

from brimful.report.words import reserved_sentence
from brimful.rungs import Reserved
from brimful.simulate.search import spell
from brimful.units import format_bytes

if TYPE_CHECKING:
    from brimful.simulate.proof import Proof, Trial


def trial_sentence(trial: "Trial") -> str:
    """Say why the strategy that formulas found first is not the plan."""
    return f"simulated, that plan does not hold: {reserved_sentence(trial.reserved)}"


def proof_sentence(proof: "Proof") -> str:
    """Say whether the plan holds, with both numbers, and what else was tried."""
    tried = _tried(proof)
    if proof.word == "unproven":
        return f"not proven: {proof.why}; brimful simulate shows whether it holds"
    if proof.word == "no":
        least = min(proof.trials, key=lambda each: each.reserved.short_bytes).reserved
        return (
            f"does not hold: {tried}, and none completes; the nearest is short by "
            f"{format_bytes(least.short_bytes)} of {format_bytes(least.capacity_bytes)}"
            f"{_ended(proof)}"
        )
    last = _chosen(proof)
    with_it = f", with {last.strategy.allocator}" if last.strategy.allocator else ""
    held = format_bytes(last.reserved.simulated_peak_reserved_bytes)
    both = f"{held} of {format_bytes(last.reserved.capacity_bytes)}"
    if proof.word == "tight":
        return (
            f"TIGHT: {tried}, and none completes at ease; this one holds {both}{with_it} and "
            f"{_why_tight(last.reserved)}; --accept-tight takes it{_ended(proof)}"
        )
    return f"proven: simulated, the allocator holds at most {both}{with_it} ({tried})"


def tight_sentence(proof: "Proof") -> str:
    """Name what is faster than the plan and only completes with retries; empty: nothing."""
    faster = [each for each in proof.trials if each.reserved.word == "tight"]
    if proof.word != "fits" or not faster:
        return ""
    strategy, reserved = faster[0].strategy, faster[0].reserved
    return f"faster, but TIGHT: {spell(strategy)}; it {_why_tight(reserved)}"


def _why_tight(reserved: Reserved) -> str:
    if reserved.num_retries:
        return f"gives back what it cached, {reserved.num_retries} x (slow)"
    firm = format_bytes(reserved.firm_bytes)
    return f"completes if little lies outside the allocator, of which {firm} are sure"


def _chosen(proof: "Proof") -> "Trial":
    assert proof.chosen is not None
    return proof.trials[proof.chosen]


def _tried(proof: "Proof") -> str:
    num = len(proof.trials)
    words = f"{num} {'strategy' if num == 1 else 'strategies'} simulated"
    if proof.num_passed_over:
        words += f", {proof.num_passed_over} like them passed over"
    return words


def _ended(proof: "Proof") -> str:
    return f"; {proof.why}" if proof.why else ""
