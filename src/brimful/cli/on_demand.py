"""Tracing what a job needs that does not ship: a line on stderr, a bar, and never twice."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING

from brimful.cost.formula import is_traceable, missing_formula, told_short, untraced
from brimful.cost.needed import traced_job
from brimful.cost.own_programs import Need, chosen_program
from brimful.cost.profiles import Body, is_own, load_profile
from brimful.cost.programs import kernels_of
from brimful.errors import UnknownMemoryError, UnsupportedError
from brimful.show.summary import Fact
from brimful.text.terminal import say
from brimful.values.strategy import gathers, is_selective

if TYPE_CHECKING:
    from brimful.cli.resolved import Asked
    from brimful.simulate.on_demand import Tracing

_LEANEST_FIRST: tuple[Body, ...] = ("checkpointed", "plain")
"""Of these plain ones tell the work that is not computed again."""
MOST_LEANER_S = 6.0
"""After which no further body is traced to say what would make a job fit."""
TOLD_EVERY_S = 3.0
"""How often a line says how far tracing is, where there is no terminal to show it."""


def _nothing() -> None:
    """Say nothing more."""


def _never(_next_s: float) -> bool:
    """Trace all that is asked for."""
    return False


def traced_or_untold(
    args: argparse.Namespace,
    asked: "Asked",
    needs: Sequence[Need],
    tell: Callable[[], None] = _nothing,
    is_over: Callable[[float], bool] | None = None,
) -> str:
    """Trace what a job needs, where it has no formula and may have one.

    ``asked``: the job, and a strategy that stands for all that is asked. ``tell``: says beforehand
    what is known without tracing. Returns why no formula covers it still; empty where one does.
    Raises UnknownMemoryError: what it takes can be counted in no way.
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
        _trace(args, asked, needs, told_short(untold), tell, is_over or _never)
    except UnknownMemoryError:
        raise  # simulating cannot count it either
    except UnsupportedError as error:
        return f"{error}; brimful plan and brimful simulate trace each strategy instead"
    return missing_formula(job, strategy, device)


def untraced_leaner(asked: "Asked") -> list[Need]:
    """List what recomputes more than a job and was not traced, what recomputes most first.

    ``asked``: the job, and the strategy that does not fit.
    """
    from brimful.cost.needed import needed
    from brimful.search.lean import ladder

    job, cluster, strategy = asked
    usual = [one for one in ladder(*asked) if not is_selective(one)]
    needs = sorted({need for one in usual for need in needed(job, one)}, key=_most_recomputed)
    return list(untraced(job, strategy, cluster.device, needs))


def trace_leaner(args: argparse.Namespace, asked: "Asked") -> None:
    """Trace what recomputes more than a job that does not fit, body by body while there is time.

    ``asked``: the job, and the strategy that does not fit.
    """
    start_s = time.monotonic()
    for _, some in groupby(untraced_leaner(asked), _most_recomputed):
        if time.monotonic() - start_s > MOST_LEANER_S:
            return
        with contextlib.suppress(UnsupportedError):
            _trace(args, asked, list(some), "", _nothing, _never)


def _most_recomputed(need: Need) -> tuple[bool, tuple[bool, ...], Body]:
    return need.gathers, tuple(need.body != body for body in _LEANEST_FIRST), need.body


def _trace(  # noqa: PLR0913, PLR0917 - what is traced, and what is said of it
    args: argparse.Namespace,
    asked: "Asked",
    needs: Sequence[Need],
    why: str,
    tell: Callable[[], None],
    is_over: Callable[[float], bool],
) -> None:
    job, cluster, strategy = asked
    if not untraced(job, strategy, cluster.device, needs):
        return
    from brimful.cli.progress import Progress
    from brimful.process.library_output import quiet_libraries
    from brimful.process.quick_imports import quick_imports

    quiet_libraries()
    if not args.json:
        more = "" if why else "more of "
        reason = f"{why}: " if why else ""
        words = f"{reason}{more}a profile of {job.model.name} is traced here, once"
        say(words, file=sys.stderr, flush=True)
        if why:
            tell()
    with Progress("tracing", quiet=args.json, every_s=TOLD_EVERY_S) as progress, quick_imports():
        from brimful.models.config import check_buildable
        from brimful.simulate.on_demand import trace_needs

        check_buildable(job.model)
        trace_needs(
            traced_job(job, strategy), strategy.attention,
            kernels_of(cluster.device, strategy.fused_kernels), needs,
            watch=lambda state: progress.report(_words(state), state.share), is_over=is_over,
        )  # fmt: skip


def _words(state: "Tracing") -> str:
    """Say which body is traced, of how many, and for how long it has been."""
    body, num = min(state.num_done + 1, state.num_bodies), state.num_bodies
    return f"{state.what} blocks, {body} of {num} programs, {state.spent_s:.0f} s"


def traced_facts(asked: "Asked") -> tuple[Fact, ...]:
    """Say of an answer whose profile was traced of its own model by which versions."""
    job, cluster, strategy = asked
    if missing_formula(job, strategy, cluster.device):
        return ()
    traced = traced_job(job, strategy)
    kernels = kernels_of(cluster.device, strategy.fused_kernels)
    program = chosen_program(
        traced, strategy.attention, kernels, "full",
        gathers=gathers(strategy), tp=strategy.tp, ep=strategy.ep,
    )  # fmt: skip
    if not is_own(program.key):
        return ()
    libraries = [each for each in load_profile(program.key).versions if _is_library(each)]
    return (Fact("profile", f"traced by {', '.join(libraries)}"),)


def _is_library(version: str) -> bool:
    return version.split(maxsplit=1)[0] in {"torch", "transformers"}
