"""What blocks of a kind share, and which of them lets go of it.

A mask that is made before the first block is there until the last block that looks at it is done:
backward the first of its kind, forward the last. Which block that is a trace of few blocks shows of
those few; in a model it is the same one of its kind, and no other that stands as that one does.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from brimful.cost.profiles import PLACE, Alike, Group, Profile, Run, alike, is_place
from brimful.files.remembered import once_for_each


class Ends(NamedTuple):
    """What one traced block lets go of for all of its kind.

    Attributes:
        group: The group of that block.
        places: Of these events in its run.
        events: Their numbers, in order.
    """

    group: Group
    places: tuple[int, ...]
    events: tuple[int, ...]

    def without(self, events: Sequence[int]) -> tuple[int, ...]:
        """Return the events of the block's run but for these."""
        return tuple(event for at, event in enumerate(events) if at not in self.places)


class _Freed(NamedTuple):
    """What a block lets go of that was not made in it.

    Attributes:
        at: At which of its run's events.
        key: What it is.
        is_given: Whether it was made in no block, as for all of them.
    """

    at: int
    key: Alike
    is_given: bool


def kind_of(group: Group, sequence: Sequence[int]) -> int:
    """Return the kind of the one traced block that is in a group."""
    return sequence[int(group.partition(PLACE)[2]) % len(sequence)]


@once_for_each
def ends_of(profile: Profile, runs: tuple[Run, ...]) -> dict[str, dict[int, Ends]]:
    """Return what the last block of each kind lets go of, by phase.

    ``profile``: of blocks of several kinds. ``runs``: of a micro-batch.
    """
    groups = dict.fromkeys(run.group for run in runs if is_place(run.group))
    kinds = {group: kind_of(group, profile.sequence) for group in groups}
    found: dict[str, dict[int, Ends]] = defaultdict(dict)
    freed = _freed(profile, runs, kinds)
    for phase in dict.fromkeys(run.phase for run in runs):
        blocks = [run for run in runs if run.phase == phase and run.group in kinds]
        last_of = {kinds[run.group]: run for run in blocks}
        counts = {
            run.group: Counter(each.key for each in freed[phase, run.group]) for run in blocks
        }
        for kind, run in last_of.items():
            others = [counts[group] for group in _compared(run.group, list(counts), kinds)]
            places = _beyond(freed[phase, run.group], others)
            if places:
                work = profile.works[run.work].events
                found[phase][kind] = Ends(run.group, places, tuple(work[at] for at in places))
    return found


def _compared(group: Group, every: Sequence[Group], kinds: Mapping[Group, int]) -> list[Group]:
    """Return the other blocks that stand nearest: of its kind, and checkpointed or not likewise."""
    others = [other for other in every if other != group]
    of_kind = [other for other in others if kinds[other] == kinds[group]]
    status = group.partition(PLACE)[0]
    likewise = [other for other in of_kind if other.partition(PLACE)[0] == status]
    return likewise or of_kind or others


def _freed(
    profile: Profile, runs: Iterable[Run], kinds: Mapping[Group, int]
) -> dict[tuple[str, Group], list[_Freed]]:
    """Return what each block lets go of that was made outside of it: in no block, or in others."""
    there: defaultdict[Alike, list[Group]] = defaultdict(list)
    found: defaultdict[tuple[str, Group], list[_Freed]] = defaultdict(list)
    for run in runs:
        for at, event in enumerate(profile.works[run.work].events):
            kind = profile.kinds[event]
            if kind.mark or not kind.terms:
                continue
            key = alike(kind)
            if kind.terms[0].coefficient > 0:
                there[key].append(run.group)
            elif len(there[key]) > kind.newer:
                born = there[key].pop(-1 - kind.newer)
                if run.group in kinds and born != run.group and not kind.origin:
                    found[run.phase, run.group].append(_Freed(at, key, born not in kinds))
    return found


def _beyond(freed: Sequence[_Freed], others: Sequence[Counter[Alike]]) -> tuple[int, ...]:
    """Return at which events a block lets go of more that was given than some others do.

    What each of them takes over from the one before it goes as often in all, and may be given to
    the first.
    """
    left = {each.key: min((count[each.key] for count in others), default=0) for each in freed}
    places = list[int]()
    for each in sorted(freed, key=lambda each: each.is_given):
        if left[each.key]:
            left[each.key] -= 1
        elif each.is_given:
            places.append(each.at)
    return tuple(places)
