"""Following live bytes through a step, by the formulas of a profile.

A run's events are a column of changes; their running sum is the level within the run. Identical
runs repeat, so the level at the start of the n-th is linear in n and only the ends need a look.
Everything works on arrays over strategies at once: counts of blocks and chunks may be arrays.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.profiles import NUM_CHUNKS, Dimensions, Group, Profile, Run, Term

Array = NDArray[np.float64]


class Peak(NamedTuple):
    """The highest level of one micro-batch.

    Attributes:
        level: [rows, strategies], bytes above the level at its start, at the peak.
        end: [rows, strategies], bytes above the level at its start, at its end.
        run: [strategies], index of the run in which the peak lies.
    """

    level: Array
    end: Array
    run: NDArray[np.int64]


def evaluate_terms(terms: tuple[Term, ...], dims: Dimensions) -> float:
    """Compute a formula: the sum of coefficient times product of the named dimensions."""
    total: float = sum(t.coefficient * prod(getattr(dims, f) for f in t.factors) for t in terms)
    return total


def kinds_bytes(profile: Profile, dims: Dimensions, num_batches: int) -> Array:
    """Compute the same for dimensions that are arrays: [kinds, batches]."""
    sizes = np.zeros((len(profile.kinds), num_batches))
    for row, kind in enumerate(profile.kinds):
        sizes[row] = evaluate_terms(kind.terms, dims)
    return sizes


def kind_bytes(profile: Profile, dims: Dimensions) -> Array:
    """Compute the change of live bytes of every kind of event: [kinds]."""
    return np.array([evaluate_terms(kind.terms, dims) for kind in profile.kinds])


def middles(counts: Mapping[Group, Array], runs: tuple[Run, ...]) -> dict[Group, Array]:
    """Turn counts of blocks and chunks into counts of middle ones.

    A group of a first, a middle and a last one has two members that are not ``middle``. Fewer than
    those leave a negative count: levels are sums of runs, so that it gives the right level too.
    """
    return {group: count - num_special(group, runs) for group, count in counts.items()}


def num_special(group: Group, runs: tuple[Run, ...]) -> int:
    """Count the members of a traced group that stand for themselves only.

    The second of five chunks does; where a loss in three leaves the fourth out, what that one
    causes elsewhere is still among the events, and the count of middles, -1, takes it back.
    """
    roles = {run.role for run in runs if run.group == group} - {"middle"}
    return NUM_CHUNKS - 1 if "second" in roles else len(roles)


def follow(
    profile: Profile, runs: tuple[Run, ...], sizes: Array, counts: Mapping[Group, Array]
) -> Peak:
    """Follow one micro-batch.

    Args:
        profile: Where the runs' works and kinds are.
        runs: In order.
        sizes: [rows, kinds, strategies or 1]: bytes of each kind; one row for the total, or one per
            item.
        counts: Number of members of each group, [strategies] each.

    Returns:
        The peak of the rows' sum, with every row's part of it.
    """
    middle = middles(counts, runs)
    num = max((len(n) for n in (*middle.values(), sizes[0, 0])), default=1)
    level = np.zeros((sizes.shape[0], num))
    best = Peak(np.zeros_like(level), level, np.zeros(num, dtype=np.int64))
    for index, run in enumerate(runs):
        inside = _inside(profile, run, sizes, middle, num)
        repeat = middle[run.group] if run.role == "middle" else np.ones(num)
        best = _higher(best, level, inside, repeat, index)
        level = level + repeat * inside[:, -1]
    return best._replace(end=level)


def _inside(
    profile: Profile, run: Run, sizes: Array, middle: Mapping[Group, Array], num: int
) -> Array:
    """Return the level within one repetition of a run: [rows, events, strategies]."""
    events = np.array(profile.works[run.work].events, dtype=np.int64)
    times = np.ones((len(profile.kinds), num))
    for group, count in middle.items():
        caused = [i for i in set(events.tolist()) if profile.kinds[i].origin == group]
        times[caused] = count
    return np.cumsum(sizes[:, events] * times[events], axis=1)


def _higher(best: Peak, level: Array, inside: Array, repeat: Array, index: int) -> Peak:
    """Compare the best peak so far with the first and the last repetition of a run."""
    for repetition in (np.zeros_like(repeat), repeat - 1):
        start = level + repetition * inside[:, -1]
        totals = start.sum(0) + inside.sum(0)
        event = totals.argmax(0)
        columns = np.arange(len(event))
        higher = (totals[event, columns] > best.level.sum(0)) & (repeat > 0)
        here = start + inside[:, event, columns]
        best = Peak(np.where(higher, here, best.level), best.end, np.where(higher, index, best.run))
    return best


def follow_step(
    micro_batches: Sequence[tuple[Profile, tuple[Run, ...]]],
    sizes: Sequence[Array],
    counts: Mapping[Group, Array],
) -> tuple[Peak, tuple[Run, ...]]:
    """Follow the micro-batches of a step; the second of two stands for every later one.

    Args:
        micro_batches: One or two: their profiles and runs.
        sizes: Those of each, see ``follow``.
        counts: Number of members of each group, [strategies] each.

    Returns:
        The peak above the level at the step's start, and the runs its index refers to.
    """
    first, *others = (
        follow(profile, runs, mine, counts)
        for (profile, runs), mine in zip(micro_batches, sizes, strict=True)
    )
    runs = micro_batches[0][1]
    if not others:
        return first, runs
    later = others[0]
    raised = later.level + first.end
    higher = raised.sum(0) > first.level.sum(0)
    peak = Peak(
        level=np.where(higher, raised, first.level),
        end=first.end + later.end,
        run=np.where(higher, later.run + len(runs), first.run),
    )
    return peak, runs + micro_batches[1][1]
