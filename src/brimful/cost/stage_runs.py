"""What one stage of a pipeline allocates in a forward and in a backward of one micro-batch.

A stage runs some of a model's blocks, so its events are those of a profile with the rest left out:
the embedding where it is not the first, norm, head and loss where it is not the last. What comes
instead is closed form: room for messages is made once (``stage_memory.py``), what a stage hands on
lives until its own backward, and of what it gets a gradient goes back.

Under FSDP2 a pipeline keeps what its backward has gathered until the last micro-batch, and so it
does with whole gradients.

Source: ``torch/distributed/pipelining/stage.py`` (``backward_maybe_with_nosync``) and
``schedules.py``; the simulation runs both.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain, takewhile
from typing import Literal, NamedTuple

from brimful.cost.additions import Additions, Way, is_block
from brimful.cost.identity import once_for_each
from brimful.cost.profiles import (
    Body,
    EventKind,
    Group,
    Profile,
    Role,
    Run,
    Term,
    Work,
    load_profile,
    variant_key,
    with_chunks,
)
from brimful.cost.sequences import Blocks, written_out
from brimful.cost.spread import (
    negated_terms,
    piece_kinds,
    pipelined_additions,
    replaced,
    signed_pieces,
    with_copies,
    with_events,
)
from brimful.rungs import AUTOCAST_CACHE, GRADIENTS, ITEM_NAMES, SAVED_ACTIVATIONS, TRANSIENTS

Phase = Literal["forward", "backward", "reduce"]


class Ends(NamedTuple):
    """Which ends of the model a stage has: the embedding, the loss."""

    is_first: bool
    is_last: bool


class Act(NamedTuple):
    """One micro-batch through one stage, as far as events hang on when it is done.

    Attributes:
        phase: Which way; or whole gradients become shards, once a step.
        is_gathered: Whether the blocks' parameters are there when it begins.
        is_first: Whether it is the stage's first of its phase in a step.
    """

    phase: Phase
    is_gathered: bool
    is_first: bool


REDUCES = Act("reduce", is_gathered=True, is_first=False)


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


class StageRuns(NamedTuple):
    """An act's events.

    Attributes:
        profile: Where works and kinds are.
        runs: In order.
    """

    profile: Profile
    runs: tuple[Run, ...]


_SAVED, _TRANSIENT, _CACHED, _GRADIENT = map(
    ITEM_NAMES.index, (SAVED_ACTIVATIONS, TRANSIENTS, AUTOCAST_CACHE, GRADIENTS)
)
_END = Run("backward", "", "other", 0)
"""Behind the blocks of a stage that has no embedding."""
_NUM_TOLD = 6
"""Tensors by which a forward that is run again is told."""
_NUM_MESSAGES = 2
"""Kinds behind those of a profile: a message that comes, and one that goes."""


@cache
def stage_runs(part: Part, act: Act) -> StageRuns:
    """Return what a stage runs in one act."""
    profile, num_parts = _profile(part), 1 + max(part.blocks.parts, default=0)
    kinds = _kinds(profile.kinds, part.message, num_parts)
    num = 2 * len(profile.kinds) + _NUM_MESSAGES
    works: list[Work] = []
    runs: list[Run] = []
    chosen = _chosen(profile, part, act)
    added = _added(part, act, tuple(run for run, _ in chosen))
    for (run, events), more in zip(chosen, added, strict=True):
        before, behind = (
            signed_pieces(num, signed, num_parts) for signed in (more.before, more.behind)
        )
        if every := (*before, *events, *behind):
            works.append(with_events(profile.works[run.work], every))
            runs.append(Run(run.phase, run.group, run.role, len(works) - 1, run.part))
    return StageRuns(replaced(profile, kinds, tuple(works), num_parts), tuple(runs))


def _profile(part: Part) -> Profile:
    """Return the profile of a stage; of blocks of several kinds that of its own."""
    profile = load_profile(part.key)
    return written_out(profile, part.blocks, part.num_again) if profile.sequence else profile


@once_for_each
def _kinds(own: tuple[EventKind, ...], message: Term, num_parts: int) -> tuple[EventKind, ...]:
    """Return a profile's kinds, the same going, a message, and pieces."""
    negated = [EventKind(negated_terms(kind.terms), kind.item, kind.origin) for kind in own]
    terms = (message,)
    messages = [EventKind(signed, _TRANSIENT, "") for signed in (terms, negated_terms(terms))]
    return (*own, *negated, *messages, *piece_kinds(num_parts))


