"""Tracing what a job needs that does not ship: a line on stderr, a bar, and never twice."""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from brimful.cost.formula import is_traceable, missing_formula, told_short
from brimful.cost.own_programs import Need, chosen_program
from brimful.cost.profiles import is_own, load_profile
from brimful.cost.programs import kernels_of
from brimful.errors import UnknownMemoryError, UnsupportedError
from brimful.show.summary import Fact
from brimful.terminal import say

if TYPE_CHECKING:
    from brimful.cli.flags import Asked


def traced_or_untold(args: argparse.Namespace, asked: "Asked", needs: Sequence[Need]) -> str:
    """Trace what a job needs, where it has no formula and may have one.

    Args:
        args: The flags.
        asked: The job, and a strategy that stands for all that is asked.
        needs: What they need.

    Returns:
        Why no formula covers it still; empty where one does.

    Raises:
        UnknownMemoryError: What it takes can be counted in no way.
        UnsupportedError: Tracing needs what is not installed.
    """
    job, cluster, strategy = asked
    device = cluster.device
    untold = missing_formula(job, strategy, device)
    if not is_traceable(job, strategy, device):
        return untold
    if find_spec("torch") is None:
        if not untold:
            return ""
        raise UnsupportedError(
            f"{told_short(untold)}, and tracing one needs torch here, which is not installed; "
            f"pip install 'brimful[train]'"
        )
    try:
        _trace(args, asked, needs, told_short(untold))
    except UnknownMemoryError:
        raise  # simulating cannot count it either
    except UnsupportedError as error:
        return f"{error}; brimful plan and brimful simulate trace each strategy instead"
    return missing_formula(job, strategy, device)


def _trace(args: argparse.Namespace, asked: "Asked", needs: Sequence[Need], why: str) -> None:
    from brimful.cost.own_programs import missing_needs

    job, cluster, strategy = asked
    kernels = kernels_of(cluster.device)
    missing = missing_needs(job, strategy.attention, kernels, needs)
    if not missing:
        return
    from brimful.cli.progress import Progress
    from brimful.quick_imports import quick_imports
    from brimful.quiet import quiet_libraries

    quiet_libraries()
    if not args.json:
        reason = f"{why}: " if why else ""
        words = f"{reason}a profile of {job.model.name} is traced here, once"
        say(words, file=sys.stderr, flush=True)
    with Progress("tracing", quiet=args.json) as progress, quick_imports():
        from brimful.simulate.on_demand import trace_needs

        trace_needs(job, strategy.attention, kernels, missing, on_progress=progress.update_share)


def traced_facts(asked: "Asked") -> tuple[Fact, ...]:
    """Say of an answer whose profile was traced here by which versions; nothing of any other."""
    job, cluster, strategy = asked
    if strategy.pp > 1 or missing_formula(job, strategy, cluster.device):
        return ()
    program = chosen_program(
        job, strategy.attention, kernels_of(cluster.device), "full", tp=strategy.tp, ep=strategy.ep
    )
    if not is_own(program.key):
        return ()
    libraries = [each for each in load_profile(program.key).versions if _is_library(each)]
    return (Fact("profile", f"traced here, by {', '.join(libraries)}"),)


def _is_library(version: str) -> bool:
    return version.split(maxsplit=1)[0] in {"torch", "transformers"}
