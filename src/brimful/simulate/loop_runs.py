"""Fitting the runs of a program that loops over tokens, at few of them, and telling it at more.

As ``runs.RunFitter`` does for programs that are the same at every shape: here items are matched by
what they are, and what a loop repeats is written out as often as the tokens that are asked for say.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from brimful.cost.profiles import EventKind, Mark, Run, Term, Work
from brimful.pretend.recording import TO_DEVICE, TO_HOST, OpCost, Recording
from brimful.simulate.fit import add_terms
from brimful.simulate.runs import (
    Blocks,
    EventFitter,
    Origins,
    Parts,
    Piece,
    SizeFit,
    UnlikeShapesError,
    by_phase,
    costs_of,
    cut,
)
from brimful.simulate.tables import Tables
from brimful.simulate.token_loops import Alignment, align
from brimful.values.results import ITEM_NAMES, WORKSPACES

_WORKSPACE = ITEM_NAMES.index(WORKSPACES)
_MANY = 8
"""Tensors of one size in a row that an operation is given, from which on a loop made them."""
Item = int | OpCost
"""Of a piece: the signed row of an event, or what an operation cost."""


class _Part(NamedTuple):
    """A piece at one shape.

    Attributes:
        piece: Where it is.
        items: What it does, in order.
        keys: Of each item a number of what it is, without sizes.
    """

    piece: Piece
    items: list[Item]
    keys: tuple[int, ...]


class LoopFitter:
    """Fits runs at several lengths of a sequence, and writes them out at another one."""

    def __init__(
        self,
        recording: Recording,
        fit_size: SizeFit,
        tables: Tables,
        blocks: Blocks,
        marks: Mapping[int, Sequence[Mark]],
    ) -> None:
        """Keep what is compared.

        ``fit_size``: finds the formula of a quantity from what it is at every shape. ``tables``:
        the profile's distinct kinds and works so far; new ones are added. ``marks``: what is asked
        for behind which number of events.
        """
        self._recording, self._fit, self._tables = recording, fit_size, tables
        self._blocks, self._marks = blocks, marks
        self._costs = by_phase(recording)
        self._signed, self._sizes_of = recording.events.tolist(), recording.num_bytes.tolist()
        self._keys_of = _numbered(recording)
        self._operations: dict[Hashable, int] = {}
        """Numbers of what operations are."""
        self._alignments: dict[tuple[tuple[int, ...], ...], Alignment] = {}
        self._fitters: dict[str, EventFitter] = {}

    def runs(
        self, parts: Sequence[Parts], lengths: Sequence[int], *, micro_batch: int, at: int
    ) -> tuple[Run, ...]:
        """Return the runs of one micro-batch.

        ``lengths``: tokens of a sequence of each, the fewest first. ``at``: tokens of a sequence at
        which it is told. Raises ValueError: it is not the same program with longer loops, or a size
        has no formula.
        """
        cuts = [
            cut(self._recording, each, micro_batch=micro_batch, blocks=self._blocks)
            for each in parts
        ]
        outlines = [[(piece.phase, piece.label) for piece in pieces] for pieces in cuts]
        if any(outline != outlines[0] for outline in outlines):
            raise UnlikeShapesError("the program differs between shapes")
        origins = [Origins(self._recording, pieces, self._blocks.sequence) for pieces in cuts]
        fitters = [self._fitter(each) for each in parts]
        found = []
        for pieces in zip(*cuts, strict=True):
            every = [self._part(piece) for piece in pieces]
            alignment = self._aligned([part.keys for part in every], lengths)
            terms = self._terms(every, alignment)
            kinds: dict[int, EventKind] = {}
            for part, length, fitter, origin in zip(every, lengths, fitters, origins, strict=True):
                for which, kind in _kinds(part, terms, alignment.at(length), fitter, origin):
                    if kinds.setdefault(which, kind) != kind:
                        raise UnlikeShapesError("a loop over tokens frees others as it goes on")
            work = self._work(every[0], kinds, terms, alignment.at(at))
            piece = pieces[0]
            found.append(Run(piece.phase, piece.label[0], piece.role, self._tables.work(work)))
        return tuple(found)

    def _fitter(self, parts: Parts) -> EventFitter:
        """Return what knows which rows of one shape are there."""
        name = parts["forward"]
        if name not in self._fitters:
            self._fitters[name] = EventFitter([self._recording], self._tables, {})
        return self._fitters[name]

    def _aligned(self, keys: list[tuple[int, ...]], lengths: Sequence[int]) -> Alignment:
        known = tuple(keys)
        if known not in self._alignments:
            self._alignments[known] = align(keys, lengths)
        return self._alignments[known]

    def _part(self, piece: Piece) -> _Part:
        """List what a piece does: an operation comes before the events behind it."""
        costs, items = costs_of(self._costs, piece), list[Item]()
        each = iter([*costs, None])
        cost = next(each)
        for event in range(piece.start, piece.stop + 1):
            while cost is not None and (cost.event <= event or event == piece.stop):
                items.append(cost)
                cost = next(each)
            if event < piece.stop:
                items.append(self._signed[event])
        return _Part(piece, items, tuple(map(self._key, items)))

    def _key(self, item: Item) -> int:
        """Number what an item is, whatever its size: two of three numbers are of events."""
        if isinstance(item, OpCost):
            flops = bool(item.matrix_flops), bool(item.attention_flops)
            told = item.op, len(_summed(item.moved_bytes)), *flops
            return 3 * self._operations.setdefault(told, len(self._operations)) + 2
        return 3 * self._keys_of[item] if item >= 0 else 3 * self._keys_of[~item] + 1

    def _terms(self, every: Sequence[_Part], alignment: Alignment) -> "list[_Terms]":
        """Find the formulas of every item of the shortest.

        Raises ValueError: what a loop repeats is of several sizes, or a size has no formula.
        """
        sizes: list[list[tuple[int, ...]]] = []
        for part, length in zip(every, alignment.lengths, strict=True):
            found: list[tuple[int, ...] | None] = [None] * alignment.num_items
            for item, which in zip(part.items, alignment.at(length), strict=True):
                size = self._sizes(item)
                if found[which] not in {None, size}:
                    raise UnlikeShapesError("a loop over tokens has sizes that change in it")
                found[which] = size
            sizes.append([each for each in found if each is not None])
        return [
            tuple(self._fit(quantity) for quantity in zip(*item, strict=True))
            for item in zip(*sizes, strict=True)
        ]

    def _sizes(self, item: Item) -> tuple[int, ...]:
        if isinstance(item, OpCost):
            return item.matrix_flops, item.attention_flops, *_summed(item.moved_bytes)
        return (self._sizes_of[item if item >= 0 else ~item],)

    def _work(
        self,
        part: _Part,
        kinds: Mapping[int, EventKind],
        terms: "Sequence[_Terms]",
        order: list[int],
    ) -> Work:
        """Write a piece out."""
        marks = self._marked(part)
        events: list[int] = []
        for which in order:
            if which in kinds:
                events.append(self._tables.kind(kinds[which]))
            events += [
                self._tables.kind(EventKind((), _WORKSPACE, "", 0, mark))
                for mark in marks.get(which, ())
            ]
        flops, moved, hosted = list[_Terms](), list[_Terms](), dict[str, list[tuple[Term, ...]]]()
        num_ops = 0
        for which, times in Counter(order).items():
            item, own = part.items[which], [_times(each, times) for each in terms[which]]
            if not isinstance(item, OpCost):
                continue
            if item.op in {TO_HOST, TO_DEVICE}:
                hosted.setdefault(item.op, []).extend([add_terms(list(terms[which][2:]))] * times)
                continue
            num_ops += times
            flops.append((own[0], own[1]))
            moved.append(tuple(own[2:]))
        return Work(
            events=tuple(events),
            matrix_flops=add_terms([each[0] for each in flops]),
            attention_flops=add_terms([each[1] for each in flops]),
            moved_bytes=add_terms([each for some in moved for each in some]),
            num_ops=num_ops,
            to_host=tuple(hosted.get(TO_HOST, ())),
            to_device=add_terms(hosted.get(TO_DEVICE, [])),
        )

    def _marked(self, part: _Part) -> dict[int, Sequence[Mark]]:
        """Return what is asked for behind which items."""
        found: dict[int, Sequence[Mark]] = {}
        event = part.piece.start
        for which, item in enumerate(part.items):
            if not isinstance(item, OpCost):
                event += 1
                if event in self._marks:
                    found[which] = self._marks[event]
        return found


def _summed(moved: Sequence[int]) -> list[int]:
    """Add up what is moved of many tensors of one size, as of a list with one of every round."""
    return [
        each
        for size, some in groupby(moved)
        for alike in [list(some)]
        for each in ([size * len(alike)] if len(alike) >= _MANY else alike)
    ]


def _numbered(recording: Recording) -> list[int]:
    """Number what the rows of a recording are, whatever their sizes."""
    told = recording.op, recording.owner, recording.node, recording.line, recording.item
    numbers: list[int] = np.unique(np.stack(told), axis=1, return_inverse=True)[1].ravel().tolist()
    return numbers


_Terms = tuple[tuple[Term, ...], ...]
"""Formulas of what an item counts: bytes of an event; FLOPs and bytes of an operation."""


def _kinds(
    part: _Part,
    terms: Sequence[_Terms],
    of: Sequence[int],
    fitter: EventFitter,
    origins: Origins,
) -> Iterator[tuple[int, EventKind]]:
    """Yield the kinds of a piece's events at one shape; ``of``: which of the shortest each is."""
    for item, which in zip(part.items, of, strict=True):
        if isinstance(item, OpCost):
            continue
        row, own = item if item >= 0 else ~item, terms[which][0]
        own = own if item >= 0 else fitter.freed(own)
        yield which, fitter.kind_of(item, own, origins.of(row, part.piece))


def _times(terms: tuple[Term, ...], times: int) -> tuple[Term, ...]:
    return tuple(Term(term.factors, times * term.coefficient) for term in terms)
