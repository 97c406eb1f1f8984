"""The peaks of strategies of a model whose blocks are of several kinds, of all counts at once.

Each number of checkpointed blocks is a step of its own there (``sequences.py``): a path, on which
every run happens once. Paths share their runs but for the few near where the checkpointed blocks
end, so that what a run is inside is made once, and all are walked through in one sum. It says what
``levels.forms`` says of each path by itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from brimful.cost.levels import NOWHERE, Counts, Inside, inside_of, middle_of
from brimful.cost.profiles import Profile, Run
from brimful.cost.trajectory import Behind

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Few = NDArray[np.int16]
"""Counts of pieces, of which no level has thousands."""
Number = TypeVar("Number", np.int16, np.float64)
Steps = Sequence[tuple[Profile, tuple[Run, ...]]]
"""Micro-batches that differ: their profiles and runs."""
_MOST_WEIGHT = 2**36


class SequenceLevels(NamedTuple):
    """Every level that may be a peak, of those with the same pieces the highest.

    Attributes:
        plain: [levels, batches], what is no piece.
        pieces: [levels, pieces], how many of each piece are there.
        starts: [counts of blocks], the first level of each count; none is without.
    """

    plain: Array
    pieces: Whole
    starts: Whole

    def of_batches(self, own: slice | NDArray[np.int64]) -> "SequenceLevels":
        """Return the levels of some of the batches."""
        return self._replace(plain=self.plain[:, own])

    def peaks(self, num_blocks: Array, pieces: Array) -> Array:
        """Return the peaks: [batches, counts of blocks, shards].

        Args:
            num_blocks: [counts of blocks], those that the levels are of.
            pieces: [pieces, shards], bytes.
        """
        assert len(num_blocks) == len(self.starts)
        num = min(len(pieces), self.pieces.shape[1])
        spread = self.pieces[:, :num] @ pieces[:num]
        level = self.plain[:, :, None] + spread[:, None]
        found: Array = np.maximum.reduceat(level, self.starts, axis=0).transpose(1, 0, 2)
        return found


def sequence_levels(
    every: Sequence[Steps],
    sizes: Callable[[Profile], Array],
    counts: Counts,
    *,
    at_end: Array,
    behind: Behind,
) -> SequenceLevels:
    """Walk through a step of each number of checkpointed blocks.

    Args:
        every: Of each number, the micro-batches that differ.
        sizes: Of a profile, [kinds, batches], bytes of every kind; of pieces they are ignored.
        counts: Members of the groups.
        at_end: [counts of blocks, batches], what comes on top of the level that the step ends with.
        behind: What comes and goes behind events.
    """
    insides = _Insides(sizes, counts, behind)
    paths = [[place for step in steps for place in insides.places(*step)] for steps in every]
    longest = max(map(len, paths))
    order = np.array([path + [_NONE] * (longest - len(path)) for path in paths])
    return _walked(insides, order, at_end)


def _walked(insides: "_Insides", order: Whole, at_end: Array) -> SequenceLevels:
    """Add up along each path: see ``SequenceLevels``.

    Args:
        insides: What runs are inside.
        order: [counts of blocks, runs], which of them each run is.
        at_end: See ``sequence_levels``.
    """
    found = insides.stacked()
    plain, end = _before(found.end[order])
    there, pieces_end = _before(found.end_pieces[order])
    of_run = np.repeat(np.arange(order.size), found.sizes[order].reshape(-1))
    first_of_run = np.cumsum(found.sizes[order]) - found.sizes[order].reshape(-1)
    rows = np.arange(len(of_run)) - first_of_run[of_run] + found.starts[order].reshape(-1)[of_run]
    path, run = np.divmod(of_run, order.shape[1])
    levels = np.concatenate([plain[path, run] + found.plain[rows], end + at_end])
    pieces = np.concatenate([there[path, run] + found.pieces[rows], pieces_end])
    of_path = np.concatenate([path, np.arange(len(order))])

    def summed(weights: Whole) -> Array:
        before = there.astype(np.float64) @ weights
        own = found.pieces.astype(np.float64) @ weights
        at_ends = pieces_end.astype(np.float64) @ weights
        return np.concatenate([before[path, run] + own[rows], at_ends])

    together, starts = _alike(of_path, pieces, summed)
    first = together[starts]
    return SequenceLevels(
        plain=np.maximum.reduceat(levels[together], starts, axis=0),
        pieces=pieces[first].astype(np.int64),
        starts=np.searchsorted(of_path[first], np.arange(len(order))),
    )


def _alike(of_path: Whole, pieces: Few, summed: Callable[[Whole], Array]) -> tuple[Whole, Whole]:
    """Bring levels of a path with the same pieces together.

    They are told apart by random sums of their pieces, drawn again where two would be taken for
    one: sorting rows of a hundred numbers would take longer than all else.

    Args:
        of_path: [levels], in which path each is.
        pieces: [levels, pieces].
        summed: Sums the pieces of each level by weights; those of a run and of what was before it
            are summed before they are laid side by side.

    Returns:
        [levels], their order, path by path, and where in it each group begins.
    """
    draws = np.random.default_rng(0)
    while True:
        weights = draws.integers(1, _MOST_WEIGHT, (pieces.shape[1],))
        told = summed(weights)  # exact: counts are few, and weights small
        order = np.lexsort((told, of_path))
        differs = (np.diff(told[order]) != 0) | (np.diff(of_path[order]) != 0)
        starts = np.flatnonzero(np.concatenate([[True], differs]))
        sizes = np.diff([*starts, len(order)])
        if np.array_equal(pieces[order], pieces[order[np.repeat(starts, sizes)]]):
            return order, starts


def _before(ends: NDArray[Number]) -> tuple[NDArray[Number], NDArray[Number]]:
    """Return the sums before each run of a path, and behind the last: [paths, runs, ...]."""
    behind: NDArray[Number] = np.cumsum(ends, axis=1, dtype=ends.dtype)
    return behind - ends, behind[:, -1]


class _Stacked(NamedTuple):
    """What all runs that differ are inside, one after the other.

    Attributes:
        plain: [segments, batches], the highest level of each above its run's start.
        pieces: [segments, pieces].
        sizes: [runs], segments of each.
        starts: [runs], the first of them.
        end: [runs, batches], what each ends with.
        end_pieces: [runs, pieces].
    """

    plain: Array
    pieces: Few
    sizes: Whole
    starts: Whole
    end: Array
    end_pieces: Few


_NONE = 0
"""The place of a run without events, with which shorter paths are filled."""


class _Insides:
    """What runs are inside, each that differs once."""

    def __init__(self, sizes: Callable[[Profile], Array], counts: Counts, behind: Behind) -> None:
        """Begin with the run without events."""
        self._sizes, self._counts, self._behind = sizes, counts, behind
        self._places: dict[tuple[int, int, int], int] = {}
        self._known: list[Inside] = []
        self._kept = list[object]()

    def places(self, profile: Profile, runs: tuple[Run, ...]) -> list[int]:
        """Return which each run of a micro-batch is; of a repeated one, which its ends are."""
        found = list[int]()
        for run in runs:
            repeats = (1, 2) if run.role == "middle" else (0,)
            found += [self._place(profile, runs, run, repeat) for repeat in repeats]
        return found

    def _place(self, profile: Profile, runs: tuple[Run, ...], run: Run, repeat: int) -> int:
        work = profile.works[run.work]
        key = id(profile.kinds), id(work), repeat
        if key not in self._places:
            self._kept += [profile.kinds, work]  # so that their identities stay their own
            self._known.append(self._inside(profile, runs, run, repeat))
            self._places[key] = len(self._known)
        return self._places[key]

    def _inside(self, profile: Profile, runs: tuple[Run, ...], run: Run, repeat: int) -> Inside:
        """Return what a run is inside; of one that is repeated, all but the last, or that one."""
        sizes, behind = self._sizes(profile), self._behind(profile, run)
        inside = inside_of(profile, run, runs, sizes, self._counts, behind=behind)
        if not repeat:
            return inside
        num = middle_of(run.group, runs, self._counts)[0]
        plain = np.where(num > 0, inside.plain, NOWHERE)
        times = num - 1 if repeat == 1 else np.ones_like(num)
        return Inside(plain, inside.pieces, inside.end * times, inside.end_pieces * times[0])

    def stacked(self) -> _Stacked:
        """Return them all, the one without events first."""
        known = self._known
        sizes = np.array([0, *(len(each.plain) for each in known)])
        num_batches, num_pieces = known[0].plain.shape[-1], known[0].pieces.shape[-1]

        def few(*each: Array) -> Few:
            return np.rint(np.concatenate(each)).astype(np.int16)

        return _Stacked(
            plain=np.concatenate([each.plain[:, 0] for each in known]),
            pieces=few(*(each.pieces[:, 0] for each in known)),
            sizes=sizes,
            starts=np.cumsum(sizes) - sizes,
            end=np.stack([np.zeros(num_batches), *(each.end[0] for each in known)]),
            end_pieces=few(np.zeros((1, num_pieces)), *(each.end_pieces[:1] for each in known)),
        )
