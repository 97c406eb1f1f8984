"""A frozen base of blocks on the host: what bringing it makes of the runs of adapters' profiles.

Copies are as large as what is held: packed weights in 4 bits, all else whole. Which block's come
and go with which run is said by ``brought.py``. In the backward of a plain block they come with the
first operation that reads one; of a block that is computed again each matrix goes with the
operation that read it last, which is what makes the gradient of its layer's input.

Source: ``build/offload/parameters.py``; ``_Product`` of ``build/quantize/nf4.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from brimful.cost.additions import is_block
from brimful.cost.base_copies import BaseCopy, base_copies
from brimful.cost.brought import OLDEST, Brought, brought, sign
from brimful.cost.profiles import Dimensions, EventKind, Profile, Run, Term, Variant
from brimful.cost.spread import negated_terms, with_events
from brimful.cost.trained import loaded_element
from brimful.cost.trajectory import evaluate_terms
from brimful.files.remembered import once_for_each
from brimful.values.job import Job
from brimful.values.results import GRADIENTS, ITEM_NAMES, PARAMETERS

_PARAMETER, _GRADIENT = ITEM_NAMES.index(PARAMETERS), ITEM_NAMES.index(GRADIENTS)
_TOKENS = frozenset("BSCn")
"""Dimensions of which what a micro-batch makes has one, and a weight none."""
_OF_INPUT = 2
"""Gradients of an input that come behind those of adapters: by way of them, and of the base."""


def with_base_away(
    job: Job, profile: Profile, variant: Variant, dims: Dimensions
) -> tuple[Profile, Variant]:
    """Let the base come and go with the runs of a micro-batch.

    ``profile``: of it, where all is on the device. Returns the profile with copies, and the runs
    that refer to it.
    """
    layers = _Layers(loaded_element(job), base_copies(job))
    return _with_copies(profile, variant.first, variant.later, layers, dims)


class _Layers(NamedTuple):
    """What blocks have of a base.

    Attributes:
        element: Bytes of a number that is computed with.
        kinds: Of every kind of block.
    """

    element: int
    kinds: tuple[tuple[BaseCopy, ...], ...]


@once_for_each
def _with_copies(
    profile: Profile,
    first: tuple[Run, ...],
    later: tuple[Run, ...],
    layers: _Layers,
    dims: Dimensions,
) -> tuple[Profile, Variant]:
    every = [copy.num_bytes for copies in layers.kinds for copy in copies]
    sizes = list(dict.fromkeys(every))
    base, num = len(profile.kinds), len(sizes)
    come = [EventKind((Term("", float(size)),), _PARAMETER, "") for size in sizes]
    gone = [EventKind(negated_terms(kind.terms), _PARAMETER, "", OLDEST) for kind in come]
    made = replace(profile, kinds=(*profile.kinds, *come, *gone))
    numbers = {size: base + place for place, size in enumerate(sizes)}
    works = list(profile.works)
    known: dict[tuple[Brought, _Like], int] = {}

    def placed(runs: Sequence[Run]) -> Iterator[Run]:
        more = brought(runs, _of_groups(runs, layers, numbers))
        for run, like, added in zip(runs, first, more, strict=True):
            key = added, _like(run, like, layers)
            if key not in known:
                own = profile.works[run.work]
                reads = _reads(profile, key[1], dims, layers.element)
                known[key] = len(works)
                works.append(with_events(own, tuple(_events(own.events, added, reads, num))))
            yield replace(run, work=known[key])

    both = Variant(first=tuple(placed(first)), later=tuple(placed(later)))
    return replace(made, works=tuple(works)), both


def _of_groups(
    runs: Sequence[Run], layers: _Layers, numbers: Mapping[int, int]
) -> dict[str, tuple[int, ...]]:
    """Return the events by which the copies of each group's blocks come."""
    return {
        run.group: tuple(numbers[copy.num_bytes] for copy in _copies(run, layers))
        for run in runs
        if is_block(run)
    }


def _copies(run: Run, layers: _Layers) -> tuple[BaseCopy, ...]:
    return layers.kinds[min(run.part, len(layers.kinds) - 1)]


class _Reads(NamedTuple):
    """Where a run reads its copies.

    Attributes:
        first: Before which of its events the first is read.
        last: Of copies that go one by one: behind which event, by the number of the copy.
    """

    first: int = 0
    last: tuple[int, ...] = ()


def _events(events: Sequence[int], added: Brought, reads: _Reads, num: int) -> Iterator[int]:
    """Yield a run's events with those of copies."""
    alone = reads.last if added.one_by_one else ()
    more = {reads.first: [*(num + each for each in added.gone_first), *added.come]}
    for number, behind in reversed(list(enumerate(alone))):
        more.setdefault(behind, []).append(num + added.gradients[number])
    start = 0
    for place in sorted(more):
        yield from events[start:place]
        yield from more[place]
        start = place
    yield from events[start:]
    yield from (num + each for each in added.gone_last)


class _Like(NamedTuple):
    """What decides where a run reads its copies: of many blocks all runs are alike.

    Attributes:
        work: What it does.
        anew: What it does in a micro-batch that makes gradients anew, by which adapters are told.
        copies: That it reads; None: none, or all before it begins.
        is_checkpointed: Whether it is computed again.
    """

    work: int
    anew: int
    copies: tuple[BaseCopy, ...] | None
    is_checkpointed: bool


