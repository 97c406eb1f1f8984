"""Calls of a pipeline's stages on a tape: those that ran, and those that stand for one that ran.

A stage does the same for every micro-batch but the first and the last. So only some run; the
others hand on a tensor of the right shape and leave an empty stretch on the tape, which ``fill``
fills with what a like call did. Everything between the calls (messages, waits, losses) is the
program's own. Pure arithmetic on the columns of a recording; knows nothing of schedules.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.alike import plain_kinds, row_kinds
from brimful.pretend.blocks import NotPeriodicError
from brimful.pretend.recording import NEVER, OpCost, Recording
from brimful.pretend.recording_builder import Spot

NONE = -1
_OWN, _PARTNER, _SHARED, _GAP = range(4)
"""Where what a call frees was made: by it, by the forward of its micro-batch, by another call of
the stage (parameters that stay gathered), or between that forward and the next call."""
Key = tuple[int, int]
"""Of what kind a row is, and the how manieth of its kind."""
Place = tuple[int, Key]
"""One of the four, and which row there."""


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
        ran: Whether it ran; else its stretch holds nothing but what it hands on.
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
        in_place: Whether these two are of one kind, so that it found what it would find.
    """

    partner: int
    before: int
    ran_before: int
    in_place: bool


def arounds(calls: Sequence[Call]) -> list[Around]:
    """Find for each call the others that it has to do with."""
    forwards: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    ran: dict[Hashable, int] = {}
    found = []
    for number, call in enumerate(calls):
        who, of = (call.step, call.stage), (call.step, call.stage, call.micro_batch)
        partner = forwards.get(of, NONE) if call.kind == "backward" else NONE
        before, ran_before = last.get(who, NONE), ran.get(who, NONE)
        in_place = before == NONE or calls[before].kind == calls[ran_before].kind
        found.append(Around(partner, before, ran_before, in_place))
        last[who] = number
        if call.kind == "forward":
            forwards[of] = number
        if call.ran:
            ran[who] = number
    return found