def _chosen(profile: Profile, part: Part, act: Act) -> list[tuple[Run, tuple[int, ...]]]:
    """Return the runs of a phase that a stage has, each with its events."""
    variant = profile.variants[variant_key(part.body, num_chunks=part.num_chunks)]
    fresh = act.is_first or (part.way is not None and part.way.widens)
    runs = with_chunks(variant.first if fresh else variant.later, num_chunks=part.num_chunks)
    every = of_phase = [run for run in runs if run.phase == act.phase]
    if part.way is not None and part.is_single and not load_profile(part.key).sequence:
        stays = "first" if act.phase == "forward" else "last"
        of_phase = [run for run in of_phase if not is_block(run) or run.role == stays]
    blocks = [i for i, run in enumerate(of_phase) if is_block(run)]
    choose = _forward if act.phase == "forward" else _backward
    works = [profile.works[run.work].events for run in of_phase]
    if is_block(runs[-1]):  # what comes into the model's first block has no gradient
        place = blocks[0] if act.phase == "forward" else blocks[-1]
        works[place] = _first_events(profile, of_phase[place], every, part)
    chosen = list(choose(profile, of_phase, works, (blocks[0], blocks[-1]), part.ends))
    if is_block(runs[-1]) and act.phase == "forward" and not part.ends.is_first:
        chosen[-1] = (chosen[-1][0], _without_casts(profile, chosen[-1][1], runs))
    if act.phase == "backward" and act.is_first and not part.ends.is_last:
        chosen[0] = (chosen[0][0], _opened(profile, *chosen[0], runs))
    return chosen


def _opened(
    profile: Profile, run: Run, events: tuple[int, ...], runs: Sequence[Run]
) -> tuple[int, ...]:
    """Mark the first product of a backward, which is the loss's where a stage has it.

    A block that is computed again begins as in its forward, any other with a weight's gradient.
    """
    kinds = profile.kinds
    made = [place for place, event in enumerate(events) if _grows(kinds[event]) > 0]
    forward = [r for r in runs if r.phase == "forward" and r.group == run.group]
    before = _until_marked(profile, profile.works[forward[0].work].events)
    is_again = run.group == "checkpointed" and not profile.key.endswith(".selective")
    if is_again and before:
        again = _place_of(profile, events, profile.works[forward[0].work].events)
        place = made[again + before - 1]
    else:
        place = next(place for place in made if _is_weight(kinds[events[place]]))
    ends = takewhile(lambda each: not is_block(each), (r for r in runs if r.phase == run.phase))
    left_out = (event for each in ends for event in profile.works[each.work].events)
    marks = [event for event in left_out if kinds[event].mark]
    return (*events[: place + 1], *marks, *events[place + 1 :])


def _place_of(profile: Profile, events: Sequence[int], forward: Sequence[int]) -> int:
    """Count what a backward allocates before it runs a block's forward again.

    Where adapters are multiplied by a factor that is the gradient of their product.
    """
    made, again = (
        [profile.kinds[event].terms for event in some if _grows(profile.kinds[event]) > 0]
        for some in (events, forward)
    )
    num = min(_NUM_TOLD, len(again))
    places = (place for place in range(len(made)) if made[place : place + num] == again[:num])
    return next(places, 0)


def _first_events(profile: Profile, own: Run, runs: Sequence[Run], part: Part) -> tuple[int, ...]:
    """Return the events of a stage's first block, where that of the model is given no gradient.

    Of any other stage it does what a block between does, for its input has one: all but letting go
    of that, which lies in the room for messages. What all blocks read goes with the last of them.

    Args:
        profile: Where works and kinds are.
        own: The run of the model's first block.
        runs: All of the phase.
        part: Of the stage.
    """
    events = profile.works[own.work].events
    between = next(r for r in runs if (r.group, r.role) == (own.group, "middle"))
    others = profile.works[between.work].events
    beyond = _beyond(profile, events, others)
    if part.ends.is_first:
        foreign = {place for place in beyond if _is_foreign(profile.kinds[events[place]])}
        return tuple(e for place, e in enumerate(events) if place not in foreign)
    shared = [events[place] for place in beyond if _is_shared(profile.kinds[events[place]])]
    own_input = _without_input(profile, events, others, part.message)
    return (*_with_marks(profile, own_input, events), *shared)


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


def _without_casts(profile: Profile, events: Sequence[int], runs: Sequence[Run]) -> tuple[int, ...]:
    """Let go of no copies that only the model's first block leaves behind.

    Its backward does not need the weights that its input is multiplied by; autocast has them.
    """
    first = next(run for run in runs if is_block(run))
    alone = _casts_left(profile, runs, ("first", "last"), first.group)
    alone -= _casts_left(profile, runs, ("middle", "middle"), first.group)
    found = []
    for event in events:
        kind = profile.kinds[event]
        size = (_factors(kind), -_grows(kind))
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
            if kind.item == _CACHED and (_grows(kind) > 0) == (run.phase == "forward"):
                left[_factors(kind), abs(_grows(kind))] += 1 - 2 * place
    return left


def _is_shared(kind: EventKind) -> bool:
    """Whether an event lets go of what was made once for all blocks, by the length alone."""
    factors = _factors(kind)
    kept = _grows(kind) < 0 and kind.item == _SAVED
    return kept and bool(factors) and not {"B", "n"} & set(factors)


