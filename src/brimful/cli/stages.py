"""What a search traces first, and where it has traced enough: a first answer comes early.

First what recomputes nothing, of the sharding that holds least on each device; where that does not
fit, what recomputes everything; then the other ways to shard, and what is between, the likeliest
gain first. Nothing that recomputes is faster than what does not, so that what is known bounds what
is left to gain.
"""

import argparse
from typing import TYPE_CHECKING

from brimful.errors import InputError, UnsupportedError
from brimful.show.terminal import is_speed_hidden
from brimful.units import format_bytes, format_seconds
from brimful.values.strategy import gathers, world_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brimful.cost.own_programs import Need
    from brimful.hardware.cluster import Cluster
    from brimful.search.budget import Budget
    from brimful.search.pins import Pins
    from brimful.search.solve import Solution
    from brimful.values.job import Job
    from brimful.values.strategy import Attention, Strategy

NOT_RECOMPUTED = "checkpointing was not tried, as it is slower"
MOST_TRACED = 0.5
"""Of a search's time: what is not traced then waits where something fits."""
LEAST_GAIN = 0.02
"""Of a step's time, for which more is traced."""
_WHOLE = frozenset({"plain", "checkpointed"})


def first_of(
    args: argparse.Namespace, job: "Job", plainest: "Strategy", needs: "list[Need]"
) -> "list[Need]":
    """Choose what is traced before anything is known: what recomputes nothing, as it is sharded.

    Where it is fixed what recomputes, all that is asked for of that sharding. Of pairs of texts the
    whole loss alone: a decoder that is given what an encoder makes runs again for each way to cut
    it (``pretend.repeated_body``).

    ``plainest``: that has what the flags fix, and shards what they leave open.
    """
    is_row = plainest.pp > 1  # which may be of any sharding
    alike = [
        need
        for need in needs
        if is_row or (need.gathers == gathers(plainest) and need.ep == plainest.ep)
    ]
    if is_recompute_fixed(args):
        return alike or needs
    plain = [need for need in alike if need.body == "plain"]
    whole = [need for need in plain if need.num_chunks == plainest.loss_chunks == 1]
    return (job.task == "seq2seq" and whole) or plain or needs


def next_of(missing: "list[Need]", found: "Solution", _needs: "list[Need]") -> "list[Need]":
    """Choose what is traced next.

    ``missing``: what was not traced, which is not nothing. ``found``: the best of what was.
    """
    holds = is_held(found)
    wholes = [need for need in missing if need.recompute == "full" and need.body in _WHOLE]
    plain = [need for need in wholes if need.body == "plain"]
    lean = [] if holds else [need for need in wholes if need.gathers and need.ep == 1]
    return lean or plain or (not holds and wholes) or sorted(missing, key=_gains_least)


def _gains_least(need: "Need") -> tuple[bool, bool, bool, bool]:
    """Order what is between: some blocks rather than all, few of them, and what keeps more."""
    is_some, is_many = "mixed" in need.body, need.body != "mixed"
    return not is_some, is_many, need.recompute == "full", not need.gathers


def why_no_more(
    args: argparse.Namespace, found: "Solution", budget: "Budget", missing: "Sequence[Need]"
) -> str:
    """Say why what is missing need not be traced; empty where it is."""
    if may_stop_early(args) and all(need.body != "plain" for need in missing):
        gain = _most_gain(found)
        if gain == 0:
            return NOT_RECOMPUTED
        if gain < LEAST_GAIN:
            return not_traced(missing, f", which gains {gain:.1%} at most")
    if is_late(budget) and is_held(found):
        return not_traced(missing, " in time (a larger --budget does)")
    return ""


def is_late(budget: "Budget", next_s: float = 0.0) -> bool:
    """Whether nothing more is traced where something fits.

    ``next_s``: what the next program would take.
    """
    return budget.left_s - next_s < (1 - MOST_TRACED) * budget.seconds


