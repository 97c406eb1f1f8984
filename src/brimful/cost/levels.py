"""The peaks of very many strategies at once, as the largest of a few hundred linear forms.

``trajectory.follow`` walks through a step once per number of checkpointed blocks. Here the walk is
done once for all: a level is a number per (micro-batch, chunks), plus numbers times k, the count of
checkpointed blocks, plus counts of pieces (``spread.py``), whose bytes hang on the number of shards
only. Between two events that are not plain bytes only the highest level can be a peak, so that what
remains are segments. Tested equal to ``follow``, which is the slow obvious way.
"""

from collections import Counter
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import NUM_PIECES, is_block
from brimful.cost.courses import (
    DEGREES,
    NOWHERE,
    Counts,
    Form,
    Inside,
    Level,
    inside_of,
    walked,
)
from brimful.cost.profiles import Profile, Run
from brimful.cost.spread import num_pieces
from brimful.cost.trajectory import Behind

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


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
    level = Level(np.zeros((DEGREES, len(counts.num_chunks))), np.zeros((2, num)))
    found = [
        walked(profile, runs, mine, counts, behind, level)
        for (profile, runs), mine in zip(steps, sizes, strict=True)
    ]
    ends = np.array([0.0]), np.array([float(counts.num_layers)])
    level.plain[0] += at_end
    found.append(Form(level.plain[None], level.pieces[None], *ends))
    return _merged(Forms(*map(np.concatenate, zip(*found, strict=True))))


def in_between(profile: Profile, runs: tuple[Run, ...], sizes: Array, counts: Counts) -> Array:
    """Return the highest level between the blocks' forward and backward: [batches].

    No step that runs these on one device or many has a lower peak: parameters and state are
    beside it, and what devices gather. Of runs that happen once each, blocks among them.

    ``sizes``: [kinds, batches], bytes of every kind.
    """
    known = dict[int, Inside]()

    def inside_run(run: Run) -> Inside:
        if run.work not in known:
            known[run.work] = inside_of(profile, run, runs, sizes, counts, behind=None)
        return known[run.work]

    last = max(i for i, run in enumerate(runs) if is_block(run) and run.phase == "forward")
    firsts = {run.work: run for run in runs[last::-1]}
    times = Counter(run.work for run in runs[: last + 1])
    level: Array = sum(times[work] * inside_run(run).end[0] for work, run in firsts.items())
    highest = level
    for run in takewhile(lambda run: run.role != "middle" and not is_block(run), runs[last + 1 :]):
        inside = inside_run(run)
        highest = np.maximum(highest, level + inside.plain[:, 0].max(axis=0))
        level = level + inside.end[0]
    return highest


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
