"""Levels along the runs of a micro-batch, as polynomials in k, the count of checkpointed blocks.

What of its runs hangs on no size, which work each does and how its events lie, is told once per
program; what hangs on sizes is counted for all its works, and for all its runs, at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import NUM_PIECES
from brimful.cost.profiles import EventKind, Group, Profile, Run
from brimful.cost.spread import has_pieces, num_pieces
from brimful.cost.trajectory import Behind, num_special, stands_for_none
from brimful.files.remembered import once_for_each

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Places = NDArray[np.int64]
DEGREES = 3
"""Of polynomials in k: a count of blocks may multiply a size that is caused once per block."""
NOWHERE = -np.inf


class Counts(NamedTuple):
    """How many members each group of runs has, as k grows.

    Attributes:
        num_layers: Blocks of the model; k of them are checkpointed, the others plain.
        num_chunks: [batches], pieces of the loss.
    """

    num_layers: int
    num_chunks: Array


class Form(NamedTuple):
    """Levels as functions of k and of the pieces, one row per segment.

    Attributes:
        plain: [segments, degrees, batches], coefficients of 1, k and k squared.
        pieces: [segments, 2, pieces], how many of each piece, and how many times k.
        least: [segments], the smallest k for which they are reached.
        most: [segments], the largest.
    """

    plain: Array
    pieces: Array
    least: Array
    most: Array


@dataclass
class Level:
    """The level so far, over which the walk adds up; see ``Form``.

    Attributes:
        plain: [degrees, batches].
        pieces: [2, pieces].
    """

    plain: Array
    pieces: Array


class Inside(NamedTuple):
    """What a run is inside, from its start.

    Attributes:
        plain: [segments, degrees, batches], the highest level of each.
        pieces: [segments, 2, pieces].
        end: [degrees, batches], what it ends with.
        end_pieces: [2, pieces].
    """

    plain: Array
    pieces: Array
    end: Array
    end_pieces: Array


class _Outline(NamedTuple):
    """What of a run hangs on no size.

    Attributes:
        kinds: [events], whose bytes each changes; any where not ``is_plain``.
        is_plain: [events, 1], 0 for pieces and for what happens once per member of a group.
        starts: [segments], the first event of each.
        pieces: [segments, 2, pieces], how many of each piece are there.
        all_pieces: [2, pieces], the same behind the last event.
        caused: Events that happen once per middle member of a group: place, kind, group.
    """

    kinds: NDArray[np.int64]
    is_plain: Array
    starts: NDArray[np.int64]
    pieces: Array
    all_pieces: Array
    caused: tuple[tuple[int, int, Group], ...]


class _Row(NamedTuple):
    """Works in a row, one behind the other.

    Attributes:
        kinds: [events] of these works, as in ``_Outline``.
        is_plain: [events, 1], as there.
        starts: [segments], the first event of each.
        bounds: [works + 1], where the events of each begin, and where the last end.
        segments: [works + 1], the same of segments.
        caused: Events that happen once per middle member of a group: the work, its segments from
            there on, kind, group.
    """

    kinds: Places
    is_plain: Array
    starts: Places
    bounds: Places
    segments: Places
    caused: tuple[tuple[int, slice, int, Group], ...]


_Kinds = tuple[EventKind, ...]


@once_for_each
def _is_caused(kinds: _Kinds) -> Mask:
    """Tell which kinds happen once per member of a group: [kinds]."""
    return np.array([bool(kind.origin) for kind in kinds], dtype=np.bool_)


@once_for_each
def _outline_of(every: _Kinds, num: int, numbers: tuple[int, ...]) -> _Outline:
    events = np.array(numbers, dtype=np.int64)
    base = len(every) - 2 * num
    is_piece = events >= base
    pieces = np.zeros((len(events), 2, max(num, NUM_PIECES)))
    for place in np.flatnonzero(is_piece):
        sign = 1 if events[place] < base + num else -1
        pieces[place, 0, (events[place] - base) % num] = sign
    places = np.flatnonzero(_is_caused(every)[events])
    caused = tuple((int(i), int(events[i]), every[events[i]].origin) for i in places)
    special = is_piece.copy()
    special[places] = True
    is_start = special.copy()
    is_start[0] = True
    starts = np.flatnonzero(is_start)
    so_far = np.cumsum(pieces, axis=0)
    kinds = np.where(is_piece, 0, events)
    is_plain = np.where(special, 0.0, 1.0)[:, None]
    return _Outline(kinds, is_plain, starts, so_far[starts], so_far[-1], caused)


@once_for_each
def _alone(every: _Kinds, num: int, numbers: tuple[int, ...]) -> tuple[_Outline, _Row]:
    """Return what of a run hangs on no size, and the row of its work alone."""
    outline = _outline_of(every, num, numbers)
    return outline, _row_of([outline])


def _row_of(outlines: Sequence[_Outline]) -> _Row:
    bounds, segments = (
        np.cumsum([0, *map(len, each)])
        for each in ([x.kinds for x in outlines], [x.starts for x in outlines])
    )
    return _Row(
        kinds=np.concatenate([outline.kinds for outline in outlines]),
        is_plain=np.concatenate([outline.is_plain for outline in outlines]),
        starts=np.concatenate(
            [x.starts + start for x, start in zip(outlines, bounds[:-1], strict=True)]
        ),
        bounds=bounds,
        segments=segments,
        caused=tuple(
            (work, slice(first + np.searchsorted(outline.starts, event), end), kind, group)
            for work, (outline, first, end) in enumerate(
                zip(outlines, segments[:-1], segments[1:], strict=True)
            )
            for event, kind, group in outline.caused
        ),
    )


def inside_of(  # noqa: PLR0913 - what a run is made of
    profile: Profile,
    run: Run,
    runs: tuple[Run, ...],
    sizes: Array,
    counts: Counts,
    *,
    behind: Array | None,
) -> Inside:
    """Return what a run is inside, as are others of its work.

    ``sizes``: [kinds, batches], bytes of every kind; of pieces they are ignored. ``behind``:
    [events, batches], what comes and goes behind each; None: nothing.
    """
    outline, row = _alone(profile.kinds, num_pieces(profile), profile.works[run.work].events)
    middles = {group: middle_of(group, runs, counts) for _, _, group in outline.caused}
    highest, ends = _insides(row, sizes, [behind], middles)
    return Inside(highest, outline.pieces, ends[0], outline.all_pieces)


def _members(group: Group, counts: Counts) -> Array:
    """Return a group's members as a polynomial in k: [degrees, batches]."""
    number = np.zeros((DEGREES, len(counts.num_chunks)))
    if group == "chunk":
        number[0] = counts.num_chunks
    elif group == "checkpointed":
        number[1] = 1
    else:
        number[0], number[1] = counts.num_layers, -1
    return number


