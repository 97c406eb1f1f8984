"""The losses of other programs: which copies of the logits there are, from first to last.

Ours takes log-probabilities of an fp32 copy and widens gradients again: twelve bytes a logit at the
most. Older ones copy more; fused kernels read the logits and write their gradient in place or
beside them. What callers copy before that is theirs.
"""

from collections.abc import Iterator

import msgspec

from brimful.cost.profiles import EventKind, Term
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.sections import Event, Section
from brimful.values.results import ITEM_NAMES, LOGITS

_LOGITS = ITEM_NAMES.index(LOGITS)
_WHOLE = "BSV"
"""A loss that is computed at once; of one in chunks (``loss_chunks``) nothing is replaced."""


class Copies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies of the logits, named, in the order in which they come and go (``-name``).

    Attributes:
        bytes_of: Bytes a logit of each.
        forward: From the head's product to the loss.
        backward: From the loss to the gradient that the head's backward reads.
        last: That gradient, which goes as soon as it is read.
        end: What goes when backward has ended.
        start: What is still there of the micro-batch before.
        casts: Those that only change a type, and what they are of: fp32 logits have none.
    """

    bytes_of: dict[str, float]
    forward: tuple[str, ...]
    backward: tuple[str, ...]
    last: str
    end: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    casts: dict[str, str] = {}


def with_copies(sections: list[Section], copies: Copies) -> list[Section]:
    """Return a micro-batch whose logits are copied like this; one in chunks as it is."""
    live = list[str]()
    if not any(is_whole(event.kind) for section in sections for event in section.events):
        return sections
    started = tuple(_events(copies.start, copies, live))
    found = [s._replace(events=tuple(_replaced(s, copies, live))) for s in sections]
    found[0] = found[0]._replace(events=started + found[0].events)
    ended = found[-1].events + tuple(_events(copies.end, copies, live))
    return [*found[:-1], found[-1]._replace(events=ended)]


def widened(copies: Copies) -> Copies:
    """Return the copies of logits that are fp32 to begin with: none is narrower or a cast."""
    wide = {name: max(size, FP32_BYTES) for name, size in copies.bytes_of.items()}
    last = copies.casts.get(copies.last, copies.last)
    return msgspec.structs.replace(
        copies,
        bytes_of=wide,
        forward=_without(copies, copies.forward, last),
        backward=_without(copies, copies.backward, last),
        last=last,
    )


def _without(copies: Copies, names: tuple[str, ...], last: str) -> tuple[str, ...]:
    """Return what comes and goes beside casts; what the head's backward reads stays till then."""
    return tuple(
        name for name in names if name.removeprefix("-") not in copies.casts and name != f"-{last}"
    )


def _replaced(section: Section, copies: Copies, live: list[str]) -> Iterator[Event]:
    """Yield a run's events: those of ours where the first copy came, and the last where it went."""
    is_forward = section.run.phase == "forward"
    places = [n for n, event in enumerate(section.events) if is_whole(event.kind)]
    for place, event in enumerate(section.events):
        if not is_whole(event.kind):
            yield event
        if places and place == places[0]:
            yield from _events(copies.forward if is_forward else copies.backward, copies, live)
        if places and place == places[-1] and not is_forward:
            yield from _events((f"-{copies.last}",), copies, live)


def _events(names: tuple[str, ...], copies: Copies, live: list[str]) -> Iterator[Event]:
    """Yield copies that come and go, and keep account of which are there."""
    for name in names:
        own = name.removeprefix("-")
        size = copies.bytes_of[own]
        if own == name:
            live.append(own)
            yield Event(EventKind((Term(_WHOLE, size),), _LOGITS, ""))
            continue
        behind = live[live.index(own) + 1 :]
        newer = sum(copies.bytes_of[other] == size for other in behind)
        live.remove(own)
        yield Event(EventKind((Term(_WHOLE, -size),), _LOGITS, "", newer))


def is_whole(kind: EventKind) -> bool:
    """Whether it is a copy of all logits of a micro-batch, or of what is made of them."""
    return kind.item == _LOGITS and any(term.factors == _WHOLE for term in kind.terms)
