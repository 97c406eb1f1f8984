"""The peaks of strategies of a model whose blocks are of several kinds, of all counts at once.

Each number of checkpointed blocks is a step of its own there (``sequences.py``): a path, on which
every run happens once. Paths share their runs but for the few near where the checkpointed blocks
end, so that what a run is inside is made once. How high a run rises above its start hangs on no
path, nor does what it ends with: a path adds up ends, and its peak is the highest of its runs. It
says what ``levels.forms`` says of each path by itself.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.courses import NOWHERE, Counts, Inside, inside_of, middle_of
from brimful.cost.profiles import Profile, Run
from brimful.cost.trajectory import Behind
from brimful.files.remembered import once_for_each

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Steps = Sequence[tuple[Profile, tuple[Run, ...]]]
"""Micro-batches that differ: their profiles and runs."""


class SequenceLevels(NamedTuple):
    """What the runs that differ are inside, one after the other, and the paths through them.

    Attributes:
        plain: [segments, batches], the highest level of each above its run's start.
        pieces: [segments, pieces], how many of each piece are there.
        starts: [runs], the first segment of each; none is without.
        end: [runs, batches], what each ends with.
        end_pieces: [runs, pieces].
        order: [counts of blocks, places], which run is where on the path of each count.
        at_end: [counts of blocks, batches], what comes on top of the level that a path ends with.
    """

    plain: Array
    pieces: Array
    starts: Whole
    end: Array
    end_pieces: Array
    order: Whole
    at_end: Array

    def of_batches(self, own: slice | NDArray[np.int64]) -> "SequenceLevels":
        """Return the levels of some of the batches."""
        plain, end, at_end = (each[:, own] for each in (self.plain, self.end, self.at_end))
        return self._replace(plain=plain, end=end, at_end=at_end)

    def peaks(self, num_blocks: Array, pieces: Array) -> Array:
        """Return the peaks: [batches, counts of blocks, shards].

        ``num_blocks``: [counts of blocks], those that the paths are of. ``pieces``: [pieces,
        shards], bytes.
        """
        assert len(num_blocks) == len(self.order)
        num = min(len(pieces), self.pieces.shape[1])
        inside, end = self.pieces[:, :num] @ pieces[:num], self.end_pieces[:, :num] @ pieces[:num]
        found = []
        for plain, own_end, at_end in zip(self.plain.T, self.end.T, self.at_end.T, strict=True):
            rises = np.maximum.reduceat(plain[:, None] + inside, self.starts, axis=0)
            ends = (own_end[:, None] + end)[self.order]
            behind = ends.cumsum(axis=1)
            highest = (behind - ends + rises[self.order]).max(axis=1)
            found.append(np.maximum(highest, behind[:, -1] + at_end[:, None]))
        return np.stack(found)


def sequence_levels(
    every: Sequence[Steps],
    sizes: Callable[[Profile], Array],
    counts: Counts,
    *,
    at_end: Array,
    behind: Behind,
) -> SequenceLevels:
    """Walk through a step of each number of checkpointed blocks.

    ``sizes``: of a profile, [kinds, batches], bytes of every kind; of pieces they are ignored.
    ``at_end``: [counts of blocks, batches], what comes on top of the level that the step ends with.
    """
    insides = _Insides(sizes, counts, behind)
    paths = [np.concatenate([insides.places(*step) for step in steps]) for steps in every]
    order = np.full((len(paths), max(map(len, paths))), _NONE)
    for row, path in zip(order, paths, strict=True):
        row[: len(path)] = path
    return insides.along(order, at_end)


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

    def places(self, profile: Profile, runs: tuple[Run, ...]) -> Whole:
        """Return which each run of a micro-batch is; of a repeated one, which its ends are."""
        route = _route_of(runs)
        each = [self._place(profile, runs, run, repeat) for run, repeat in route.stops]
        return np.array(each)[route.order]

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

    def along(self, order: Whole, at_end: Array) -> SequenceLevels:
        """Return them all, the one without events first, with the paths through them."""
        known = self._known
        num_batches, num_pieces = known[0].plain.shape[-1], known[0].pieces.shape[-1]
        none, no_pieces = np.zeros((1, num_batches)), np.zeros((1, num_pieces))
        sizes = np.array([1, *(len(each.plain) for each in known)])
        return SequenceLevels(
            plain=np.concatenate([none, *(each.plain[:, 0] for each in known)]),
            pieces=np.concatenate([no_pieces, *(each.pieces[:, 0] for each in known)]),
            starts=np.cumsum(sizes) - sizes,
            end=np.concatenate([none, *(each.end[:1] for each in known)]),
            end_pieces=np.concatenate([no_pieces, *(each.end_pieces[:1] for each in known)]),
            order=order,
            at_end=at_end,
        )


class _Route(NamedTuple):
    """What a micro-batch's runs do, in order.

    Attributes:
        stops: Each that differs once: the first run that does it, and which of a repeated one's
            ends it is.
        order: [places], which of them is where.
    """

    stops: tuple[tuple[Run, int], ...]
    order: Whole


@once_for_each
def _route_of(runs: tuple[Run, ...]) -> _Route:
    """Tell runs apart by their work."""
    numbers, stops = dict[tuple[int, int], int](), list[tuple[Run, int]]()
    alike, places = list(map(id, runs)), dict[int, list[int]]()
    for same, run in dict(zip(alike, runs, strict=True)).items():  # like ones are mostly one value
        places[same] = []
        for repeat in (1, 2) if run.role == "middle" else (0,):
            number = numbers.setdefault((run.work, repeat), len(stops))
            if number == len(stops):
                stops.append((run, repeat))
            places[same].append(number)
    order = chain.from_iterable(map(places.__getitem__, alike))
    return _Route(tuple(stops), np.fromiter(order, dtype=np.int64))