def fill(recording: Recording, calls: Sequence[Call]) -> Recording:
    """Return the tape of a program all of whose calls ran."""
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
        self._backwards = _backwards(self._around)
        self._births = recording.events >= 0
        self._rows = np.where(self._births, recording.events, ~recording.events)
        self._kind = row_kinds(recording, plain_kinds(recording))
        self._num_rows = len(recording.num_bytes)
        self._copies: list[NDArray[np.int64]] = []
        self._stands_for: dict[int, int] = {}
        self._left: dict[int, dict[Key, int]] = {}
        self._now: dict[tuple[int, Key], int] = {}
        self._stays = cache(self._found_stays)
        self._gap = cache(self._found_gap)
        self._made_at = cache(self._found_places)
        self._shared = self._found_shared()
        self._models = _models(calls, self._around, self._told)

    # -- what a call that ran did --

    def _inside(self, number: int) -> slice:
        call = self._calls[number]
        return slice(call.start.event, call.stop.event)

    def _made(self, inside: slice) -> NDArray[np.int64]:
        return self._rows[inside][self._births[inside]]

    def _found_stays(self, number: int) -> dict[Key, int]:
        """Return the rows that a call makes and leaves behind."""
        inside = self._inside(number)
        made = self._made(inside)
        died = self._tape.died[made]
        return self._named(made[(died == NEVER) | (died >= inside.stop)])

    def _found_gap(self, number: int) -> dict[Key, int]:
        """Return the rows that are made between a call and the next one."""
        is_last = number + 1 == len(self._calls)
        stop = len(self._rows) if is_last else self._calls[number + 1].start.event
        return self._named(self._made(slice(self._calls[number].stop.event, stop)))

    def _named(self, rows: NDArray[np.int64]) -> dict[Key, int]:
        found: dict[Key, int] = {}
        seen: Counter[int] = Counter()
        for row, kind in zip(rows.tolist(), self._kind[rows].tolist(), strict=True):
            found[kind, seen[kind]] = row
            seen[kind] += 1
        return found

    def _found_shared(self) -> dict[int, tuple[int, Key]]:
        """Name the rows that calls of a stage find as others, of other micro-batches, left them.

        They are of kinds of which one at least was freed by such a call, or between calls although
        it had not been handed on.
        """
        makers = {
            row: (number, key)
            for number, call in enumerate(self._calls)
            if call.ran
            for key, row in self._stays(number).items()
        }
        kinds = {
            (self._calls[makers[row][0]].stage, makers[row][1][0])
            for by, row in self._freed_later(makers)
            if by not in self._backwards[makers[row][0]]
        }
        named = {row: (self._calls[n].stage, key) for row, (n, key) in makers.items()}
        return {row: name for row, name in named.items() if (name[0], name[1][0]) in kinds}

    def _freed_later(self, makers: Mapping[int, Any]) -> Iterator[tuple[int, int]]:
        """Yield rows that are freed outside of the call that made them, and by which call."""
        caller = np.full(len(self._rows), NONE)
        for number in range(len(self._calls)):
            caller[self._inside(number)] = number
        handed = {row for call in self._calls for row in call.handed}
        for row in makers:
            died = int(self._tape.died[row])
            by = NONE if died == NEVER else int(caller[died])
            if died != NEVER and (by != NONE or row not in handed):
                yield by, row

    def _found_places(self, number: int) -> dict[int, Place]:
        """Say of each row that a call may free where it was made."""
        around = self._around[number]
        sources = [(_OWN, self._named(self._made(self._inside(number))))]
        if around.partner != NONE:
            sources = [(_PARTNER, self._stays(around.partner)), *sources]
            sources = [(_GAP, self._gap(around.partner)), *sources]
        return {row: (kind, key) for kind, rows in sources for key, row in rows.items()}

    def _told(self, number: int) -> list[Any]:
        """Return what a call did in words that are equal for a call that did the same."""
        call, places, inside = self._calls[number], self._made_at(number), self._inside(number)
        rows = self._rows[inside].tolist()
        kinds = self._kind[self._rows[inside]].tolist()
        births = self._births[inside].tolist()
        events = [
            (kind, True) if birth else (kind, self._shared.get(row) or places.get(row, row))
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
            found.append(self._found_now(self._as_it_is(done, call.start)))
            found.append(self._copied(number) if number in self._models else self._kept(number))
            done = call.stop
        tape = self._tape
        end = Spot(len(self._rows), len(tape.costs), len(tape.marks), len(tape.phases) - 1)
        return [*found, self._found_now(self._as_it_is(done, end))]

    def _as_it_is(self, start: Spot, stop: Spot) -> _Stretch:
        inside, phases = slice(start.event, stop.event), range(start.phase + 1, stop.phase + 1)
        return _Stretch(self._rows[inside], self._births[inside], start, stop, phases)

    def _kept(self, number: int) -> _Stretch:
        """Return a call that ran as it would; what it finds may be of copies now."""
        call = self._calls[number]
        stretch = self._found_now(self._as_it_is(call.start, call.stop))
        self._leave(number, self._stays(number))
        return stretch

    def _found_now(self, stretch: _Stretch) -> _Stretch:
        """Let what is freed of the things that calls share be what is there now."""
        shared = self._shared.keys()
        rows = [
            self._take(row) if not birth and row in shared else row
            for row, birth in zip(stretch.rows.tolist(), stretch.births.tolist(), strict=True)
        ]
        return stretch._replace(rows=np.array(rows, dtype=np.int64))

    def _take(self, row: int) -> int:
        """Return what is now in the place of a row that calls share, for good."""
        name = self._shared[row]
        if name not in self._now:
            raise NotPeriodicError("a call does not find what its like finds")
        return self._now.pop(name)

    def _leave(self, number: int, rows: dict[Key, int]) -> None:
        """Take note of what a call leaves behind.

        ``rows``: by the keys of what its model, or itself, left behind.
        """
        self._left[number] = rows
        for key, row in self._stays(self._models.get(number, number)).items():
            if name := self._shared.get(row):
                if name in self._now:
                    raise NotPeriodicError("a call leaves again what has not been taken")
                self._now[name] = rows[key]

    def _copied(self, number: int) -> _Stretch:
        """Return a copy of the call that an empty stretch stands for."""
        model = self._models[number]
        call, like = self._calls[number], self._calls[model]
        stretch = self._as_it_is(like.start, like.stop)
        new_of = self._copied_rows(stretch.rows[stretch.births])
        for old, stand_in in self._stand_ins(number, model):
            self._stands_for[stand_in] = old
            new_of[old] = stand_in
        rows = [
            new_of[row] if row in new_of else self._found_row(number, model, row)
            for row in stretch.rows.tolist()
        ]
        self._leave(number, {key: new_of[row] for key, row in self._stays(model).items()})
        phases = range(call.start.phase + 1, call.stop.phase + 1)
        copied = np.array(rows, dtype=np.int64)
        return stretch._replace(rows=copied, phases=phases, is_copy=True)

    def _copied_rows(self, old: NDArray[np.int64]) -> dict[int, int]:
        """Number copies of rows."""
        first = self._num_rows + sum(map(len, self._copies))
        self._copies.append(old)
        return {row: first + n for n, row in enumerate(old.tolist())}

    def _stand_ins(self, number: int, model: int) -> list[tuple[int, int]]:
        """Pair rows of a model with those that a call has made in their place and others know.

        They are what it hands on; of a call that ran, all that it leaves behind.
        """
        call, like = self._calls[number], self._calls[model]
        if call.ran:
            ours, theirs = self._stays(number), self._stays(model)
            return [(theirs[key], row) for key, row in ours.items() if key in theirs]
        made, theirs_made = set(self._stays(number).values()), set(self._stays(model).values())
        is_own = made.issuperset(call.handed) and theirs_made.issuperset(like.handed)
        if len(like.handed) != len(call.handed) or not is_own:
            raise NotPeriodicError("a call hands on what it did not make")
        return list(zip(like.handed, call.handed, strict=True))

    def _found_row(self, number: int, model: int, row: int) -> int:
        """Return which row a call frees where its model frees one that it did not make."""
        if row in self._shared:
            return self._take(row)
        kind, key = self._made_at(model).get(row, (NONE, (NONE, NONE)))
        partner = self._around[number].partner
        found = {_PARTNER: self._left.get(partner, {}), _GAP: self._gap(partner)}.get(kind, {})
        if key not in found:
            raise NotPeriodicError("a call frees what is not of its micro-batch")
        return found[key]

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


def _models(calls: Sequence[Call], around: Sequence[Around], told: Any) -> dict[int, int]:
    """Choose for each call that is not what it would be one that is.

    Alike are calls of one stage and kind whose stage did the same kind of thing before; a step in
    which none of them ran has another step's.

    Raises NotPeriodicError: calls that should be alike are not, or there is none.
    """
    most = max((call.micro_batch for call in calls), default=0)
    groups = [_group(calls, around[n].before, call) for n, call in enumerate(calls)]
    fine = [n for n, call in enumerate(calls) if call.ran and around[n].in_place]
    inner: dict[Hashable, list[int]] = defaultdict(list)
    for number in fine:
        if 0 < calls[number].micro_batch < most:
            inner[groups[number]].append(number)
    wanted = sorted(set(range(len(calls))) - set(fine))
    for number in wanted:
        _check_inner(calls[number], most)
    for group in {groups[number] for number in wanted}:
        _check_alike(group, [told(number) for number in inner[group]])
    return {n: _nearest(calls, inner[groups[n]], calls[n].step) for n in wanted}


def _check_inner(call: Call, most: int) -> None:
    """Make sure that a call is neither the first nor the last of its kind."""
    if call.micro_batch == 0 or (call.kind == "backward" and call.micro_batch == most):
        raise NotPeriodicError(
            f"the {call.kind} of micro-batch {call.micro_batch} is like no other"
        )


def _check_alike(group: Hashable, words: list[Any]) -> None:
    if not words or any(one != other for one, other in pairwise(words)):
        raise NotPeriodicError(f"{len(words)} calls like {group} ran, or they differ")


def _nearest(calls: Sequence[Call], numbers: list[int], step: int) -> int:
    """Return a call of the same step, if there is one."""
    return min(numbers, key=lambda number: (calls[number].step != step, number))


def _backwards(around: Sequence[Around]) -> defaultdict[int, set[int]]:
    """Return for each forward the backwards of its micro-batch."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for number, one in enumerate(around):
        found[one.partner].add(number)
    return found


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
