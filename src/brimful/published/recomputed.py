"""Selective checkpointing of other programs: products that ours keeps and they compute again.

Such a product goes when its block's forward ends, and is there again when its backward begins.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from brimful.cost.additions import is_block
from brimful.cost.profiles import EventKind, Term
from brimful.cost.sections import Event, Section, apart, ended
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS

_SAVED = ITEM_NAMES.index(SAVED_ACTIVATIONS)


class Product(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A product of a block, by its size.

    Attributes:
        factors: Dimensions that its size is the product of.
        place: Which of those of that size that the forward keeps.
    """

    factors: str
    place: Literal["first", "last"]


def with_recomputed(sections: list[Section], products: Sequence[Product]) -> list[Section]:
    """Return a micro-batch whose checkpointed blocks do not keep these."""
    for number, product in enumerate(products, 1):
        sections = [_without(section, product, number) for section in sections]
    return sections


def _without(section: Section, product: Product, number: int) -> Section:
    run, events = section.run, list(section.events)
    sign = 1 if run.phase == "forward" else -1
    places = [n for n, event in enumerate(events) if _is(event, product, sign)]
    if not is_block(run) or run.group != "checkpointed" or not places:
        return section
    place = places[-1 if product.place == "last" and sign > 0 else 0]
    come, gone = _events(events[place].kind, number)
    if sign > 0:
        found = [*events[:place], come, *events[place + 1 :], gone]
    else:
        found = [come, *events[:place], gone, *events[place + 1 :]]
    return section._replace(events=tuple(found))


def _events(kind: EventKind, number: int) -> tuple[Event, Event]:
    """Return how a tensor of this size comes and goes that no other event takes."""
    terms = tuple(Term(term.factors, abs(term.coefficient)) for term in kind.terms)
    come = apart(EventKind(terms, kind.item, ""), number)
    return Event(come), Event(ended(come))


def _is(event: Event, product: Product, sign: int) -> bool:
    kind = event.kind
    if event.piece is not None or kind.item != _SAVED or kind.origin or len(kind.terms) != 1:
        return False
    (term,) = kind.terms
    return term.factors == product.factors and term.coefficient * sign > 0