def not_traced(missing: "Sequence[Need]", why: str) -> str:
    """Say of what is missing that it was not traced; the shorter part comes first."""
    plain = [need for need in missing if need.body == "plain"]
    again = [need for need in missing if need.body != "plain"]
    names = ["other checkpointing"] if again else []
    if any(not need.gathers for need in plain):
        names.append("whole copies on each GPU")
    if any(need.gathers for need in plain):
        names.append("another cut of the loss or spread")
    verb = "was" if len(names) == 1 and not names[0].startswith("whole") else "were"
    ways = ", ".join(dict.fromkeys(map(_way_of, again)))
    return f"{' and '.join(names)} {verb} not traced{why}{f': {ways}' if ways else ''}"


def _way_of(need: "Need") -> str:
    """Name what is checkpointed in which way."""
    layers = "all" if need.body in _WHOLE else "some"
    return f"{need.recompute} of {layers} layers"


def is_recompute_fixed(args: argparse.Namespace) -> bool:
    """Whether all that is asked for recomputes something."""
    fixed = getattr(args, "activation_checkpointing", None)
    return fixed is not None and "none" not in (fixed if isinstance(fixed, list) else [fixed])


def may_stop_early(args: argparse.Namespace) -> bool:
    """Whether only the fastest is asked for, of what may recompute nothing, and no table of all."""
    if is_recompute_fixed(args):
        return False
    tables = (getattr(args, name, None) for name in ("pareto", "explain", "verbose"))
    return args.objective == "time" and not any(tables)


def _most_gain(found: "Solution") -> float:
    """Return by how much of its step a plan may become faster, were there more memory.

    One where nothing is known, or it does not fit.
    """
    import numpy as np

    best = found.record.rows[0]
    if not is_held(found) or best.step_s is None or found.space is None:
        return 1.0
    return max(0.0, 1 - float(np.nanmin(found.space.table.step_s)) / best.step_s)


def is_held(found: "Solution") -> bool:
    """Whether a plan fits, replayed too where that is known."""
    made = found.plan.estimate
    reserved = None if made is None else made.predicted_reserved
    return found.record.rows[0].fits and (reserved is None or reserved.word == "fits")


def first_look(job: "Job", cluster: "Cluster", pins: "Pins", attention: "Attention") -> str:
    """Say what the plainest strategy takes, before all are searched; empty where none runs."""
    from brimful.cost.estimate import estimate
    from brimful.search.space import plainest_strategy

    try:
        strategy, _ = plainest_strategy(job, pins, attention, cluster.num_devices)
        made = estimate(job, cluster, strategy)
    except (InputError, UnsupportedError):
        return ""
    least = f"at first {_told(strategy, made.predicted_peak_allocated_bytes)}"
    fits = "which may fit" if made.fits else "which does not fit"
    return f"{least}{pace_words(job, made.predicted_step_s)}, {fits}; more settings are compared"


def so_far(found: "Solution") -> str:
    """Say what is the best of what was traced, before more is."""
    best, job = found.record.rows[0], found.plan.job
    fits = "fits" if is_held(found) else "does not fit"
    told = f"{_told(best.strategy, best.peak_bytes)}{pace_words(job, best.step_s)}"
    return f"best so far {told}, which {fits}; more is traced"


def _told(strategy: "Strategy", peak_bytes: float) -> str:
    """Say what a search varies of a strategy, and its peak."""
    from brimful.search.spelling import spell

    each = " on each GPU" if world_size(strategy) > 1 else ""
    return f"{spell(strategy)}: {format_bytes(peak_bytes)} of tensors{each}"


def pace_words(job: "Job", step_s: float | None) -> str:
    """Say how long a step takes, and what passes in a second; empty where nobody knows."""
    from brimful.show.run import rate_words

    if step_s is None:
        return ""
    rate = "" if is_speed_hidden() else f", {rate_words(job, step_s)}"
    return f", {format_seconds(step_s)} a step{rate}"
