"""Cutting recordings into runs and turning each run's events and costs into formulas."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from brimful.cost.profiles import (
    NUM_CHUNKS,
    PLACE,
    TWO_CHUNKS,
    EventKind,
    Group,
    Mark,
    Role,
    Run,
    Term,
    Work,
    alike,
    is_place,
)
from brimful.pretend.reading import LOSS_OWNER, classify
from brimful.pretend.recording import TO_DEVICE, TO_HOST, OpCost, Recording
from brimful.simulate.fit import add_terms
from brimful.simulate.tables import Tables
from brimful.values.results import EVAL, ITEM_NAMES, WORKSPACES

GROUP_SIZE = 3
"""Blocks of a kind in a traced model: a first, one in the middle, a last."""
_ROLES: dict[int, tuple[Role, ...]] = {
    TWO_CHUNKS: ("first", "last"),
    GROUP_SIZE: ("first", "middle", "last"),
    NUM_CHUNKS: ("first", "second", "middle", "later", "last"),
}
_BLOCK = re.compile(r"(?:^|\.)(?P<stack>layers|h)\.(?P<number>\d+)(?:\.|$)")


class UnlikeShapesError(ValueError):
    """Recordings at several shapes are not of the same operations."""


class Blocks(NamedTuple):
    """Which modules are blocks of which kind.

    Attributes:
        num_checkpointed: Blocks that are checkpointed, from the first on.
        path: Finds a block in the path of a module: the list it stands in, and its number there.
        sequence: Their kinds in order, where there are several.
        starts: Of a list of blocks, how many blocks are before it; of others: none.
        numbers: By which each traced block is told, in order; empty: by where it stands.
    """

    num_checkpointed: int
    path: re.Pattern[str] = _BLOCK
    sequence: tuple[int, ...] = ()
    starts: Mapping[str, int] = MappingProxyType({})
    numbers: tuple[int, ...] = ()


Label = tuple[Group, int]
SizeFit = Callable[[tuple[int, ...]], tuple[Term, ...]]
Costs = Mapping[int, Sequence[OpCost]]
"""What operations cost, by the number of their phase."""
Fit = Callable[[int, tuple[int, ...]], tuple[Term, ...]]
"""Finds the formula of a size: by its event's place in the run, and what it is at every shape."""
OTHER: Label = ("", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run before fitting: events ``start`` to ``stop`` of a recording, and whose they are.

    What a phase does in place after its last event belongs to the piece that ends it.
    """

    phase: str
    phase_index: int
    label: Label
    role: Role
    start: int
    stop: int
    ends_phase: bool


Parts = Mapping[str, str]
"""Phases to cut, by what a profile calls them, and what the recording does."""
STEP: Parts = {"forward": "step 1 forward", "backward": "step 1 backward"}
EVALUATION: Parts = {"forward": EVAL}


def cut(
    recording: Recording, parts: Parts = STEP, *, micro_batch: int, blocks: Blocks
) -> list[Piece]:
    """Cut one micro-batch into pieces, by default its forward and backward in the first step.

    An event belongs to the block or chunk that made the latest allocation.

    Raises ValueError: a block runs in more than one piece, or a group is of another size than
    traced.
    """
    pieces: list[Piece] = []
    for phase, name in parts.items():
        index = _phase_index(recording, name, micro_batch)
        starts = [*recording.phase_starts.tolist(), len(recording.events)]
        labels = _labels(recording, starts[index], starts[index + 1], blocks)
        pieces += _group(phase, index, labels, starts[index])
    return pieces


def _phase_index(recording: Recording, phase: str, which: int) -> int:
    return [i for i, name in enumerate(recording.phases) if name == phase][which]


def _labels(recording: Recording, start: int, stop: int, blocks: Blocks) -> list[Label]:
    marks = [m for m in recording.marks.tolist() if start <= m < stop]
    # Chunks that allocate nothing, as of Liger's loss in one type, are no pieces.
    chunk_of = {m: i for i, m in enumerate(marks)} if len(set(marks)) > 1 else {}
    labels, now = list[Label](), OTHER
    rows = recording.events[start:stop]
    owners = np.where(rows >= 0, recording.owner[rows], -1).tolist()
    own = {owner: _block_of(recording.owners[owner], blocks) for owner in {*owners} - {-1}}
    for event, owner in enumerate(owners, start=start):
        if event in chunk_of:
            now = ("chunk", chunk_of[event])
        elif owner >= 0:
            now = own[owner] or _beside(recording.owners[owner], now)
        labels.append(now)
    return labels


def _block_of(owner: str, blocks: Blocks) -> Label | None:
    """Return the label of the block that an owner is in; None: it is in none."""
    if (block := blocks.path.search(owner)) is None:
        return None
    index = int(block["number"]) + blocks.starts.get(block["stack"], 0)
    group: Group = "checkpointed" if index < blocks.num_checkpointed else "plain"
    told = place_group(group, blocks.numbers[index] if blocks.numbers else index)
    return (told if blocks.sequence else group, index)


def _beside(owner: str, now: Label) -> Label:
    """Return the label of what is in no block."""
    return now if now[0] == "chunk" and owner.startswith(LOSS_OWNER) else OTHER


def _group(phase: str, index: int, labels: list[Label], start: int) -> list[Piece]:
    changes = [i for i in range(len(labels)) if i == 0 or labels[i] != labels[i - 1]]
    spans = list(zip(changes, [*changes[1:], len(labels)], strict=True))
    order: dict[Group, list[Label]] = {}
    for begin, _ in spans:
        order.setdefault(labels[begin][0], []).append(labels[begin])
    for group, members in order.items():
        expected = {TWO_CHUNKS, NUM_CHUNKS} if group == "chunk" else {GROUP_SIZE}
        expected = {1} if is_place(group) else expected
        if group and len(members) not in expected:
            raise ValueError(f"{len(members)} pieces of {group} in {phase}, not {expected}")
    return [
        Piece(
            phase=phase,
            phase_index=index,
            label=labels[begin],
            role=_role(labels[begin], order),
            start=start + begin,
            stop=start + end,
            ends_phase=end == len(labels),
        )
        for begin, end in spans
    ]


def _role(label: Label, order: dict[Group, list[Label]]) -> Role:
    members = order[label[0]]
    if not label[0] or is_place(label[0]):
        return "other"
    return _ROLES[len(members)][members.index(label)]


class Origins:
    """Tells which events happen once for every middle member of a group, though they lie elsewhere.

    Leaving autocast frees the weight copies of all blocks at once; the gradient of the hidden
    states is put together from all chunks at once.
    """

    def __init__(
        self, recording: Recording, pieces: list[Piece], sequence: Sequence[int] = ()
    ) -> None:
        """Index the pieces of a recording by event.

        ``sequence``: kinds of the traced blocks, where there are several.
        """
        self._recording = recording
        self._of_kind: defaultdict[tuple[str, str, int], list[Piece]] = defaultdict(list)
        for piece in pieces:
            if is_place(piece.label[0]):
                self._of_kind[_kind_of(piece, sequence)].append(piece)
        self._sequence = sequence
        self._piece_of = {e: piece for piece in pieces for e in range(piece.start, piece.stop)}
        self._first_of = {(p.phase, p.label[0]): p for p in pieces if p.role == "first"}
        self._rows: dict[int, Mapping[tuple[int, int], list[int]]] = {}

    def of(self, row: int, now: Piece) -> Group:
        """Name the group whose every middle member causes this event in the piece ``now``."""
        born = self._piece_of.get(int(self._recording.born[row]))
        if born is not None and is_place(born.label[0]):
            # Name the traced block each of whose like causes this event, if it is not now.
            if born is now:
                return ""
            others = [p for p in self._of_kind[_kind_of(born, self._sequence)] if p is not born]
            # What the last of them makes ends in it, be it handed from each to the next.
            others = [other for other in others if other is not now] or others
            if is_place(now.label[0]) and not any(
                self._ends_alike(row, born, other, now) for other in others
            ):
                return ""
            return born.label[0]
        if born is None or born.role != "middle" or born is now:
            return ""
        # Whether the first member's counterpart of an allocation ends in the same piece. Otherwise
        # each member merely ends what its neighbour began.
        if born.label[0] == now.label[0] and not self._ends_alike(
            row, born, self._first_of[born.phase, born.label[0]], now
        ):
            return ""
        return born.label[0]

    def _ends_alike(self, row: int, born: Piece, first: Piece, now: Piece) -> bool:
        """Whether what another member made as this one made a row ends in the same piece."""
        kind = self._kind_of(row)
        place = self._rows_of(born)[kind].index(row)
        counterparts = self._rows_of(first).get(kind, [])
        if place >= len(counterparts):
            return False
        return self._piece_of.get(int(self._recording.died[counterparts[place]])) is now

    def _rows_of(self, piece: Piece) -> Mapping[tuple[int, int], list[int]]:
        """Return the rows that a piece allocates by what made them and their shape."""
        if piece.start not in self._rows:
            found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
            for event in self._recording.events[piece.start : piece.stop].tolist():
                if event >= 0:
                    found[self._kind_of(event)].append(event)
            self._rows[piece.start] = found
        return self._rows[piece.start]

    def _kind_of(self, row: int) -> tuple[int, int]:
        return int(self._recording.op[row]), int(self._recording.shape_dtype[row])


def place_group(group: Group, place: int) -> Group:
    """Name the group of one traced block of a sequence of kinds."""
    return f"{group}{PLACE}{place}"


def _kind_of(piece: Piece, sequence: Sequence[int]) -> tuple[str, str, int]:
    """Return the phase of a block's piece, whether it is checkpointed, and its kind."""
    status, _, place = piece.label[0].partition(PLACE)
    return piece.phase, status, sequence[int(place) % len(sequence)]


class EventFitter:
    """Turns the events of several recordings of one program at several shapes into kinds."""

    def __init__(
        self, recordings: Sequence[Recording], tables: Tables, marks: Mapping[int, Sequence[Mark]]
    ) -> None:
        """Keep what is compared.

        ``recordings``: one per shape. ``tables``: the profile's distinct kinds and works so far;
        new ones are added. ``marks``: of the first recording: what is asked for behind which number
        of events.
        """
        self._recordings = recordings
        self._tables = tables
        self._items: list[int] = classify(recordings[0]).tolist()
        every = {id(each): each for each in recordings}
        columns = {
            name: _Columns(each.events.tolist(), each.num_bytes.tolist())
            for name, each in every.items()
        }
        self._columns = [columns[id(each)] for each in recordings]
        self._marks = marks
        self._known: dict[tuple[int, int, Group], _Known] = {}
        self._numbers: dict[int, int] = {}
        """Of kinds in ``_known``, by identity."""
        self._negative: dict[int, tuple[tuple[Term, ...], tuple[Term, ...]]] = {}
        self._there: dict[object, list[int]] = {}
        """Rows of the first recording that are there, by what they have in common."""

    def events(self, pieces: tuple[Piece, ...], origins: Origins, fit: Fit) -> Iterator[int]:
        """Yield the numbers of a run's kinds; runs are asked for in the order of the program."""
        first = pieces[0]
        for offset in range(first.stop - first.start):
            kind = self._event(pieces, offset, origins, fit)
            number = self._numbers.get(id(kind))
            if number is None:
                number = self._numbers[id(kind)] = self._tables.kind(kind)
            yield number
            for mark in self._marks.get(first.start + offset + 1, ()):
                yield self._tables.kind(EventKind((), ITEM_NAMES.index(WORKSPACES), "", 0, mark))

    def _event(
        self, pieces: tuple[Piece, ...], offset: int, origins: Origins, fit: Fit
    ) -> EventKind:
        signed = [
            each.events[piece.start + offset]
            for each, piece in zip(self._columns, pieces, strict=True)
        ]
        rows = [row if row >= 0 else ~row for row in signed]
        sizes = tuple([each.sizes[row] for each, row in zip(self._columns, rows, strict=True)])
        terms = fit(offset, sizes)
        if signed[0] < 0:
            terms = self.freed(terms)
        return self.kind_of(signed[0], terms, origins.of(rows[0], pieces[0]))

    def freed(self, terms: tuple[Term, ...]) -> tuple[Term, ...]:
        """Return a formula with the other sign, the same object for the same object."""
        known = self._negative.get(id(terms))
        if known is None:
            negative = tuple(Term(t.factors, -t.coefficient) for t in terms)
            known = self._negative[id(terms)] = terms, negative
        return known[1]

    def kind_of(self, signed: int, terms: tuple[Term, ...], origin: Group) -> EventKind:
        """Return the kind of an event of the first recording; asked for in the program's order.

        ``signed``: a row that is allocated, or of one that is freed its complement. ``terms``: by
        how much live bytes change.
        """
        row = signed if signed >= 0 else ~signed
        item = self._items[row]
        named = id(terms), item, origin
        known = self._known.get(named)
        if known is None:
            kind = EventKind(terms, item, origin)
            there = self._there.setdefault(alike(kind), [])
            known = self._known[named] = _Known(terms, there, {-1: kind})
        _, there, kinds = known
        newer = -1
        if signed >= 0:
            there.append(row)
        else:
            newer = 0
            if row in there:
                newer = len(there) - 1 - there.index(row)
                there.remove(row)
        if newer not in kinds:
            kinds[newer] = EventKind(terms, item, origin, newer)
        return kinds[newer]


class _Columns(NamedTuple):
    """Of a recording: its events, and the sizes of its rows."""

    events: list[int]
    sizes: list[int]


class _Known(NamedTuple):
    """What events have in common that are equal in size, class and cause.

    Attributes:
        terms: Their size, which is kept as they are told by its identity.
        there: Rows that are there, in order; shared with others of the same size and class.
        kinds: By how many newer ones are there; -1: of what allocates.
    """

    terms: tuple[Term, ...]
    there: list[int]
    kinds: dict[int, EventKind]


def aligned(
    recordings: Sequence[Recording], parts: Sequence[Parts], *, micro_batch: int, blocks: Blocks
) -> list[tuple[Piece, ...]]:
    """Cut recordings of one program alike; see ``cut``.

    ``recordings``: one per shape.
    """
    cuts = [
        cut(recording, each, micro_batch=micro_batch, blocks=blocks)
        for recording, each in zip(recordings, parts, strict=True)
    ]
    outlines = [[(p.phase, p.label, p.stop - p.start) for p in pieces] for pieces in cuts]
    if any(outline != outlines[0] for outline in outlines):
        raise UnlikeShapesError("the program differs between shapes")
    return list(zip(*cuts, strict=True))


class RunFitter:
    """Fits the runs of several recordings of one program at several shapes."""

    def __init__(
        self,
        recordings: Sequence[Recording],
        fit_size: SizeFit,
        tables: Tables,
        blocks: Blocks,
        marks: Mapping[int, Sequence[Mark]],
    ) -> None:
        """Keep what is compared.

        ``recordings``: one per shape. ``fit_size``: finds the formula of a quantity from what it is
        at every shape. ``tables``: as for ``EventFitter``, and ``marks``.
        """
        self._recordings = recordings
        self._costs = [by_phase(recording) for recording in recordings]
        self._fit = fit_size
        self._blocks = blocks
        self._tables = tables
        self._events = EventFitter(recordings, tables, marks)

    def runs(self, parts: Sequence[Parts], *, micro_batch: int) -> tuple[Run, ...]:
        """Return the runs of one micro-batch; see ``aligned``.

        Raises ValueError: the recordings are not the same program, or a size has no formula.
        """
        every = aligned(self._recordings, parts, micro_batch=micro_batch, blocks=self._blocks)
        firsts = [pieces[0] for pieces in every]
        origins = Origins(self._recordings[0], firsts, self._blocks.sequence)
        return tuple(self._run(pieces, origins) for pieces in every)

    def _run(self, pieces: tuple[Piece, ...], origins: Origins) -> Run:
        piece = pieces[0]
        costs = [costs_of(c, p) for c, p in zip(self._costs, pieces, strict=True)]
        every = list(zip(*costs, strict=True))
        by_op = [ops for ops in every if ops[0].op not in {TO_HOST, TO_DEVICE}]
        work = Work(
            events=tuple(self._events.events(pieces, origins, lambda _, sizes: self._fit(sizes))),
            matrix_flops=self._sum([[c.matrix_flops for c in ops] for ops in by_op]),
            attention_flops=self._sum([[c.attention_flops for c in ops] for ops in by_op]),
            moved_bytes=self._sum(
                [
                    list(sizes)
                    for ops in by_op
                    for sizes in zip(*(c.moved_bytes for c in ops), strict=True)
                ]
            ),
            num_ops=len(by_op),
            to_host=tuple(self._copied(every, TO_HOST)),
            to_device=add_terms(list(self._copied(every, TO_DEVICE))),
        )
        return Run(piece.phase, piece.label[0], piece.role, self._tables.work(work))

    def _copied(self, every: Sequence[tuple[OpCost, ...]], way: str) -> Iterator[tuple[Term, ...]]:
        """Yield the bytes of every copy between device and host, one way."""
        for ops in every:
            if ops[0].op == way:
                yield self._fit(tuple(sum(cost.moved_bytes) for cost in ops))

    def _sum(self, quantities: list[list[int]]) -> tuple[Term, ...]:
        return add_terms([self._fit(tuple(sizes)) for sizes in quantities])


def by_phase(recording: Recording) -> Costs:
    """Return what the operations of a recording cost, phase by phase."""
    found: defaultdict[int, list[OpCost]] = defaultdict(list)
    for cost in recording.costs:
        found[cost.phase].append(cost)
    return found


def costs_of(costs: Costs, piece: Piece) -> list[OpCost]:
    """Return what the operations of a piece cost, in order."""
    every = costs[piece.phase_index]
    stop = piece.stop + piece.ends_phase
    return list(every[_place(every, piece.start) : _place(every, stop)])


def _place(costs: Sequence[OpCost], event: int) -> int:
    """Return how many of some operations, which are in order, come before an event."""
    return bisect_left(costs, event, key=attrgetter("event"))
