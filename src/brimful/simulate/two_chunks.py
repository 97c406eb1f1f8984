"""Telling the halves of a loss in two chunks from the whole.

Where a trace cuts the loss in two, a chunk has half the tokens, and a size does not say whether it
is twice a chunk's or once the whole's. The same loss in five chunks does, event by event. It
matters where the number of tokens is odd, as the last chunk is smaller then.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import msgspec

from brimful.cost.profiles import Alike, EventKind, Profile, Run, Term, Variant, alike
from brimful.simulate.tables import Tables

_TWO, _FIVE = "+2chunks", "+chunks"
_WHOLE, _CHUNK = "BS", "C"
Terms = tuple[Term, ...]
_Chosen = dict[tuple[int, int], Terms]
"""By run and place in it, what an allocation's size is."""


def told_apart(profile: Profile) -> Profile:
    """Return a profile whose losses in two chunks are spelled in chunks."""
    tables, variants = Tables(), dict[str, Variant]()
    for name, variant in profile.variants.items():
        runs = _runs(variant)
        chosen = _Chosen()
        if name.endswith(_TWO):
            like = profile.variants[name.removesuffix(_TWO) + _FIVE]
            chosen = dict(_chosen(profile, runs, _runs(like)))
        placed = list(_rewritten(profile, runs, chosen, tables))
        num = len(variant.first)
        later = placed[:num] if variant.later == variant.first else placed[num:]
        variants[name] = Variant(first=tuple(placed[:num]), later=tuple(later))
    return msgspec.structs.replace(
        profile, kinds=tuple(tables.kinds), works=tuple(tables.works), variants=variants
    )


def _runs(variant: Variant) -> tuple[Run, ...]:
    """Return what was traced, in order; without gradients one micro-batch was."""
    return variant.first if variant.later == variant.first else (*variant.first, *variant.later)


def _chosen(
    profile: Profile, runs: Sequence[Run], like: Sequence[Run]
) -> Iterator[tuple[tuple[int, int], Terms]]:
    """Yield the sizes of allocations in chunks, as they are in the same chunk of five."""
    # Which run of five chunks is as one of two: the n-th of a phase and a role.
    places: defaultdict[object, list[int]] = defaultdict(list)
    for index, run in enumerate(like):
        places[run.phase, run.group, run.role].append(index)
    partners = {
        index: places[run.phase, run.group, run.role].pop(0)
        for index, run in enumerate(runs)
        if run.group == "chunk"
    }
    for index, run in enumerate(runs):
        if run.group != "chunk":
            continue
        mine, theirs = _kinds(profile, run), _kinds(profile, like[partners[index]])
        for place, other in _matched(mine, theirs):
            if mine[place] != theirs[other]:
                yield (index, place), theirs[other].terms


def _kinds(profile: Profile, run: Run) -> list[EventKind]:
    return [profile.kinds[event] for event in profile.works[run.work].events]


def _matched(mine: list[EventKind], theirs: list[EventKind]) -> Iterator[tuple[int, int]]:
    matcher = SequenceMatcher(
        None, [_in_halves(kind) for kind in mine], [_in_halves(kind) for kind in theirs], False
    )
    for block in matcher.get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))


def _in_halves(kind: EventKind) -> object:
    """Return what two events share that are the same where a chunk is half of the tokens."""
    sizes: defaultdict[str, float] = defaultdict(float)
    for term in kind.terms:
        if term.factors.startswith(_CHUNK):
            sizes[_WHOLE + term.factors.removeprefix(_CHUNK)] += term.coefficient / 2
        else:
            sizes[term.factors] += term.coefficient
    return frozenset(sizes.items()), kind.item, kind.mark


def _rewritten(
    profile: Profile, runs: Sequence[Run], chosen: _Chosen, tables: Tables
) -> Iterator[Run]:
    """Yield runs whose allocations have the chosen sizes, and whose frees have their tensor's."""
    there: defaultdict[Alike, list[EventKind]] = defaultdict(list)
    now: defaultdict[Alike, list[EventKind]] = defaultdict(list)
    for index, run in enumerate(runs):
        events = []
        for place, kind in enumerate(_kinds(profile, run)):
            terms = chosen.get((index, place), kind.terms)
            made = msgspec.structs.replace(kind, terms=terms)
            if not kind.mark and _goes(kind):
                made = _gone(kind, there[alike(kind)], now)
            elif not kind.mark:
                there[alike(kind)].append(made)
                now[alike(made)].append(made)
            events.append(tables.kind(made))
        work = msgspec.structs.replace(profile.works[run.work], events=tuple(events))
        yield Run(run.phase, run.group, run.role, tables.work(work))


def _goes(kind: EventKind) -> bool:
    return any(term.coefficient < 0 for term in kind.terms)


def _gone(
    kind: EventKind, there: list[EventKind], now: Mapping[Alike, list[EventKind]]
) -> EventKind:
    """Return the end of a tensor by what it is now, and by how many of those came after it."""
    if kind.newer >= len(there):
        return kind
    tensor = there.pop(len(there) - 1 - kind.newer)
    same = now[alike(tensor)]
    place = next(i for i, each in enumerate(same) if each is tensor)
    del same[place]
    terms = tuple(Term(term.factors, -term.coefficient) for term in tensor.terms)
    return msgspec.structs.replace(kind, terms=terms, newer=len(same) - place)