def _without_input(
    profile: Profile, own: Sequence[int], between: Sequence[int], message: Term
) -> tuple[int, ...]:
    """Leave out what a block between lets go of behind its work, and the first block does not."""
    sizes = {}
    for event, kind in enumerate(profile.kinds):
        if kind.item == _TRANSIENT and _factors(kind) == message.factors:
            sizes[event] = _grows(kind)
    kept, kept_between = (sum(sizes.get(event, 0.0) for event in some) for some in (own, between))
    gone = [
        place for place, event in enumerate(between) if sizes.get(event) == -message.coefficient
    ]
    left_out = gone[-1] if kept > kept_between else None
    return tuple(event for place, event in enumerate(between) if place != left_out)


def _with_marks(profile: Profile, events: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Mark the first product where the model's first block does."""
    marks = [event for event in own if profile.kinds[event].mark]
    before = _until_marked(profile, own)
    made = [place for place, e in enumerate(events) if _grows(profile.kinds[e]) > 0]
    at = made[before - 1] + 1 if marks and before else 0
    return (*events[:at], *marks, *events[at:])


def _until_marked(profile: Profile, events: Sequence[int]) -> int:
    """Count what is allocated before the first product; 0: none is marked."""
    kinds = profile.kinds
    for place, event in enumerate(events):
        if kinds[event].mark:
            return sum(_grows(kinds[e]) > 0 for e in events[:place])
    return 0


def _is_weight(kind: EventKind) -> bool:
    """Whether something has the shape of a matrix of parameters."""
    return all(len(t.factors) > 1 and not {"B", "n"} & set(t.factors) for t in kind.terms)


def _forward(
    profile: Profile,
    runs: list[Run],
    works: Sequence[tuple[int, ...]],
    blocks: tuple[int, int],
    ends: Ends,
) -> chain[tuple[Run, tuple[int, ...]]]:
    first, last = blocks
    before = [(run, _before(profile, run, ends)) for run in runs[:first]]
    every = list(zip(runs, works, strict=True))
    inside, behind = every[first : last + 1], every[last + 1 :]
    if not ends.is_last:
        behind = [(behind[-1][0], _leaving(profile, behind[-1][0]))]
    return chain(before, inside, behind)


def _before(profile: Profile, run: Run, ends: Ends) -> tuple[int, ...]:
    """Return what comes before the blocks: tokens lie in the step's batch, which is one piece.

    Positions hang on the length alone; all else is the embedding's.
    """
    kinds, events = profile.kinds, profile.works[run.work].events
    if not ends.is_first:
        return tuple(e for e in events if not {"B", "n"} & set(_factors(kinds[e])))
    tokens = [place for place, e in enumerate(events) if _is_tokens(kinds[e])][:2]
    return tuple(e for place, e in enumerate(events) if place not in tokens)


def _is_tokens(kind: EventKind) -> bool:
    return kind.item == _SAVED and kind.terms == (Term("BS", 8.0),)


def _factors(kind: EventKind) -> str:
    return "".join(term.factors for term in kind.terms)


def _leaving(profile: Profile, run: Run) -> tuple[int, ...]:
    """Return what leaving autocast lets go of, but for the head's copy."""
    kinds, events = profile.kinds, profile.works[run.work].events
    return tuple(
        e for e in events
        if kinds[e].item == _CACHED and _grows(kinds[e]) < 0 and "V" not in _factors(kinds[e])
    )  # fmt: skip


def _grows(kind: EventKind) -> float:
    return sum(term.coefficient for term in kind.terms)


def _backward(
    profile: Profile,
    runs: list[Run],
    works: Sequence[tuple[int, ...]],
    blocks: tuple[int, int],
    ends: Ends,
) -> chain[tuple[Run, tuple[int, ...]]]:
    """Return the same of a backward: other stages' ends are left out, messages come and go."""
    first, last = blocks
    come = 2 * len(profile.kinds)
    every = list(zip(runs, works, strict=True))
    before = every[:first] if ends.is_last else []
    inside, behind = every[first : last + 1], every[last + 1 :]
    if not ends.is_first:
        behind = [(_END, () if ends.is_last else (come,))]
    elif not ends.is_last and behind:
        events = [e for e in behind[-1][1] if not _is_foreign(profile.kinds[e])]
        behind = [*behind[:-1], (behind[-1][0], tuple(events))]
    return chain(before, inside, behind)


def _is_foreign(kind: EventKind) -> bool:
    """Whether an event frees what a stage that does not end with the loss never had."""
    return _grows(kind) < 0 and (kind.item == _SAVED or not _factors(kind))


def _added(part: Part, act: Act, runs: tuple[Run, ...]) -> list[Additions]:
    """List what sharding adds to each run."""
    if part.way is None:
        return [Additions((), ())] * len(runs)
    added = pipelined_additions(runs, part.way, is_gathered=act.is_gathered, is_first=act.is_first)
    if "cpu" not in part.key.split("."):
        return added
    return [Additions(with_copies(more.before), with_copies(more.behind)) for more in added]