def middle_of(group: Group, runs: tuple[Run, ...], counts: Counts) -> Array:
    """Return a group's middle members as a polynomial in k: [degrees, batches]."""
    number = _members(group, counts)
    number[0] -= num_special(group, runs)
    return number


def _where(middle: Array, counts: Counts) -> tuple[float, float, NDArray[np.bool_]]:
    """Return for which k, and for which batches, a run happens at all."""
    slope = middle[1, 0]
    if slope == 0:
        return 0, counts.num_layers, middle[0] > 0
    everywhere = np.ones(middle.shape[1], dtype=bool)
    first = (1 - middle[0, 0]) / slope
    return (first, counts.num_layers, everywhere) if slope > 0 else (0, first, everywhere)


MOST_COURSES = 512
"""Kept: each takes a hundred kilobytes."""
ONCE, FIRST, LAST = range(3)
"""What a visit is: of a run that happens once, of a repeated one's first time, or of its last."""


class _Course(NamedTuple):
    """What of a micro-batch's runs hangs on no size.

    Attributes:
        works: A run of each that differs in its work.
        row: These works.
        pieces: [segments, pieces], how many of each piece are there.
        end_pieces: [runs, pieces], the same behind the last event of each run.
        order: [runs], which of the works each does.
        special: Of every group, how many members stand for themselves only.
        repeated: Runs that stand for several, and their groups.
        run_of: [visits], the run of each.
        turns: [visits], which of a run it is.
        visit_of: [rows], the visit of each row.
        segment_of: [rows], and its segment.
        margins: [2, visits], blocks that have to be of another kind than a run's own group, and
            those that have to be of it: 0 or 2.
    """

    works: tuple[Run, ...]
    row: _Row
    pieces: Array
    end_pieces: Array
    order: Places
    special: dict[Group, int]
    repeated: tuple[tuple[int, Group], ...]
    run_of: Places
    turns: Places
    visit_of: Places
    segment_of: Places
    margins: Array


