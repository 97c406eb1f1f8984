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

from collections.abc import Sequence
from functools import cache
from itertools import chain, takewhile
from typing import Literal, NamedTuple

from brimful.cost.additions import Additions, is_block
from brimful.cost.fsdp_units import pipelined_additions
from brimful.cost.profiles import (
    EventKind,
    Profile,
    Role,
    Run,
    Term,
    Work,
    load_profile,
    variant_key,
    with_chunks,
)
from brimful.cost.programs import keeps_products
from brimful.cost.sequences import written_out
from brimful.cost.spread import (
    negated_terms,
    piece_kinds,
    replaced,
    signed_pieces,
    with_copies,
    with_events,
)
from brimful.cost.stage_first import (
    Ends,
    Part,
    factors_of,
    first_events,
    grows,
    is_foreign,
    until_marked,
    without_casts,
)
from brimful.files.remembered import once_for_each
from brimful.values.results import (
    AUTOCAST_CACHE,
    GRADIENTS,
    ITEM_NAMES,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
)

Phase = Literal["forward", "backward", "reduce"]


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
_WIDEST = 8
"""Vectors of a block are at most so much wider than the residual stream."""
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
    runs = with_chunks(variant.first if fresh else variant.later, part.num_chunks)
    every = of_phase = [run for run in runs if run.phase == act.phase]
    if part.way is not None and part.is_single and not load_profile(part.key).sequence:
        of_phase = [run for run in of_phase if not is_block(run) or run.role == _stays(part, act)]
    blocks = [i for i, run in enumerate(of_phase) if is_block(run)]
    choose = _forward if act.phase == "forward" else _backward
    works = [profile.works[run.work].events for run in of_phase]
    if act.phase == "forward":  # its first block opens libraries, whichever of a profile it is
        opens = next(run for run in every if is_block(run))
        works[blocks[0]] = _opening(profile, works[blocks[0]], profile.works[opens.work].events)
    is_alone = is_block(runs[-1])  # what comes into the model's first block has no gradient
    if is_alone or (load_profile(part.key).sequence and not part.ends.is_first):
        place = blocks[0] if act.phase == "forward" else blocks[-1]
        works[place] = first_events(profile, of_phase[place], every, part, fresh=fresh)
    chosen = list(choose(profile, of_phase, works, (blocks[0], blocks[-1]), part.ends))
    if is_alone and act.phase == "forward" and not part.ends.is_first:
        chosen[-1] = (chosen[-1][0], without_casts(profile, chosen[-1][1], runs))
    if act.phase == "backward" and act.is_first and not part.ends.is_last:
        chosen[0] = (chosen[0][0], _opened(profile, *chosen[0], runs, part))
    return chosen


def _stays(part: Part, act: Act) -> Role:
    """Say as which of a profile's blocks the only one of a stage runs.

    What the last one of a model makes goes with the norm behind it, where it is computed again;
    others' is kept until their own backward.
    """
    ends = part.ends.is_last and part.body != "plain"
    return "first" if act.phase == "forward" and not ends else "last"


def _opening(profile: Profile, events: tuple[int, ...], first: Sequence[int]) -> tuple[int, ...]:
    """Mark the first product of a forward, as it is marked in the first block of all.

    ``events``: of the first block of a stage. ``first``: of the first block of a model.
    """
    kinds, marks = profile.kinds, [event for event in first if profile.kinds[event].mark]
    if any(kinds[event].mark for event in events) or not marks:
        return events
    made = [place for place, event in enumerate(events) if grows(kinds[event]) > 0]
    place = made[until_marked(profile, first) - 1] + 1
    return (*events[:place], *marks, *events[place:])


def _opened(
    profile: Profile, run: Run, events: tuple[int, ...], runs: Sequence[Run], part: Part
) -> tuple[int, ...]:
    """Mark the first product of a backward, which is the loss's where a stage has it.

    A block that is computed again begins as in its forward, any other with a weight's gradient.
    """
    kinds = profile.kinds
    made = [place for place, event in enumerate(events) if grows(kinds[event]) > 0]
    forward = [r for r in runs if r.phase == "forward" and r.group == run.group]
    before = until_marked(profile, profile.works[forward[0].work].events)
    is_again = run.group == "checkpointed" and not keeps_products(profile.key)
    if is_again and before:
        again = _place_of(profile, events, profile.works[forward[0].work].events)
        place = made[again + before - 1]
    else:
        weights = (place for place in made if _is_weight(kinds[events[place]], part.message))
        place = next(weights, made[0])
    ends = takewhile(lambda each: not is_block(each), (r for r in runs if r.phase == run.phase))
    left_out = (event for each in ends for event in profile.works[each.work].events)
    marks = [event for event in left_out if kinds[event].mark]
    return (*events[: place + 1], *marks, *events[place + 1 :])


def _place_of(profile: Profile, events: Sequence[int], forward: Sequence[int]) -> int:
    """Count what a backward allocates before it runs a block's forward again.

    Where adapters are multiplied by a factor that is the gradient of their product.
    """
    made, again = (
        [profile.kinds[event].terms for event in some if grows(profile.kinds[event]) > 0]
        for some in (events, forward)
    )
    num = min(_NUM_TOLD, len(again))
    places = (place for place in range(len(made)) if made[place : place + num] == again[:num])
    return next(places, 0)


def _is_weight(kind: EventKind, message: Term) -> bool:
    """Whether something has the shape of a matrix of parameters.

    At a model's own widths sizes are numbers: larger than any vector is.
    """
    if not factors_of(kind):
        return grows(kind) > _WIDEST * message.coefficient
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
        return tuple(e for e in events if not {"B", "n"} & set(factors_of(kinds[e])))
    tokens = [place for place, e in enumerate(events) if _is_tokens(kinds[e])][:2]
    return tuple(e for place, e in enumerate(events) if place not in tokens)


def _is_tokens(kind: EventKind) -> bool:
    return kind.item == _SAVED and kind.terms == (Term("BS", 8.0),)


def _leaving(profile: Profile, run: Run) -> tuple[int, ...]:
    """Return what leaving autocast lets go of, but for the head's copy."""
    kinds, events = profile.kinds, profile.works[run.work].events
    return tuple(
        e for e in events
        if kinds[e].item == _CACHED and grows(kinds[e]) < 0 and "V" not in factors_of(kinds[e])
    )  # fmt: skip


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
        events = [e for e in behind[-1][1] if not is_foreign(profile.kinds[e])]
        behind = [*behind[:-1], (behind[-1][0], tuple(events))]
    return chain(before, inside, behind)


def _added(part: Part, act: Act, runs: tuple[Run, ...]) -> list[Additions]:
    """List what sharding adds to each run."""
    if part.way is None:
        return [Additions((), ())] * len(runs)
    added = pipelined_additions(
        runs, part.way, is_gathered=act.is_gathered, is_first=act.is_first, has_rest=any(part.ends)
    )
    if "cpu" not in part.key.split("."):
        return added
    return [Additions(with_copies(more.before), with_copies(more.behind)) for more in added]
