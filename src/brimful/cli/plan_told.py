"""The answer to ``plan`` as it is printed: what is predicted in a line, what is proven as a whole.

What a reader reads first is not taken back: a plan that is yet to be simulated has no verdict on
standard output before it was.
"""

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import for_program, resolved, uncompiled
from brimful.cli.assumed import assumed_facts, run_of
from brimful.cli.output import show_summary
from brimful.cli.proof import is_to_be_proven, proof_of
from brimful.show.terminal import is_speed_hidden
from brimful.text.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brimful.search.budget import Budget
    from brimful.search.solve import Solution
    from brimful.show.summary import Fact, Summary
    from brimful.simulate.proof import Proof
    from brimful.values.results import Reserved

LEAST_PROOF_S = 20
"""Seconds that a proof has of a longer budget, whatever a search with its traces used of it."""


def _with_untraced(args: argparse.Namespace, found: "Solution") -> "Solution":
    """Name the attention kernel that was not searched, as it would have to be traced."""
    attention = getattr(args, "untraced_attention", None)
    if attention is None:
        return found
    left = (*found.record.left_out, f"untried: --attention {attention}")
    return found._replace(record=msgspec.structs.replace(found.record, left_out=left))


def summary_of(
    args: argparse.Namespace, found: "Solution", proof: "Proof | None" = None
) -> "Summary":
    """Say what was found; where it was simulated, by what that said."""
    from brimful.show.plan import plan_summary

    found = _nearest(found, proof)
    plan = found.plan
    asked = resolved.Asked(plan.job, plan.cluster, plan.strategy)
    run = run_of(args, asked, plan.estimate, told_step_s(found))
    is_ours = not for_program.is_other(args)
    told = plan_summary(_with_untraced(args, found), run, _reserved_of(proof), is_ours=is_ours)
    beside = (
        *uncompiled.facts(args, plan.estimate, plan.cluster.device),
        *getattr(args, "beside_verdict", ()),
    )
    return told._replace(facts=(*beside, *told.facts))


def _nearest(found: "Solution", proof: "Proof | None") -> "Solution":
    """Return what was found with the settings of what lacked least, where nothing holds."""
    from brimful.cost.estimate import estimate

    plan = found.plan
    if proof is None or proof.word != "no" or proof.nearest.strategy == plan.strategy:
        return found
    strategy = proof.nearest.strategy
    made = estimate(plan.job, plan.cluster, strategy)
    return found._replace(plan=msgspec.structs.replace(plan, strategy=strategy, estimate=made))


def told_step_s(found: "Solution") -> float | None:
    """Return the seconds of a step of the settings that are told; None: unknown."""
    plan, best = found.plan, found.record.rows[0]
    if best.strategy == plan.strategy or plan.estimate is None:
        return best.step_s
    return plan.estimate.predicted_step_s


def _reserved_of(proof: "Proof | None") -> "Reserved | None":
    """Return what simulating said of the plan, or of what is nearest where none holds."""
    if proof is None or not proof.trials or proof.word == "unproven":
        return None
    trials = proof.trials
    if proof.chosen is not None:
        return trials[proof.chosen].reserved
    return proof.nearest.reserved


def proven_facts(found: "Solution", proof: "Proof | None") -> "Sequence[Fact]":
    """Say what simulating said; nothing where nothing was simulated."""
    if proof is None:
        return ()
    from brimful.show.proof import proof_facts

    return proof_facts(found.plan, proof)


def _assumed(args: argparse.Namespace, found: "Solution") -> "list[Fact]":
    """Return what the answer will end with that nobody typed."""
    facts = assumed_facts(args, found.plan.job)
    return [each for each in facts if each.label == "assumed"]


def show_first(args: argparse.Namespace, searched: "Solution") -> None:
    """Print the answer, or where it has yet to be proven what is predicted, in a line."""
    if not is_to_be_proven(args, searched):
        show_summary(summary_of(args, searched), _assumed(args, searched), leads_out=True)
        return
    first = summary_of(args, searched)
    meters = "; ".join(
        f"{each.label} {each.words.removesuffix(', predicted')}" for each in first.meters
    )
    shown = () if is_speed_hidden() else first.facts
    told = (fact.text.partition(" (")[0] for fact in shown if fact.label == "speed")
    words = f"predicted, being proven: {'; '.join([meters, *told])}"
    say(words, file=sys.stderr, flush=True)


def proven_or_told(
    args: argparse.Namespace, searched: "Solution", budget: "Budget"
) -> "tuple[Solution, Proof | None]":
    """Prove a plan in the time that the search left; who interrupts that is told the prediction."""
    from brimful.search.budget import Budget

    left_s = max(budget.left_s, min(LEAST_PROOF_S, args.budget))
    try:
        return proof_of(args, searched, Budget(round(left_s)))
    except KeyboardInterrupt:
        if not args.json:
            show_summary(summary_of(args, searched))
        raise


def show_proof(
    args: argparse.Namespace, searched: "Solution", found: "Solution", proof: "Proof | None"
) -> "Sequence[Fact]":
    """Print the answer as simulating has it; where that is another than predicted, say so below.

    Returns what is said of the proof, to be printed behind.
    """
    from brimful.show.proof import replaced_facts

    if proof is None:
        return ()
    # Whether a plan has other settings than the one that was told.
    from brimful.show.settings import settings_words

    first, last = (settings_words(each.plan.job, each.plan.strategy) for each in (searched, found))
    is_other = first != last
    is_as_told = not is_other and proof.word in {"fits", "unproven"}
    summary = summary_of(args, found, None if is_as_told else proof)
    show_summary(summary, _assumed(args, found), leads_out=True)
    told = proven_facts(found, proof)
    is_alone = len(told) == 1  # else what is faster and TIGHT was told
    return (*told, *(replaced_facts(proof) if is_other and is_alone else ()))