@partial(once_for_each, most=MOST_COURSES)
def _course_of(profile: Profile, runs: tuple[Run, ...]) -> _Course:
    """Tell the works of some runs apart, and lay their segments out."""
    num, firsts = num_pieces(profile), dict[int, Run]()
    for run in runs:
        firsts.setdefault(run.work, run)
    works = profile.works
    outlines = [_outline_of(profile.kinds, num, works[work].events) for work in firsts]
    row = _row_of(outlines)
    place = {work: number for number, work in enumerate(firsts)}
    order = np.array([place[run.work] for run in runs])
    turns_of = [(FIRST, LAST) if run.role == "middle" else (ONCE,) for run in runs]
    run_of = np.repeat(np.arange(len(runs)), [len(each) for each in turns_of])
    lengths = np.diff(row.segments)[order[run_of]]
    visit_of = np.repeat(np.arange(len(run_of)), lengths)
    within = np.arange(len(visit_of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return _Course(
        works=tuple(firsts.values()),
        row=row,
        pieces=np.concatenate([outline.pieces[:, 0] for outline in outlines]),
        end_pieces=np.stack([outline.all_pieces[0] for outline in outlines])[order],
        order=order,
        special={group: num_special(group, runs) for group in _groups(outlines, runs)},
        repeated=tuple((i, run.group) for i, run in enumerate(runs) if run.role == "middle"),
        run_of=run_of,
        turns=np.concatenate([np.array(each) for each in turns_of]),
        visit_of=visit_of,
        segment_of=row.segments[order[run_of]][visit_of] + within,
        margins=np.array([_margins(profile, runs[run], runs) for run in run_of], dtype=float).T,
    )


def _groups(outlines: list[_Outline], runs: tuple[Run, ...]) -> set[Group]:
    """Return the groups of which some members stand for several."""
    caused = {group for outline in outlines for _, _, group in outline.caused}
    return caused | {run.group for run in runs if run.role == "middle"}


def _margins(profile: Profile, run: Run, runs: tuple[Run, ...]) -> tuple[int, int]:
    """Return how many blocks are not of a run's group, and are, where it is of a block at all."""
    if run.role == "middle" or not has_pieces(profile) or not stands_for_none(run, runs):
        return 0, 0
    return (0, 2) if run.group == "plain" else (2, 0)


def walked(  # noqa: PLR0913, PLR0917 - what a micro-batch is made of
    profile: Profile,
    runs: tuple[Run, ...],
    sizes: Array,
    counts: Counts,
    behind: Behind,
    level: Level,
) -> Form:
    """Return the levels of a micro-batch that may be its peak, and move the level behind it.

    ``sizes``: [kinds, batches], bytes of every kind; of pieces they are ignored.
    """
    course = _course_of(profile, runs)
    middles = {group: _members(group, counts) for group in course.special}
    for group, number in middles.items():
        number[0] -= course.special[group]
    behinds = [behind(profile, run) for run in course.works]
    inside, ends = _insides(course.row, sizes, behinds, middles)
    ends, times = ends[course.order], np.zeros((len(runs), 2, sizes.shape[1]))
    times[:, 0] = 1
    for run, group in course.repeated:
        times[run] = middles[group][:2]
    moved, moved_pieces = times[:, :1] * ends, times[:, :, :1] * course.end_pieces[:, None]
    moved[:, 1:] += times[:, 1:] * ends[:, :-1]
    before, pieces = _before(level.plain, moved), _before(level.pieces, moved_pieces)
    level.plain, level.pieces = before[-1], pieces[-1]
    before, pieces = before[course.run_of], pieces[course.run_of]
    last = course.turns == LAST
    late = course.run_of[last]
    before[last] += moved[late] - ends[late]
    pieces[last] += moved_pieces[late]
    pieces[last, 0] -= course.end_pieces[late]
    least, most = course.margins[0].copy(), counts.num_layers - course.margins[1]
    for run, group in course.repeated:
        visits = course.run_of == run
        least[visits], most[visits], exists = _where(middles[group], counts)
        if not exists.all():
            before[visits] = np.where(exists, before[visits], NOWHERE)
    rows = course.visit_of
    plain, pieces = before[rows] + inside[course.segment_of], pieces[rows]
    pieces[:, 0] += course.pieces[course.segment_of]
    return Form(plain, pieces, least[rows], most[rows])


def _insides(
    row: _Row, sizes: Array, behinds: Sequence[Array | None], middles: dict[Group, Array]
) -> tuple[Array, Array]:
    """Return the highest levels of segments above their runs' starts, and what works end with.

    The first is [segments, degrees, batches], the second [works, degrees, batches].
    """
    changes = sizes[row.kinds] * row.is_plain
    so_far = changes.cumsum(axis=0)
    first, end = row.bounds[:-1], row.bounds[1:]
    start = so_far[first] - changes[first]
    raised = so_far - np.repeat(start, end - first, axis=0)
    ends = np.zeros((len(first), DEGREES, sizes.shape[1]))
    ends[:, 0] = raised[end - 1]
    for beside, here, there in zip(behinds, first, end, strict=True):
        if beside is not None:
            raised[here:there] += beside
    highest = np.zeros((len(row.starts), DEGREES, sizes.shape[1]))
    highest[:, 0] = np.maximum.reduceat(raised, row.starts, axis=0)
    for work, segments, kind, group in row.caused:
        each = middles[group] * sizes[kind]
        highest[segments] += each
        ends[work] += each
    return highest, ends


def _before(start: Array, ends: Array) -> Array:
    """Return levels before each of some runs, and behind the last: [1 + runs, ...]."""
    return np.concatenate([start[None], ends]).cumsum(axis=0)
