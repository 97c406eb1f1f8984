"""What one sequence at a time does not copy: the works of a profile as they are then.

Attention that is written out multiplies heads as one batch. Of several sequences they are copied
into that shape; of one they have it already. The program is traced with one sequence, and its
events are spelled by the kinds of the profile, as sizes do not say whether they are of a sequence.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial

import msgspec

from brimful.cost.profiles import EVALUATED, Body, Dimensions, Profile, Term, Work
from brimful.cost.programs import Program
from brimful.cost.trajectory import evaluate_terms
from brimful.pretend.recording import Recording
from brimful.simulate.fit import add_terms
from brimful.simulate.phases import judged
from brimful.simulate.runs import (
    EVALUATION,
    GROUP_SIZE,
    STEP,
    Blocks,
    EventFitter,
    Fit,
    Origins,
    Piece,
    aligned,
    by_phase,
    costs_of,
)
from brimful.simulate.small_models import SHAPES
from brimful.simulate.tables import Tables
from brimful.simulate.traced import Asked, Traced, traced_at

_SHAPES = tuple(sizes._replace(micro_batch=1) for sizes in SHAPES[:2])
"""Two tell the kinds of a profile apart."""
_COPIED_TWICE = 2
"""A copy reads and writes."""
Terms = tuple[Term, ...]


def with_one_sequence(profile: Profile, program: Program) -> Profile:
    """Return a profile that also knows what one sequence runs."""
    tables = Tables(
        {kind: place for place, kind in enumerate(profile.kinds)},
        {work: place for place, work in enumerate(profile.works)},
    )
    of_one: dict[int, int] = {}
    bodies: tuple[Body, ...] = ("plain", "checkpointed", "mixed")
    for body in (body for body in bodies if body in profile.variants):
        for old, new in _works(profile, program, body, tables):
            if of_one.setdefault(old, new) != new:
                raise ValueError(f"work {old} is two of one sequence")
    changed = {old: new for old, new in of_one.items() if old != new}
    return msgspec.structs.replace(
        profile, kinds=tuple(tables.kinds), works=tuple(tables.works), of_one=changed
    )


def _works(
    profile: Profile, program: Program, body: Body, tables: Tables
) -> Iterator[tuple[int, int]]:
    """Yield every work of a body with what it is of one sequence."""
    num_blocks = (1 + (body == "mixed")) * GROUP_SIZE
    num_checkpointed = 0 if body == "plain" else GROUP_SIZE
    is_judged = profile.key.endswith(EVALUATED)
    traced = traced_at(
        Asked(program, num_blocks, num_checkpointed, num_chunks=1),
        _SHAPES,
        num_steps=int(not is_judged),
        then=(partial(judged, num_batches=1),) * is_judged,
    )
    fitter = EventFitter(traced.recordings, tables, traced.marks)
    variant = profile.variants[body]
    for micro_batch, runs in enumerate((variant.first, variant.later)[: 1 + (not is_judged)]):
        every = aligned(
            traced.recordings, [EVALUATION if is_judged else STEP] * len(_SHAPES),
            micro_batch=micro_batch, blocks=Blocks(num_checkpointed),
        )  # fmt: skip
        origins = Origins(traced.recordings[0], [pieces[0] for pieces in every])
        for run, pieces in zip(runs, every, strict=True):
            old = profile.works[run.work]
            events = tuple(fitter.events(pieces, origins, _spelling(profile, old, traced, pieces)))
            yield run.work, tables.work(_without_copies(old, events, tables, traced, pieces))


def _spelling(profile: Profile, work: Work, traced: Traced, pieces: tuple[Piece, ...]) -> Fit:
    """Return what spells the events of one sequence as those of a work."""
    kinds = [profile.kinds[event] for event in work.events]
    kinds = [kind for kind in kinds if not kind.mark]
    mine = [_signed_sizes(kind.terms, traced.shapes) for kind in kinds]
    every = [changes(*each) for each in zip(traced.recordings, pieces, strict=True)]
    matcher = SequenceMatcher(None, mine, list(zip(*every, strict=True)), autojunk=False)
    known = {
        block.b + i: _unsigned(kinds[block.a + i].terms)
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }
    # Formulas without signs by what they give at every shape.
    own: dict[tuple[int, ...], list[Terms]] = {}
    for terms in dict.fromkeys(_unsigned(kind.terms) for kind in kinds):
        own.setdefault(_signed_sizes(terms, traced.shapes), []).append(terms)

    def fit(place: int, sizes: tuple[int, ...]) -> Terms:
        found = [known[place]] if place in known else own.get(sizes, [])
        if len(found) != 1:
            raise ValueError(f"{len(found)} formulas give the sizes {sizes} of one sequence")
        return found[0]

    return fit


def _signed_sizes(terms: Terms, shapes: Sequence[Dimensions]) -> tuple[int, ...]:
    return tuple(round(evaluate_terms(terms, dims)) for dims in shapes)


def changes(recording: Recording, piece: Piece) -> list[int]:
    """List by how much each event of a piece changes live bytes."""
    events = recording.events[piece.start : piece.stop].tolist()
    return [int(recording.num_bytes[e] if e >= 0 else -recording.num_bytes[~e]) for e in events]


def _unsigned(terms: Terms) -> Terms:
    return tuple(Term(term.factors, abs(term.coefficient)) for term in terms)


def _without_copies(
    old: Work, events: tuple[int, ...], tables: Tables, traced: Traced, pieces: tuple[Piece, ...]
) -> Work:
    """Return a work with other events, less what the copies among them move."""
    if events == old.events:
        return old
    kinds = list(tables.kinds)
    before, now = (
        Counter(kinds[event].terms for event in each if not kinds[event].mark)
        for each in (old.events, events)
    )
    copies = [terms for terms, times in (before - now).items() for _ in range(times)]
    moved = [
        tuple(Term(term.factors, -_COPIED_TWICE * term.coefficient) for term in terms)
        for terms in copies
        if all(term.coefficient > 0 for term in terms)
    ]
    return msgspec.structs.replace(
        old,
        events=events,
        num_ops=len(costs_of(by_phase(traced.recordings[0]), pieces[0])),
        moved_bytes=add_terms([old.moved_bytes, *moved]),
    )
