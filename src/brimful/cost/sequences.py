"""A profile of blocks of several kinds, written out for one number of checkpointed blocks.

Where all blocks are alike three of them stand for any number (``profiles.Role``). Else each block
of the model is, by its kind and its neighbours', like one of those that were traced
(``models.sequence``), and a step is a run for each of them. What that makes is an ordinary profile,
whose runs all happen once.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from brimful.cost.profiles import PLACE, EventKind, Group, Profile, Run, Variant, is_place
from brimful.cost.shared_ends import Ends, ends_of, kind_of
from brimful.files.remembered import once_for_each
from brimful.models.sequence import END

_ENDS, _SAME, _STATUS = 8, 2, 1
"""How much it weighs that a traced block ends the stack likewise, has the same neighbour, or one
that is checkpointed or not likewise."""


class Blocks(NamedTuple):
    """The blocks of a model.

    Attributes:
        kinds: Of every block, its kind.
        parts: Of every block, which it is of those that hold other parameters.
    """

    kinds: tuple[int, ...]
    parts: tuple[int, ...]


class _Block(NamedTuple):
    """A block of a model or of a trace, and where it stands."""

    group: Group
    kind: int


@once_for_each
def written_out(profile: Profile, blocks: Blocks, num_checkpointed: int) -> Profile:
    """Return a profile whose runs are those of a model's blocks, one after the other.

    ``profile``: of blocks of several kinds (``Profile.sequence``). ``num_checkpointed``: how many
    of them are, from the first on.
    """
    writer = _Writer(profile, blocks, num_checkpointed)
    variants = {
        name: Variant(first=writer.runs(variant.first), later=writer.runs(variant.later))
        for name, variant in profile.variants.items()
        if writer.covers(variant)
    }
    return replace(
        profile, kinds=_kinds(profile), works=tuple(writer.works), variants=variants, sequence=()
    )


@once_for_each
def _kinds(profile: Profile) -> tuple[EventKind, ...]:
    """Return the kinds as one value, whatever number of blocks is checkpointed."""
    return tuple(
        EventKind(kind.terms, kind.item, "", kind.newer, kind.mark)
        if is_place(kind.origin)
        else kind
        for kind in profile.kinds
    )


class _Writer:
    """Writes runs out."""

    def __init__(self, profile: Profile, blocks: Blocks, num_checkpointed: int) -> None:
        """Find what each block of the model is like."""
        self.works = list(profile.works)
        self._profile, self._blocks = profile, blocks
        self._caused = {place for place, kind in enumerate(profile.kinds) if is_place(kind.origin)}
        num = len(blocks.kinds)
        self._groups: list[Group] = ["checkpointed"] * num_checkpointed
        self._groups += ["plain"] * (num - num_checkpointed)
        self._like: dict[tuple[Group, ...], list[Group]] = {}

    def covers(self, variant: Variant) -> bool:
        """Whether a variant has every kind of block that there is, and no group more."""
        groups = [run.group for run in variant.first if is_place(run.group)]
        traced = set(map(self._traced, groups))
        real = set(map(_Block, self._groups, self._blocks.kinds))
        return real <= traced and {each.group for each in traced} == set(self._groups)

    def _traced(self, group: Group) -> _Block:
        """Return which block a group of one traced block is."""
        return _Block(group.partition(PLACE)[0], kind_of(group, self._profile.sequence))

    def runs(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Return the runs of every block in the place of those that were traced."""
        found = list[Run]()
        traced = [run.group for run in runs if run.phase == "forward" and is_place(run.group)]
        like = self._likes(tuple(traced))
        ends = ends_of(self._profile, tuple(runs))
        for phase, some in groupby(runs, key=lambda run: run.phase):
            found += self._phase(phase, list(some), like, ends.get(phase, {}))
        return tuple(found)

    def _phase(
        self, phase: str, runs: list[Run], like: list[Group], ends: Mapping[int, Ends]
    ) -> Iterator[Run]:
        """Yield what is before the first block, the blocks in order, and what is behind.

        And what is between blocks of two kinds: behind an encoder's last one.
        """
        of_place = {run.group: run for run in runs if is_place(run.group)}
        places = [index for index, run in enumerate(runs) if is_place(run.group)]
        for run in runs[: places[0]]:
            yield self._run(run, like)
        order = range(len(like)) if phase == "forward" else range(len(like) - 1, -1, -1)
        last_of = {self._blocks.kinds[block]: block for block in order}
        made: dict[tuple[Group, bool], Run] = {}
        between = self._between(runs, places)
        for before, block in zip((None, *order), order, strict=False):
            if before is not None:
                kinds = self._blocks.kinds[before], self._blocks.kinds[block]
                for run in between.get(kinds, ()):
                    yield self._run(run, like)
            kind = self._blocks.kinds[block]
            one = like[block], kind in ends and last_of[kind] == block
            if one not in made:
                run = self._ending(of_place[one[0]], ends.get(kind), ends=one[1])
                made[one] = self._run(run, like)
            run = made[one]
            yield Run(phase, self._groups[block], "other", run.work, self._blocks.parts[block])
        for run in runs[places[-1] + 1 :]:
            yield self._run(run, like)

    def _between(
        self, runs: Sequence[Run], places: Sequence[int]
    ) -> dict[tuple[int, int], Sequence[Run]]:
        """Return what was traced between blocks of two kinds, one behind the other."""
        found = dict[tuple[int, int], Sequence[Run]]()
        for one, other in pairwise(places):
            kinds = [self._traced(runs[at].group).kind for at in (one, other)]
            if other > one + 1:
                found.setdefault((kinds[0], kinds[1]), runs[one + 1 : other])
        return found

    def _ending(self, run: Run, own: Ends | None, *, ends: bool) -> Run:
        """Return a run with what the last of its kind lets go of, or without.

        ``own``: what that is, if it is anything. ``ends``: whether the block is the last.
        """
        if own is None or (run.group == own.group) == ends:
            return run
        work = self._profile.works[run.work]
        events = (*work.events, *own.events) if ends else own.without(work.events)
        self.works.append(replace(work, events=events))
        return Run(run.phase, run.group, run.role, len(self.works) - 1)

    def _run(self, run: Run, like: list[Group]) -> Run:
        work = self.works[run.work]
        if self._caused.isdisjoint(work.events):
            return run
        events = tuple(self._events(work.events, like))
        self.works.append(replace(work, events=events))
        return Run(run.phase, run.group, run.role, len(self.works) - 1)

    def _events(self, events: Sequence[int], like: list[Group]) -> Iterator[int]:
        """Yield a run's events, those that happen for traced blocks for what is like each."""
        kinds = self._profile.kinds
        for is_caused, together in groupby(events, key=self._caused.__contains__):
            if not is_caused:
                yield from together
                continue
            each: dict[Group, list[int]] = {}
            for event in together:
                each.setdefault(kinds[event].origin, []).append(event)
            first, last = next(iter(each)), next(reversed(each))
            falls = _number(first) > _number(last)
            for group in reversed(like) if falls else like:
                yield from each.get(group, ())

    def _likes(self, traced: tuple[Group, ...]) -> list[Group]:
        """Return the traced block that each block of the model is like, of those of a variant."""
        if traced not in self._like:
            told = list(map(self._traced, traced))
            real = [_Block(*each) for each in zip(self._groups, self._blocks.kinds, strict=True)]
            here = [_surroundings(told, place) for place in range(len(told))]
            self._like[traced] = [
                traced[_nearest(_surroundings(real, place), here)] for place in range(len(real))
            ]
        return self._like[traced]


_Surroundings = tuple[_Block, _Block, _Block]


def _number(group: Group) -> int:
    return int(group.partition(PLACE)[2])


def _surroundings(blocks: Sequence[_Block], place: int) -> _Surroundings:
    end = _Block("", END)
    before = blocks[place - 1] if place else end
    behind = blocks[place + 1] if place + 1 < len(blocks) else end
    return before, blocks[place], behind


def _nearest(block: _Surroundings, traced: Sequence[_Surroundings]) -> int:
    """Return which traced block stands as this one does; of several the first."""
    alike = [place for place, other in enumerate(traced) if other[1] == block[1]]
    return max(alike, key=lambda place: (_likeness(block, traced[place]), -place))


def _likeness(block: _Surroundings, other: _Surroundings) -> int:
    found = 0
    for mine, its in ((block[0], other[0]), (block[2], other[2])):
        found += _ENDS * ((mine.kind == END) == (its.kind == END))
        found += _SAME * (mine == its) + _STATUS * (mine.group == its.group)
    return found
