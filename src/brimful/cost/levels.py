"""The peaks of very many strategies at once, as the largest of a few hundred linear forms.

``trajectory.follow`` walks through a step once per number of checkpointed blocks. Here the walk is
done once for all: a level is a number per (micro-batch, chunks), plus numbers times k, the count of
checkpointed blocks, plus counts of pieces (``spread.py``), whose bytes hang on the number of shards
only. Between two events that are not plain bytes only the highest level can be a peak, so that what
remains are segments. Tested equal to ``follow``, which is the slow obvious way.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import NUM_PIECES, is_block
from brimful.cost.profiles import EventKind, Group, Profile, Run
from brimful.cost.spread import has_pieces, num_pieces
from brimful.cost.trajectory import Behind, nothing, num_special, stands_for_none
from brimful.files.remembered import once_for_each

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
_DEGREES = 3
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
    """Levels as functions of k and of the pieces.

    Attributes:
        plain: [segments, degrees, batches], coefficients of 1, k and k squared.
        pieces: [segments, 2, pieces], how many of each piece, and how many times k.
        least: The smallest k for which they are reached, of all or of each.
        most: The largest.
    """

    plain: Array
    pieces: Array
    least: Array | float
    most: Array | float


class Forms(NamedTuple):
    """Forms of all runs, one row per segment: see ``Form``."""

    plain: Array
    pieces: Array
    least: Array
    most: Array

    def at(self, rows: Mask | NDArray[np.int64]) -> "Forms":
        """Return some of the rows."""
        return Forms(*(column[rows] for column in self))

    def of_batches(self, own: slice | NDArray[np.int64]) -> "Forms":
        """Return the forms of some of the batches."""
        return self._replace(plain=self.plain[..., own])

    def peaks(self, num_blocks: Array, pieces: Array) -> Array:
        """Return the peaks: [batches, counts of blocks, shards]; see ``surface``."""
        found = surface(self, num_blocks, pieces)
        return np.stack([highest(found, batch=i) for i in range(self.plain.shape[-1])])


@dataclass
class _Level:
    """The level so far: a form of one segment, over which the walk adds up."""

    plain: Array
    pieces: Array


def forms(
    steps: list[tuple[Profile, tuple[Run, ...]]],
    sizes: list[Array],
    counts: Counts,
    *,
    at_end: Array,
    behind: Behind,
) -> Forms:
    """Return every level that may be the peak of a step's forward and backward.

    ``sizes``: of each, [kinds, batches], bytes of every kind; of pieces they are ignored.
    ``at_end``: [batches], what comes on top of the level that the step ends with.
    """
    num = max(NUM_PIECES, *(num_pieces(profile) for profile, _ in steps))
    level = _Level(np.zeros((_DEGREES, len(counts.num_chunks))), np.zeros((2, num)))
    found: list[Form] = []
    for (profile, runs), mine in zip(steps, sizes, strict=True):
        step = _Step(profile, runs, mine, counts, behind, {})
        for is_middle, some in groupby(runs, lambda run: run.role == "middle"):
            if is_middle:
                found += (form for run in some for form in _repeated(step, run, level))
            else:
                found.append(_once_each(step, list(some), level))
    level.plain[0] += at_end
    found.append(Form(level.plain[None], level.pieces[None], 0, counts.num_layers))
    return _merged(_joined(found))


def in_between(profile: Profile, runs: tuple[Run, ...], sizes: Array, counts: Counts) -> Array:
    """Return the highest level between the blocks' forward and backward: [batches].

    No step that runs these on one device or many has a lower peak: parameters and state are
    beside it, and what devices gather. Of runs that happen once each, blocks among them.

    ``sizes``: [kinds, batches], bytes of every kind.
    """
    step = _Step(profile, runs, sizes, counts, nothing, {})
    last = max(i for i, run in enumerate(runs) if is_block(run) and run.phase == "forward")
    firsts = {run.work: run for run in runs[last::-1]}
    times = Counter(run.work for run in runs[: last + 1])
    level: Array = sum(times[work] * step.inside(run).end[0] for work, run in firsts.items())
    highest = level
    for run in takewhile(lambda run: run.role != "middle" and not is_block(run), runs[last + 1 :]):
        inside = step.inside(run)
        highest = np.maximum(highest, level + inside.plain[:, 0].max(axis=0))
        level = level + inside.end[0]
    return highest


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


class _Step(NamedTuple):
    """A micro-batch.

    Attributes:
        profile: Whose kinds and works the runs are of.
        runs: All of them.
        sizes: [kinds, batches], bytes of every kind.
        counts: Members of the groups.
        behind: What comes and goes behind events.
        known: By works: what runs of them are inside.
    """

    profile: Profile
    runs: tuple[Run, ...]
    sizes: Array
    counts: Counts
    behind: Behind
    known: dict[int, Inside]

    def inside(self, run: Run) -> Inside:
        """Return what a run is inside, as are others of its work."""
        if run.work not in self.known:
            raised = self.behind(self.profile, run)
            sizes, counts = self.sizes, self.counts
            self.known[run.work] = inside_of(
                self.profile, run, self.runs, sizes, counts, behind=raised
            )
        return self.known[run.work]


def _once_each(step: _Step, some: list[Run], level: _Level) -> Form:
    """Return the forms of consecutive runs that happen once, and move the level behind them."""
    works = {run.work: step.inside(run) for run in some}
    place = {work: i for i, work in enumerate(works)}
    plains, pieces, ends, ends_pieces = zip(*works.values(), strict=True)
    order = np.array([place[run.work] for run in some])
    before = _Level(
        _before(level.plain, np.stack(ends)[order]),
        _before(level.pieces, np.stack(ends_pieces)[order]),
    )
    level.plain, level.pieces = before.plain[-1], before.pieces[-1]
    sizes = np.array([len(plain) for plain in plains])
    of_run = np.repeat(np.arange(len(order)), sizes[order])
    firsts, starts = (np.cumsum(each) - each for each in (sizes, sizes[order]))
    rows = np.arange(len(of_run)) + (firsts[order] - starts)[of_run]
    bounds = np.array([_bounds(step, run) for run in some], dtype=np.float64)[of_run]
    return Form(
        before.plain[of_run] + np.concatenate(plains)[rows],
        before.pieces[of_run] + np.concatenate(pieces)[rows],
        *bounds.T,
    )


def _before(start: Array, ends: Array) -> Array:
    """Return levels before each of some runs, and behind the last: [1 + runs, ...]."""
    return np.concatenate([start[None], ends]).cumsum(axis=0)


def _repeated(step: _Step, run: Run, level: _Level) -> Iterator[Form]:
    """Yield the forms of a run's first and last repetition, and move the level behind it."""
    plain, pieces, end, end_pieces = step.inside(run)
    middle = middle_of(run.group, step.runs, step.counts)
    least, most, exists = _where(middle, step.counts)
    for before in (np.zeros_like(middle), _less_one(middle)):
        start = level.plain + _times(before, end)
        moved = level.pieces + _times_pieces(before, end_pieces)
        yield Form(np.where(exists, start + plain, NOWHERE), moved + pieces, least, most)
    level.plain = level.plain + _times(middle, end)
    level.pieces = level.pieces + _times_pieces(middle, end_pieces)