def _like(run: Run, anew: Run, layers: _Layers) -> _Like:
    reads_before = run.phase == "forward" or not is_block(run)
    copies = None if reads_before else _copies(run, layers)
    return _Like(run.work, anew.work, copies, run.group.startswith("checkpointed"))


def _reads(profile: Profile, run: _Like, dims: Dimensions, element: int) -> _Reads:
    """Find where a run reads its copies.

    ``element``: bytes of a number that is computed with.
    """
    copies = run.copies
    if copies is None:
        return _Reads()
    own = profile.works[run.work].events
    # Say behind which event the weight made of each packed one goes for the last time.
    places = dict[int, int]()
    for size in {copy.wide for copy in copies if copy.wide}:
        alike = [number for number, copy in enumerate(copies) if copy.wide == size]
        gone = [
            place + 1
            for place, event in enumerate(own)
            if sign(profile.kinds[event]) < 0 and _weighs(profile.kinds[event], size, dims)
        ]
        places |= dict(zip(alike[::-1], gone[-len(alike) :], strict=False))
    if not places:
        theirs = profile.works[run.anew].events
        behind = _inputs_made(profile, theirs, copies, element, dims)
        places = {copy: _same_place(profile, theirs, own, at) for copy, at in behind.items()}
    end = len(own)
    last, latest = list[int](), end
    for number in range(len(copies)):  # backward reads the last first
        latest = places.get(number, latest)
        last.append(latest if copies[number].input else end)
    if run.is_checkpointed:
        return _Reads(0, tuple(last))
    if any(copy.is_stack for copy in copies):  # whose layers tell of nothing, and may be the last
        return _Reads(0, tuple(last))
    return _Reads(_begin(profile, own, min(places.values(), default=0)), tuple(last))


def _weighs(kind: EventKind, num_bytes: int, dims: Dimensions) -> bool:
    """Whether a kind is as large as a weight, whatever a micro-batch has."""
    is_whole = not any(_TOKENS & set(term.factors) for term in kind.terms)
    return is_whole and abs(evaluate_terms(kind.terms, dims)) == num_bytes


def _inputs_made(
    profile: Profile,
    events: Sequence[int],
    copies: Sequence[BaseCopy],
    element: int,
    dims: Dimensions,
) -> dict[int, int]:
    """Say behind which event the gradient of each adapted layer's input comes from its base.

    Behind the gradients of its adapters, as the second gradient of that input.
    """
    kinds = _kinds_of(profile.kinds, dims)
    sizes = kinds.sizes[np.array(events, int)].tolist()
    made = [at for at, event in enumerate(events) if kinds.is_gradient[event] and sizes[at] > 0]
    left = [number for number, copy in enumerate(copies) if copy.adapters]
    found = dict[int, int]()
    for second, first in zip(made[::2], made[1::2], strict=False):
        pair = sizes[second], sizes[first]
        number = next((n for n in reversed(left) if copies[n].adapters == pair), None)
        if number is None:
            continue
        left.remove(number)
        size = dims.B * dims.S * copies[number].input * element
        inputs = [at + 1 for at in range(first, len(events)) if sizes[at] == size][:_OF_INPUT]
        found |= {number: inputs[-1]} if len(inputs) == _OF_INPUT else {}
    return found


def _same_place(profile: Profile, theirs: Sequence[int], own: Sequence[int], behind: int) -> int:
    """Return behind which of a run's events lies what lies behind one of another that is alike.

    They differ in what becomes of gradients, and not in what they make of tokens.
    """
    if theirs == own:
        return behind
    is_made = _is_made(profile.kinds)
    number = int(is_made[np.array(theirs[:behind], int)].sum())
    made = np.flatnonzero(is_made[np.array(own, int)]) + 1
    return int(made[number - 1]) if 0 < number <= len(made) else len(own)


@once_for_each
def _is_made(kinds: tuple[EventKind, ...]) -> NDArray[np.bool_]:
    """Tell which kinds come with tokens: [kinds]."""
    return np.array([
        sign(kind) > 0 and any(_TOKENS & set(term.factors) for term in kind.terms)
        for kind in kinds
    ])  # fmt: skip


class _Kinds(NamedTuple):
    """Kinds of events, by number.

    Attributes:
        sizes: [kinds], bytes; less than none of what goes.
        is_gradient: [kinds].
    """

    sizes: NDArray[np.float64]
    is_gradient: NDArray[np.bool_]


@once_for_each
def _kinds_of(kinds: tuple[EventKind, ...], dims: Dimensions) -> _Kinds:
    sizes = [sign(kind) * abs(evaluate_terms(kind.terms, dims)) for kind in kinds]
    return _Kinds(np.array(sizes), np.array([kind.item == _GRADIENT for kind in kinds]))


def _begin(profile: Profile, events: Sequence[int], behind: int) -> int:
    """Return the place of the first event of an operation that ends behind a place."""
    place = max(0, behind - 1)
    while place and sign(profile.kinds[events[place]]) < 0:  # what it let go of
        place -= 1
    while place and sign(profile.kinds[events[place - 1]]) > 0:
        place -= 1
    return place
