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
from itertools import chain
from typing import Literal, NamedTuple

from brimful.cost.additions import Additions, Way, is_block
from brimful.cost.profiles import (
    Body,
    EventKind,
    Profile,
    Run,
    Term,
    Work,
    load_profile,
    variant_key,
    with_chunks,
)
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
    """

    key: str
    body: Body
    num_chunks: int
    ends: Ends
    way: Way | None
    is_single: bool


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
_NUM_MESSAGES = 2
"""Kinds behind those of a profile: a message that comes, and one that goes."""


@cache
def stage_runs(part: Part, act: Act) -> StageRuns:
    """Return what a stage runs in one act."""
    profile = load_profile(part.key)
    kinds = _kinds(part.key)
    num = 2 * len(profile.kinds) + _NUM_MESSAGES
    works: list[Work] = []
    runs: list[Run] = []
    chosen = _chosen(profile, part, act)
    added = _added(part, act, tuple(run for run, _ in chosen))
    for (run, events), more in zip(chosen, added, strict=True):
        before, behind = (signed_pieces(num, signed) for signed in (more.before, more.behind))
        if every := (*before, *events, *behind):
            works.append(with_events(profile.works[run.work], every))
            runs.append(Run(run.phase, run.group, run.role, len(works) - 1))
    return StageRuns(replaced(profile, kinds, tuple(works)), tuple(runs))


def message_factors(key: str) -> str:
    """Return the dimensions that a message is the product of; beside tp each has its tokens."""
    return "nH" if "-tp" in key.split(".", maxsplit=1)[0] else "BSH"


def message_element(key: str) -> int:
    """Return the bytes of a number of the residual stream: fp32 where autocast leaves it so."""
    return 2 if ".bf16." in key else 4


@cache
def _kinds(key: str) -> tuple[EventKind, ...]:
    """Return a profile's kinds, the same going, a message, and pieces."""
    own = load_profile(key).kinds
    negated = [EventKind(negated_terms(kind.terms), kind.item, kind.origin) for kind in own]
    message = (Term(message_factors(key), float(message_element(key))),)
    messages = [EventKind(terms, _TRANSIENT, "") for terms in (message, negated_terms(message))]
    return (*own, *negated, *messages, *piece_kinds())


def _chosen(profile: Profile, part: Part, act: Act) -> list[tuple[Run, tuple[int, ...]]]:
    """Return the runs of a phase that a stage has, each with its events."""
    variant = profile.variants[variant_key(part.body, num_chunks=part.num_chunks)]
    fresh = act.is_first or (part.way is not None and part.way.widens)
    runs = with_chunks(variant.first if fresh else variant.later, num_chunks=part.num_chunks)
    of_phase = [run for run in runs if run.phase == act.phase]
    if part.way is not None and part.is_single:
        stays = "first" if act.phase == "forward" else "last"
        of_phase = [run for run in of_phase if not is_block(run) or run.role == stays]
    blocks = [i for i, run in enumerate(of_phase) if is_block(run)]
    choose = _forward if act.phase == "forward" else _backward
    chosen = list(choose(profile, of_phase, (blocks[0], blocks[-1]), part.ends))
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
        place = made[before - 1]
    else:
        place = next(place for place in made if _is_weight(kinds[events[place]]))
    marks = [i for i, kind in enumerate(kinds) if kind.mark.startswith("cuBLAS")]
    return (*events[: place + 1], *marks, *events[place + 1 :])


def _until_marked(profile: Profile, events: tuple[int, ...]) -> int:
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
    profile: Profile, runs: list[Run], blocks: tuple[int, int], ends: Ends
) -> chain[tuple[Run, tuple[int, ...]]]:
    first, last = blocks
    before = [(run, _before(profile, run, ends)) for run in runs[:first]]
    inside = [(run, profile.works[run.work].events) for run in runs[first : last + 1]]
    behind = [(run, profile.works[run.work].events) for run in runs[last + 1 :]]
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
    profile: Profile, runs: list[Run], blocks: tuple[int, int], ends: Ends
) -> chain[tuple[Run, tuple[int, ...]]]:
    """Return the same of a backward: other stages' ends are left out, messages come and go."""
    first, last = blocks
    come = 2 * len(profile.kinds)
    before = [(run, profile.works[run.work].events) for run in runs[:first]] if ends.is_last else []
    inside = [(run, profile.works[run.work].events) for run in runs[first : last + 1]]
    behind = [(run, profile.works[run.work].events) for run in runs[last + 1 :]]
    if not ends.is_first:
        behind = [(runs[-1], () if ends.is_last else (come,))]
    elif not ends.is_last:
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