def _bounds(step: _Step, run: Run) -> tuple[float, float]:
    """Return for which k a run that happens once is of a block, if it is of any."""
    num_layers = step.counts.num_layers
    if not (has_pieces(step.profile) and stands_for_none(run, step.runs)):
        return 0, num_layers
    return (0, num_layers - 2) if run.group == "plain" else (2, num_layers)


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
    outline = _outline_of(profile.kinds, num_pieces(profile), profile.works[run.work].events)
    running = (sizes[outline.kinds] * outline.is_plain).cumsum(axis=0)
    raised = running if behind is None else running + behind
    highest = np.zeros((len(outline.starts), _DEGREES, sizes.shape[1]))
    highest[:, 0] = np.maximum.reduceat(raised, outline.starts, axis=0)
    end = np.zeros(highest.shape[1:])
    end[0] = running[-1]
    for event, kind, group in outline.caused:
        each = middle_of(group, runs, counts) * sizes[kind]
        highest[outline.starts >= event] += each
        end += each
    return Inside(highest, outline.pieces, end, outline.all_pieces)


def _members(group: Group, counts: Counts) -> Array:
    """Return a group's members as a polynomial in k: [degrees, batches]."""
    number = np.zeros((_DEGREES, len(counts.num_chunks)))
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


def _less_one(number: Array) -> Array:
    less = number.copy()
    less[0] -= 1
    return less


def _where(middle: Array, counts: Counts) -> tuple[float, float, NDArray[np.bool_]]:
    """Return for which k, and for which batches, a run happens at all."""
    slope = middle[1, 0]
    if slope == 0:
        return 0, counts.num_layers, middle[0] > 0
    everywhere = np.ones(middle.shape[1], dtype=bool)
    first = (1 - middle[0, 0]) / slope
    return (first, counts.num_layers, everywhere) if slope > 0 else (0, first, everywhere)


def _times(number: Array, other: Array) -> Array:
    """Multiply polynomials in k, the first of them linear: [degrees, batches]; none is cubic."""
    product: Array = number[0] * other
    product[1:] += number[1] * other[:-1]
    return product


def _times_pieces(number: Array, pieces: Array) -> Array:
    """Multiply counts of pieces by a number that is linear in k; pieces are never k times k."""
    times: Array = number[:2, :1] * pieces[0]
    return times


def _joined(found: list[Form]) -> Forms:
    sizes = [len(form.plain) for form in found]

    def bounds(each: Iterable[Array | float]) -> Array:
        every = zip(each, sizes, strict=True)
        return np.concatenate([b if isinstance(b, np.ndarray) else np.full(n, b) for b, n in every])

    return Forms(
        plain=np.concatenate([form.plain for form in found]),
        pieces=np.concatenate([form.pieces for form in found]),
        least=bounds(form.least for form in found),
        most=bounds(form.most for form in found),
    )


