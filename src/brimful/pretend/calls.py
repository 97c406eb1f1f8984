"""Calls of a pipeline's stages on a tape: those that ran, and those that stand for one that ran.

A stage does the same for every micro-batch but the first and the last. So only some run; the others
hand on a tensor of the right shape and leave an empty stretch on the tape, which ``fill`` fills with
what a like call did. Everything between the calls (messages, waits, losses) is the program's own.
Pure arithmetic on the columns of a recording; knows nothing of schedules.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.alike import plain_kinds, row_kinds
from brimful.pretend.blocks import NotPeriodicError
from brimful.pretend.recording import NEVER, OpCost, Recording, Spot

NONE = -1
_OWN, _PARTNER, _BEFORE, _GAP = range(4)
"""Where what a call frees was made: by it, by the forward of its micro-batch, by the stage's call
before it, or between that forward and the next call."""
Place = tuple[int, int]
"""One of the four, and the how manieth of what stays behind there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One forward or backward of a stage.

    Attributes:
        stage: Which.
        kind: ``forward`` or ``backward``.
        step: From 1.
        micro_batch: From 0.
        start: What was on the tape before it.
        stop: What was on the tape after it.
        ran: Whether it ran; else its stretch holds only what it hands on.
        handed: Rows of what it hands on.
    """

    stage: int
    kind: str
    step: int
    micro_batch: int
    start: Spot
    stop: Spot
    ran: bool
    handed: tuple[int, ...]


class Around(NamedTuple):
    """Other calls that a call has to do with, by number; ``NONE`` where there is none.

    Attributes:
        partner: The forward of the micro-batch that a backward is of.
        before: The stage's call before it in the step.
        ran_before: The stage's last call before it that ran.
    """

    partner: int
    before: int
    ran_before: int


def arounds(calls: Sequence[Call]) -> list[Around]:
    """Find for each call the others that it has to do with."""
    forwards: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    ran: dict[Hashable, int] = {}
    found = []
    for number, call in enumerate(calls):
        who, of = (call.step, call.stage), (call.step, call.stage, call.micro_batch)
        partner = forwards.get(of, NONE) if call.kind == "backward" else NONE
        found.append(Around(partner, last.get(who, NONE), ran.get(who, NONE)))
        last[who] = number
        if call.kind == "forward":
            forwards[of] = number
        if call.ran:
            ran[who] = number
    return found


def fill(recording: Recording, calls: Sequence[Call]) -> Recording:
    """Return the tape of a program all of whose calls ran.

    Args:
        recording: The tape with empty stretches.
        calls: All calls, in order.

    Raises:
        NotPeriodicError: Calls that should be alike are not, or what they leave behind is not freed
            where one can tell.
    """
    if (recording.in_use_until > 0).any() or len(recording.cache_flushes):
        raise NotPeriodicError("tensors are in use on other streams, or memory was given back")
    return _Filler(recording, calls).filled()


class _Stretch(NamedTuple):
    """A piece of the new tape: a call, or what lies between two.

    Attributes:
        rows: Per event: the number of the row that it allocates or frees, copies counted behind
            the rows of the old tape.
        births: Per event: whether it allocates.
        start: Where its events, costs and marks begin on the old tape.
        stop: Where they end.
        phases: Numbers of the phases that begin in it.
        is_copy: Whether its events are those of another call.
    """

    rows: NDArray[np.int64]
    births: NDArray[np.bool_]
    start: Spot
    stop: Spot
    phases: range
    is_copy: bool = False


class _Filler:
    """Puts copies into empty stretches; see ``fill``."""

    def __init__(self, recording: Recording, calls: Sequence[Call]) -> None:
        self._tape, self._calls = recording, calls
        self._around = arounds(calls)
        self._births = recording.events >= 0
        self._rows = np.where(self._births, recording.events, ~recording.events)
        self._kind = row_kinds(recording, plain_kinds(recording))
        self._num_rows = len(recording.num_bytes)
        self._copies: list[NDArray[np.int64]] = []
        self._stands_for: dict[int, int] = {}
        self._left: dict[int, NDArray[np.int64]] = {}
        self._stays = cache(self._found_stays)
        self._made_at = cache(self._found_places)
        self._models = _models(calls, self._around, self._told)

    # -- what a call that ran did --

    def _inside(self, number: int) -> slice:
        call = self._calls[number]
        return slice(call.start.event, call.stop.event)

    def _made(self, inside: slice) -> NDArray[np.int64]:
        return self._rows[inside][self._births[inside]]

    def _found_stays(self, number: int) -> NDArray[np.int64]:
        """Return the rows that a call makes and leaves behind, in order."""
        inside = self._inside(number)
        made = self._made(inside)
        died = self._tape.died[made]
        return made[(died == NEVER) | (died >= inside.stop)]

    def _gap(self, number: int) -> NDArray[np.int64]:
        """Return the rows that are made between a call and the next one."""
        is_last = number + 1 == len(self._calls)
        stop = len(self._rows) if is_last else self._calls[number + 1].start.event
        return self._made(slice(self._calls[number].stop.event, stop))

    def _found_places(self, number: int) -> dict[int, Place]:
        """Say of each row that a call may free where it was made."""
        around = self._around[number]
        sources = [(_OWN, self._made(self._inside(number)))]
        if around.partner != NONE:
            sources = [(_PARTNER, self._stays(around.partner)), *sources]
            sources = [(_GAP, self._gap(around.partner)), *sources]
        if around.ran_before not in {NONE, around.partner}:
            sources = [(_BEFORE, self._stays(around.ran_before)), *sources]
        return {
            row: (kind, n) for kind, rows in sources for n, row in enumerate(rows.tolist())
        }

    def _told(self, number: int) -> list[Any]:
        """Return what a call did in words that are equal for a call that did the same."""
        call, places, inside = self._calls[number], self._made_at(number), self._inside(number)
        rows = self._rows[inside].tolist()
        kinds = self._kind[self._rows[inside]].tolist()
        births = self._births[inside].tolist()
        events = [
            (kind, True) if birth else (kind, places.get(row, row))
            for row, kind, birth in zip(rows, kinds, births, strict=True)
        ]
        handed = [places.get(row, row) for row in call.handed]
        costs = self._tape.costs[call.start.cost : call.stop.cost]
        work = [(cost.event - call.start.event, *cost[2:]) for cost in costs]
        marks = self._tape.marks[call.start.mark : call.stop.mark] - call.start.event
        return [events, handed, work, marks.tolist()]

    # -- putting the new tape together --

    def filled(self) -> Recording:
        """Return the new tape."""
        stretches = self._stretches()
        rows = np.concatenate([stretch.rows for stretch in stretches])
        births = np.concatenate([stretch.births for stretch in stretches])
        source = np.concatenate([np.arange(self._num_rows), *self._copies])
        born, died = _lives(rows, births, len(source))
        if ((died != NEVER) != (self._tape.died[source] != NEVER))[born != NEVER].any():
            raise NotPeriodicError("not every call's tensors are freed where its copy's are")
        source[list(self._stands_for)] = list(self._stands_for.values())
        order = rows[births]
        number = np.empty(len(source), dtype=np.int64)
        number[order] = np.arange(len(order))
        starts = np.cumsum([0, *(len(stretch.rows) for stretch in stretches)])[:-1].tolist()
        return replace(
            self._tape,
            **{name: getattr(self._tape, name)[source[order]] for name in _PER_ROW},
            events=np.where(births, number[rows], ~number[rows]),
            born=born[order],
            died=died[order],
            in_use_until=np.zeros(len(order), dtype=np.int64),
            phase=self._phase_of_rows(stretches),
            phase_starts=self._phase_starts(stretches, starts),
            marks=np.concatenate([
                self._tape.marks[piece.start.mark : piece.stop.mark] - piece.start.event + start
                for piece, start in zip(stretches, starts, strict=True)
            ]),
            costs=tuple(
                cost
                for piece, start in zip(stretches, starts, strict=True)
                for cost in self._moved_costs(piece, start)
            ),
        )  # fmt: skip

    def _stretches(self) -> list[_Stretch]:
        """Cut the tape into what lies between calls and the calls, in turn."""
        found: list[_Stretch] = []
        done = Spot(0, 0, 0, NONE)
        for number, call in enumerate(self._calls):
            found.append(self._as_it_is(done, call.start))
            found.append(self._kept(number) if call.ran else self._copied(number))
            done = call.stop
        tape = self._tape
        end = Spot(len(self._rows), len(tape.costs), len(tape.marks), len(tape.phases) - 1)
        return [*found, self._as_it_is(done, end)]

    def _as_it_is(self, start: Spot, stop: Spot) -> _Stretch:
        inside, phases = slice(start.event, stop.event), range(start.phase + 1, stop.phase + 1)
        return _Stretch(self._rows[inside], self._births[inside], start, stop, phases)

    def _kept(self, number: int) -> _Stretch:
        """Return a call that ran; what it finds of the call before it may be of a copy now."""
        call, around = self._calls[number], self._around[number]
        stretch = self._as_it_is(call.start, call.stop)
        self._left[number] = self._stays(number)
        if around.ran_before in {NONE, around.before, around.partner}:
            return stretch
        found = self._stays(around.ran_before)
        if not np.isin(stretch.rows[~stretch.births], found).any():
            return stretch
        now = self._same_left(around.before, around.ran_before)
        now_of = dict(zip(found.tolist(), now.tolist(), strict=True))
        rows = [now_of.get(row, row) for row in stretch.rows.tolist()]
        return stretch._replace(rows=np.array(rows, dtype=np.int64))

    def _copied(self, number: int) -> _Stretch:
        """Return a copy of the call that an empty stretch stands for."""
        model = self._models[number]
        call, like = self._calls[number], self._calls[model]
        stretch = self._as_it_is(like.start, like.stop)
        new_of = self._copied_rows(stretch.rows[stretch.births])
        self._hand(like, call, new_of)
        stays = self._stays(model).tolist()
        self._left[number] = np.array([new_of[row] for row in stays], dtype=np.int64)
        places, sides = self._made_at(model), cache(lambda kind: self._side(kind, number, model))
        rows = [
            new_of[row] if row in new_of else self._found_row(places, sides, row)
            for row in stretch.rows.tolist()
        ]
        phases = range(call.start.phase + 1, call.stop.phase + 1)
        copied = np.array(rows, dtype=np.int64)
        return stretch._replace(rows=copied, phases=phases, is_copy=True)

    def _copied_rows(self, old: NDArray[np.int64]) -> dict[int, int]:
        """Number copies of rows."""
        first = self._num_rows + sum(map(len, self._copies))
        self._copies.append(old)
        return {row: first + n for n, row in enumerate(old.tolist())}

    def _hand(self, like: Call, call: Call, new_of: dict[int, int]) -> None:
        """Let what an empty stretch hands on be what its copy hands on."""
        made = set(self._rows[call.start.event : call.stop.event].tolist())
        is_own = made.issuperset(call.handed) and new_of.keys() >= set(like.handed)
        if len(like.handed) != len(call.handed) or not is_own:
            raise NotPeriodicError("a call hands on what it did not make")
        for old, stand_in in zip(like.handed, call.handed, strict=True):
            self._stands_for[stand_in] = old
            new_of[old] = stand_in

    def _found_row(self, places: dict[int, Place], sides: Any, row: int) -> int:
        if row not in places:
            raise NotPeriodicError("a call frees what is not of its micro-batch")
        kind, which = places[row]
        return int(sides(kind)[which])

    def _side(self, kind: int, number: int, model: int) -> NDArray[np.int64]:
        """Return the rows that a call finds where its model finds those of one of the places."""
        around, like = self._around[number], self._around[model]
        if kind == _PARTNER:
            return self._same_left(around.partner, like.partner)
        if kind == _BEFORE:
            return self._same_left(around.before, like.ran_before)
        ours, theirs = self._gap(around.partner), self._gap(like.partner)
        if not np.array_equal(self._kind[ours], self._kind[theirs]):
            raise NotPeriodicError("what happens between calls is not alike")
        return ours

    def _same_left(self, number: int, like: int) -> NDArray[np.int64]:
        """Return what a call leaves behind, if it is of the same kinds as what another leaves."""
        if number not in self._left:
            raise NotPeriodicError("a call has none before it where its like has one")
        ran = number if self._calls[number].ran else self._models[number]
        if not np.array_equal(self._kind[self._stays(ran)], self._kind[self._stays(like)]):
            raise NotPeriodicError("calls do not leave the same behind")
        return self._left[number]

    def _phase_of_rows(self, stretches: list[_Stretch]) -> NDArray[np.int32]:
        parts = []
        for piece in stretches:
            made = piece.rows[piece.births]
            number = piece.phases.stop - 1
            copied = np.full(len(made), number, dtype=np.int32)
            parts.append(copied if piece.is_copy else self._tape.phase[made])
        return np.concatenate(parts)

    def _phase_starts(self, stretches: list[_Stretch], starts: list[int]) -> NDArray[np.int64]:
        moved = self._tape.phase_starts.copy()
        for piece, start in zip(stretches, starts, strict=True):
            for phase in piece.phases:
                moved[phase] = start if piece.is_copy else moved[phase] - piece.start.event + start
        return moved

    def _moved_costs(self, piece: _Stretch, start: int) -> Iterator[OpCost]:
        by = start - piece.start.event
        for cost in self._tape.costs[piece.start.cost : piece.stop.cost]:
            phase = piece.phases.stop - 1 if piece.is_copy else cost.phase
            yield cost._replace(event=cost.event + by, phase=phase)


_PER_ROW = ("num_bytes", "stream", "owner", "op", "node", "line", "item", "shape_dtype")


def _models(
    calls: Sequence[Call], around: Sequence[Around], told: Any
) -> dict[int, int]:
    """Choose for each call that did not run one that did, and make sure that all such are alike.

    Alike are calls of one stage and kind whose stage did the same kind of thing before; a step in
    which none of them ran has another step's.
    """
    most = max((call.micro_batch for call in calls), default=0)
    ran: dict[Hashable, list[int]] = defaultdict(list)
    groups = [_group(calls, around[n].before, call) for n, call in enumerate(calls)]
    for number, call in enumerate(calls):
        if call.ran and 0 < call.micro_batch < most:
            ran[groups[number]].append(number)
    wanted = {groups[n] for n, call in enumerate(calls) if not call.ran}
    for group in wanted:
        if not ran[group]:
            raise NotPeriodicError(f"no call like {group} ran")
        words = [told(number) for number in ran[group]]
        if any(one != other for one, other in pairwise(words)):
            raise NotPeriodicError(f"calls like {group} differ")
    return {
        n: min(ran[groups[n]], key=lambda m, at=n: (calls[m].step != calls[at].step, m))  # type: ignore[misc]
        for n, call in enumerate(calls)
        if not call.ran
    }


def _group(calls: Sequence[Call], before: int, call: Call) -> Hashable:
    return call.stage, call.kind, calls[before].kind if before != NONE else ""


def _lives(
    rows: NDArray[np.int64], births: NDArray[np.bool_], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the events at which rows are made and freed."""
    born, died = np.full(count, NEVER), np.full(count, NEVER)
    made, freed = rows[births], rows[~births]
    if len(np.unique(freed)) != len(freed) or len(np.unique(made)) != len(made):
        raise NotPeriodicError("one tensor would be made or freed twice")
    born[made], died[freed] = np.flatnonzero(births), np.flatnonzero(~births)
    if (born[freed] == NEVER).any() or (died[freed] < born[freed]).any():
        raise NotPeriodicError("a tensor would be freed before it is made")
    return born, died
