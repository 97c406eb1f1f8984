"""What the first block of a pipeline's stage does: nobody's input, or that of another stage.

Where adapters train, the model's first block is given no gradient of its input, and does otherwise
than all others; in a stack of several kinds of blocks any of them may come first in a stage.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from brimful.cost.additions import Way, is_block
from brimful.cost.profiles import (
    Body,
    EventKind,
    Group,
    Profile,
    Role,
    Run,
    Term,
    is_place,
    load_profile,
    variant_key,
)
from brimful.cost.sequences import Blocks, written_out
from brimful.values.results import AUTOCAST_CACHE, ITEM_NAMES, SAVED_ACTIVATIONS, TRANSIENTS

_SAVED, _TRANSIENT, _CACHED = map(ITEM_NAMES.index, (SAVED_ACTIVATIONS, TRANSIENTS, AUTOCAST_CACHE))


class Ends(NamedTuple):
    """Which ends of the model a stage has: the embedding, the loss."""

    is_first: bool
    is_last: bool


class Part(NamedTuple):
    """What of a profile a stage runs.

    Attributes:
        key: Of the profile.
        body: Which of the stage's blocks are checkpointed, in kind.
        num_chunks: Pieces of the loss; 1 where it has none.
        ends: Of the model.
        way: How devices share the work; None where parameters and gradients stay whole.
        is_single: Whether the stage has one block, which nothing is gathered ahead of.
        message: The size of what one stage hands the next of one micro-batch.
        blocks: What its blocks are, where there are several kinds of them.
        num_again: How many of them are checkpointed.
    """

    key: str
    body: Body
    num_chunks: int
    ends: Ends
    way: Way | None
    is_single: bool
    message: Term
    blocks: Blocks
    num_again: int


def first_events(
    profile: Profile, own: Run, runs: Sequence[Run], part: Part, *, fresh: bool
) -> tuple[int, ...]:
    """Return the events of a stage's first block.

    Of any stage but the first it does what a block between does, for its input has a gradient: all
    but letting go of that, which lies in the room for messages. What all blocks read goes with the
    last of them.

    ``own``: the run of the stage's first block. ``fresh``: whether it makes gradients, and adds to
    none.
    """
    first, others = _first_and_between(profile, own, runs, part, fresh=fresh)
    beyond = _beyond(profile, first, others)
    if part.ends.is_first:
        foreign = {place for place in beyond if is_foreign(profile.kinds[first[place]])}
        return tuple(e for place, e in enumerate(first) if place not in foreign)
    shared = [first[place] for place in beyond if _is_shared(profile.kinds[first[place]])]
    own_input = _without_input(profile, first, others, part.message)
    return (*_with_marks(profile, own_input, first), *shared)


def _first_and_between(
    profile: Profile, own: Run, runs: Sequence[Run], part: Part, *, fresh: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the events of the model's first block, and what this stage's does behind another."""
    raw = load_profile(part.key)
    if not raw.sequence:
        between = next(r for r in runs if (r.group, r.role) == (own.group, "middle"))
        return profile.works[own.work].events, profile.works[between.work].events
    place = 0 if own.phase == "forward" else -1
    again = part.num_again + (part.num_again > 0)
    longer = Blocks(*(each[:1] + each for each in part.blocks))
    several = written_out(raw, longer, again)
    variants = (
        each.variants[variant_key(part.body, num_chunks=part.num_chunks)] for each in (raw, several)
    )
    of_model, behind = (
        [
            each.works[run.work].events
            for run in (variant.first if fresh else variant.later)
            if run.phase == own.phase and (is_block(run) or is_place(run.group))
        ]
        for each, variant in zip((raw, several), variants, strict=True)
    )
    return of_model[place], behind[1 if place == 0 else -2]