def _merged(every: Forms) -> Forms:
    """Return the forms with one row where some differ in plain bytes only: the highest of them.

    Of blocks that are written out one after the other, thousands of segments have the same pieces.
    """
    stays = np.asarray(every.plain[:, 1:].any(axis=(1, 2))) == 0
    pieces = every.pieces.reshape(len(stays), -1)
    told = np.column_stack([pieces[:, pieces.any(axis=0)], every.least, every.most])[stays]
    weights = np.random.default_rng(0).integers(1, 2**40, told.shape[1]).astype(np.float64)
    _, first, alike = np.unique(told @ weights, return_index=True, return_inverse=True)
    if not len(told) or (told != told[first][alike]).any():
        return every
    order = np.argsort(alike, kind="stable")
    starts = np.searchsorted(alike[order], np.arange(len(first)))
    one = every.at(np.flatnonzero(stays)[first])
    one.plain[:, 0] = np.maximum.reduceat(every.plain[stays, 0][order], starts, axis=0)
    rest = every.at(np.flatnonzero(~stays))
    return Forms(*(np.concatenate(columns) for columns in zip(one, rest, strict=True)))


class Surface(NamedTuple):
    """The forms over a grid of strategies, without those that are never the highest.

    Attributes:
        plain: [forms, batches, counts of blocks], what hangs on no shard.
        spread: [forms, counts of blocks, shards], the pieces.
    """

    plain: Array
    spread: Array


def surface(every: Forms, num_blocks: Array, pieces: Array) -> Surface:
    """Evaluate forms over a grid.

    ``num_blocks``: [counts of blocks], k. ``pieces``: [pieces, shards], bytes; of every kind of
    block, though where nothing is gathered no event is of any but the first.
    """
    pieces = pieces[: every.pieces.shape[-1]]
    if len(num_blocks) > 1:  # of one alone the forms are fewer than what telling them takes
        every = every.at(~_never_highest(every, num_blocks, pieces))
    there = (num_blocks >= every.least[:, None]) & (num_blocks <= every.most[:, None])
    powers = np.stack([np.ones_like(num_blocks), num_blocks, num_blocks**2])
    plain = np.einsum("sdb,dk->sbk", every.plain, powers)
    once, each = (every.pieces[:, i] @ pieces for i in (0, 1))
    return Surface(
        plain=np.where(there[:, None], plain, NOWHERE),
        spread=once[:, None, :] + each[:, None, :] * num_blocks[:, None],
    )


def _never_highest(every: Forms, num_blocks: Array, pieces: Array) -> Mask:
    """Tell which forms lie below another one wherever they are reached.

    Forms are linear in k but for a few that stay, so that the ends of where a form is reached
    decide; and the batch's part and the shards' part add up, so that each may be at its worst.
    """
    ends = Forms(
        every.plain,
        every.pieces,
        np.maximum(every.least, num_blocks.min()),
        np.minimum(every.most, num_blocks.max()),
    )
    is_linear = np.asarray(every.plain[:, 2].any(axis=1)) == 0
    rivals = _rivals(ends, is_linear, pieces)
    is_below: Mask = np.zeros(len(is_linear), dtype=np.bool_)
    for rival in rivals:
        covers = (ends.least[rival] <= ends.least) & (ends.most[rival] >= ends.most)
        above = np.stack([_lead(ends, rival, k, pieces) for k in (ends.least, ends.most)]).min(0)
        is_below |= covers & is_linear & (above >= 0) & (np.arange(len(is_below)) != rival)
        is_below[rivals] = False
    return is_below


def _rivals(ends: Forms, is_linear: Mask, pieces: Array) -> NDArray[np.int64]:
    """Return the linear forms that are the highest somewhere at the ends."""
    found = []
    for k in (ends.least.min(), ends.most.max()):
        plain = ends.plain[:, 0] + k * ends.plain[:, 1]
        spread = (ends.pieces[:, 0] + k * ends.pieces[:, 1]) @ pieces
        there = is_linear & (ends.least <= k) & (ends.most >= k)
        level = np.where(there[:, None, None], plain[:, :, None] + spread[:, None, :], NOWHERE)
        found.append(level.argmax(0).reshape(-1))
    rivals: NDArray[np.int64] = np.unique(np.concatenate(found))
    return rivals[is_linear[rivals]]


def _lead(ends: Forms, rival: int, k: Array, pieces: Array) -> Array:
    """Return by how much, at least, a form lies above each other one at the k of each."""

    def plain(form: Array) -> Array:
        return form[..., 0, :] + k[:, None] * form[..., 1, :]

    mine, others = plain(ends.plain[rival]), plain(ends.plain)
    gaps = np.where(others == NOWHERE, np.inf, mine - others)
    counts = ends.pieces[rival] - ends.pieces
    spread = (counts[:, 0] + k[:, None] * counts[:, 1]) @ pieces
    lead: Array = gaps.min(1) + spread.min(1)
    return lead


def highest(found: Surface, *, batch: int) -> Array:
    """Return the peak of one batch: [counts of blocks, shards]."""
    peak: Array = (found.plain[:, batch, :, None] + found.spread).max(0)
    return peak
