"""Following live bytes through a step, by the formulas of a profile.

A run's events are a column of changes; their running sum is the level within the run. Identical
runs repeat, so the level at the start of the n-th is linear in n and only the ends need a look.
Everything works on arrays over strategies at once: counts of blocks and chunks may be arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.profiles import NUM_CHUNKS, Dimensions, EventKind, Group, Profile, Run, Term
from brimful.cost.spread import has_pieces
from brimful.files.remembered import once_for_each
from brimful.values.results import ITEM_NAMES, WORKSPACES

Array = NDArray[np.float64]
Behind = Callable[[Profile, Run], Array | None]
"""What comes and goes behind each event of a run at once: [events, batches], bytes; None: nothing.

A level has it at an instant, and no level behind that (``row_sums.py``)."""


def nothing(_profile: Profile, _run: Run) -> None:
    """Say that nothing comes and goes behind events."""


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
    """Compute the same for dimensions that are arrays: [kinds, batches].

    Every product of dimensions once: kinds are few of them, with a coefficient.
    """
    products, coefficients = _products(profile.kinds)
    values = np.zeros((len(products), num_batches))
    for row, factors in enumerate(products):
        values[row] = prod(getattr(dims, f) for f in factors)
    sizes: Array = coefficients @ values
    return sizes


@once_for_each
def _products(kinds: tuple[EventKind, ...]) -> tuple[tuple[str, ...], Array]:
    """Return the products that sizes are made of, and how often each is in which: [kinds, any]."""
    terms = [(row, term) for row, kind in enumerate(kinds) for term in kind.terms]
    products = tuple(dict.fromkeys(term.factors for _, term in terms))
    places = {factors: place for place, factors in enumerate(products)}
    coefficients = np.zeros((len(kinds), len(products)))
    for row, term in terms:
        coefficients[row, places[term.factors]] += term.coefficient
    return products, coefficients


def kind_bytes(profile: Profile, dims: Dimensions) -> Array:
    """Compute the change of live bytes of every kind of event: [kinds]."""
    products, sums = _sums(profile.kinds)
    values = [prod(getattr(dims, f) for f in factors) for factors in products]
    return np.array([sum(number * values[place] for number, place in terms) for terms in sums])


@once_for_each
def _sums(kinds: tuple[EventKind, ...]) -> tuple[tuple[str, ...], list[list[tuple[float, int]]]]:
    """Return the products that sizes are made of; of each kind, which of them, and how often."""
    products = tuple(dict.fromkeys(term.factors for kind in kinds for term in kind.terms))
    places = {factors: place for place, factors in enumerate(products)}
    sums = [[(term.coefficient, places[term.factors]) for term in kind.terms] for kind in kinds]
    return products, sums


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


def stands_for_none(run: Run, runs: tuple[Run, ...]) -> bool:
    """Whether a run is of no block where its group has one member: that is the other of the two.

    Of blocks that are gathered the first of a phase, and the last, are unlike their neighbours. So
    the one member of the group that a phase begins with is its first, of any other its last.
    """
    if run.group not in {"plain", "checkpointed"} or run.role not in {"first", "last"}:
        return False
    groups = [
        r.group for r in runs if r.phase == run.phase and r.group in {"plain", "checkpointed"}
    ]
    if len(set(groups)) == 1:
        return False
    return run.role == ("last" if run.group == groups[0] else "first")


def follow(
    profile: Profile,
    runs: tuple[Run, ...],
    sizes: Array,
    counts: Mapping[Group, Array],
    behind: Behind = nothing,
) -> Peak:
    """Follow one micro-batch.

    ``sizes``: [rows, kinds, strategies or 1]: bytes of each kind; one row for the total, or one per
    item. ``counts``: number of members of each group, [strategies] each. ``behind``: what comes and
    goes behind events, of the one batch that these are. Returns the peak of the rows' sum, with
    every row's part of it.
    """
    middle, pieces = middles(counts, runs), has_pieces(profile)
    num = max((len(n) for n in (*middle.values(), sizes[0, 0])), default=1)
    level = np.zeros((sizes.shape[0], num))
    best = Peak(np.zeros_like(level), level, np.zeros(num, dtype=np.int64))
    works = {run.work: run for run in runs}
    insides = {work: _inside(profile, run, sizes, middle, num) for work, run in works.items()}
    highest = {work: _raised(insides[work], behind(profile, run)) for work, run in works.items()}
    for index, run in enumerate(runs):
        inside = insides[run.work]
        repeat = middle[run.group] if run.role == "middle" else np.ones(num)
        is_none = pieces and stands_for_none(run, runs)
        there = counts[run.group] > 1 if is_none else repeat > 0
        starts = [level]
        if run.role == "middle":
            starts.append(level + (repeat - 1) * inside[:, -1])
        best = _higher(best, starts, highest[run.work], there, index)
        level = level + repeat * inside[:, -1]
    return best._replace(end=level)


def _inside(
    profile: Profile, run: Run, sizes: Array, middle: Mapping[Group, Array], num: int
) -> Array:
    """Return the level within one repetition of a run: [rows, events, strategies]."""
    events = np.array(profile.works[run.work].events, dtype=np.int64)
    changes = sizes[:, events] * np.ones(num)
    for group, kinds in _caused(profile.kinds).items():
        caused = kinds[events]
        changes[:, caused] *= middle[group]
    return np.cumsum(changes, axis=1)


def _raised(inside: Array, behind: Array | None) -> Array:
    """Return levels with what comes and goes behind events: [rows, events, strategies]."""
    if behind is None:
        return inside
    raised = inside.copy()
    raised[ITEM_NAMES.index(WORKSPACES) if len(inside) > 1 else 0] += behind
    return raised


@once_for_each
def _caused(kinds: tuple[EventKind, ...]) -> dict[Group, NDArray[np.bool_]]:
    """Tell of each group which kinds happen once per member of it: [kinds]."""
    origins = [kind.origin for kind in kinds]
    return {
        group: np.array([origin == group for origin in origins], dtype=np.bool_)
        for group in set(origins)
        if group
    }


def _higher(
    best: Peak, starts: Sequence[Array], inside: Array, there: NDArray[np.bool_], index: int
) -> Peak:
    """Compare the best peak so far with repetitions of a run that begin at these levels.

    ``there``: whether it happens at all.
    """
    above = inside.sum(0)
    columns = np.arange(above.shape[-1])
    for start in starts:
        totals = start.sum(0) + above
        event = totals.argmax(0)
        higher = (totals[event, columns] > best.level.sum(0)) & there
        here = start + inside[:, event, columns]
        best = Peak(np.where(higher, here, best.level), best.end, np.where(higher, index, best.run))
    return best


def follow_step(
    micro_batches: Sequence[tuple[Profile, tuple[Run, ...]]],
    sizes: Sequence[Array],
    counts: Mapping[Group, Array],
    behind: Behind = nothing,
) -> tuple[Peak, tuple[Run, ...]]:
    """Follow the micro-batches of a step that differ; the others are like the one before the last.

    ``sizes``: those of each, see ``follow``. ``counts``: number of members of each group,
    [strategies] each. Returns the peak above the level at the step's start, and the runs its index
    refers to.
    """
    first, *others = (
        follow(profile, runs, mine, counts, behind)
        for (profile, runs), mine in zip(micro_batches, sizes, strict=True)
    )
    peak, every = first, micro_batches[0][1]
    for later, (_, runs) in zip(others, micro_batches[1:], strict=True):
        raised = later.level + peak.end
        higher = raised.sum(0) > peak.level.sum(0)
        peak = Peak(
            level=np.where(higher, raised, peak.level),
            end=peak.end + later.end,
            run=np.where(higher, later.run + len(every), peak.run),
        )
        every = every + runs
    return peak, every