def _beyond(profile: Profile, events: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return the places of events that are more of a size and class than there are elsewhere."""
    kinds = profile.kinds
    left = Counter((kinds[event].terms, kinds[event].item) for event in others)
    found = []
    for place, event in enumerate(events):
        what = kinds[event].terms, kinds[event].item
        if left[what]:
            left[what] -= 1
        else:
            found.append(place)
    return found


def without_casts(profile: Profile, events: Sequence[int], runs: Sequence[Run]) -> tuple[int, ...]:
    """Let go of no copies that only the model's first block leaves behind.

    Its backward does not need the weights that its input is multiplied by; autocast has them.
    """
    first = next(run for run in runs if is_block(run))
    alone = _casts_left(profile, runs, ("first", "last"), first.group)
    alone -= _casts_left(profile, runs, ("middle", "middle"), first.group)
    found = []
    for event in events:
        kind = profile.kinds[event]
        size = (factors_of(kind), -grows(kind))
        if kind.item == _CACHED and not kind.origin and alone[size] > 0:
            alone[size] -= 1
        else:
            found.append(event)
    return tuple(found)


def _casts_left(
    profile: Profile, runs: Sequence[Run], roles: tuple[Role, Role], group: Group
) -> Counter[tuple[str, float]]:
    """Count the copies that a block's forward makes and its backward does not let go of."""
    left = Counter[tuple[str, float]]()
    for run in runs:
        place = ("forward", "backward").index(run.phase)
        if (run.group, run.role) != (group, roles[place]):
            continue
        for event in profile.works[run.work].events:
            kind = profile.kinds[event]
            if kind.item == _CACHED and (grows(kind) > 0) == (run.phase == "forward"):
                left[factors_of(kind), abs(grows(kind))] += 1 - 2 * place
    return left


def _is_shared(kind: EventKind) -> bool:
    """Whether an event lets go of what was made once for all blocks, by the length alone."""
    of_what = factors_of(kind)
    kept = grows(kind) < 0 and kind.item == _SAVED
    return kept and bool(of_what) and not {"B", "n"} & set(of_what)


def _without_input(
    profile: Profile, own: Sequence[int], between: Sequence[int], message: Term
) -> tuple[int, ...]:
    """Leave out what a block between lets go of behind its work, and the first block does not."""
    sizes = {}
    for event, kind in enumerate(profile.kinds):
        if kind.item == _TRANSIENT and factors_of(kind) == message.factors:
            sizes[event] = grows(kind)
    kept, kept_between = (sum(sizes.get(event, 0.0) for event in some) for some in (own, between))
    gone = [
        place for place, event in enumerate(between) if sizes.get(event) == -message.coefficient
    ]
    left_out = gone[-1] if kept > kept_between else None
    return tuple(event for place, event in enumerate(between) if place != left_out)


def _with_marks(profile: Profile, events: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Mark the first product where the model's first block does."""
    marks = [event for event in own if profile.kinds[event].mark]
    before = until_marked(profile, own)
    made = [place for place, e in enumerate(events) if grows(profile.kinds[e]) > 0]
    at = made[before - 1] + 1 if marks and before else 0
    return (*events[:at], *marks, *events[at:])


def until_marked(profile: Profile, events: Sequence[int]) -> int:
    """Count what is allocated before the first product; 0: none is marked."""
    kinds = profile.kinds
    for place, event in enumerate(events):
        if kinds[event].mark:
            return sum(grows(kinds[e]) > 0 for e in events[:place])
    return 0


def is_foreign(kind: EventKind) -> bool:
    """Whether an event frees what a stage that does not end with the loss never had."""
    return grows(kind) < 0 and (kind.item == _SAVED or not factors_of(kind))


def grows(kind: EventKind) -> float:
    """Return the sum of a kind's coefficients: above 0, it comes."""
    return sum(term.coefficient for term in kind.terms)


def factors_of(kind: EventKind) -> str:
    """Return all the dimensions that a kind's size hangs on."""
    return "".join(term.factors for term in kind.terms)
