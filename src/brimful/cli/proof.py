"""The proof of a plan: what simulating says of it, behind the answer that formulas gave."""

import argparse
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from brimful.cli.for_program import simulates_as
from brimful.cli.output import DOES_NOT_FIT, FITS, host_may_fit
from brimful.cost.outside import num_groups, room_of

if TYPE_CHECKING:
    from brimful.search.budget import Budget
    from brimful.search.solve import Solution
    from brimful.simulate.inference import InferenceSimulation
    from brimful.simulate.proof import Proof, ProofWord
    from brimful.values.plan import Word
    from brimful.values.results import Simulation
    from brimful.values.strategy import Strategy


def add_proof(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-proof`` and ``--accept-tight``."""
    parser.add_argument(
        "--no-proof",
        action="store_true",
        help="do not simulate the plan: what its formulas ask for is still replayed",
    )
    add_accept_tight(parser)


def add_accept_tight(parser: argparse.ArgumentParser) -> None:
    """Add ``--accept-tight``."""
    parser.add_argument(
        "--accept-tight",
        action="store_true",
        help="exit with 0 where the plan completes only by giving back what its allocator cached",
    )


def proof_of(
    args: argparse.Namespace, found: "Solution", budget: "Budget"
) -> "tuple[Solution, Proof | None]":
    """Simulate a plan that formulas found, and the next best while none holds.

    Returns the plan that holds, or what was found; and the proof, None where none is needed: the
    plan is for no GPU, was simulated already, does not fit as it is, or leaves the allocator more
    than it ever took; and where none is wanted, or torch is not installed.
    """
    if not is_to_be_proven(args, found):
        return found, None
    simulates = simulates_as(args, found.plan)
    from brimful.cli.progress import Progress
    from brimful.process.library_output import quiet_libraries
    from brimful.process.quick_imports import quick_imports
    from brimful.search.spelling import spell

    quiet_libraries()
    with Progress("proving the plan", quiet=args.json) as progress:
        with quick_imports():
            from brimful.simulate.proof import MAX_TRIALS, prove

        def watch(strategy: "Strategy", num_done: int) -> None:
            words = f"simulating {spell(strategy)}"
            progress.report(words, num_done / MAX_TRIALS)

        solution, proof = prove(found, budget, watch=watch, simulates=simulates)
    record = msgspec.structs.replace(solution.record, left_out=found.record.left_out)
    return solution._replace(record=record), proof


def is_to_be_proven(args: argparse.Namespace, found: "Solution") -> bool:
    """Whether a plan is simulated before it is said to hold; see ``proof_of``."""
    if args.no_proof or not _may_be_proven(found) or find_spec("torch") is None:
        return False
    return simulates_as(args, found.plan) is not None or _needs_proof(found)


def _may_be_proven(found: "Solution") -> bool:
    """Whether a plan is of formulas, for a GPU, and fits by them."""
    plan = found.plan
    if plan.estimate is None or plan.cluster.device.kernels != "cuda":
        return False
    return found.record.rows[0].fits and host_may_fit(plan.estimate.host)


def _needs_proof(found: "Solution") -> bool:
    """Whether its formulas leave the allocator less than it may take."""
    plan = found.plan
    assert plan.estimate is not None, "asked before"
    made, band = plan.estimate, plan.estimate.predicted_peak_reserved_bytes
    firm = room_of(plan.cluster.device, num_groups=num_groups(plan.strategy)).firm_bytes
    return band is None or band.high > min(firm, made.usable_bytes)


def proof_words(proof: "Proof | None") -> str:
    """Say behind a way out what simulating said of it; nothing where nothing was simulated."""
    if proof is None:
        return ""
    return {"fits": "; proven", "tight": "; TIGHT"}.get(proof.word, "; not proven")


def word_of(simulation: "Simulation | InferenceSimulation", usable_bytes: int) -> "Word":
    """Say whether what was simulated holds: on a GPU by its allocator, else by live bytes."""
    if simulation.reserved is not None:
        return simulation.reserved.word
    return "fits" if simulation.simulated_peak_allocated_bytes <= usable_bytes else "no"


def word_code(args: argparse.Namespace, word: "ProofWord") -> int:
    """Return what a command ends with that simulated a plan."""
    if word == "tight":
        return FITS if args.accept_tight else DOES_NOT_FIT
    return DOES_NOT_FIT if word == "no" else FITS
