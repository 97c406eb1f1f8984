"""A root that gives up its parameters after its forward, as blocks do: the loss is outside of it.

Ours holds them until its backward has ended. Where they are given up, nothing is gathered while a
loss that is computed at once is; the root's parameters are there again when the gradient of the
logits reaches the head, and the last block's behind them.
"""

from brimful.cost.additions import COME, GO, Piece, Signed
from brimful.cost.sections import Section, of_piece
from brimful.published.logit_copies import is_whole

_GATHERED: tuple[Signed, ...] = (
    (COME, Piece.REST_CAST),
    (COME, Piece.REST_GATHERED),
    (GO, Piece.REST_CAST),
    (COME, Piece.REST),
    (GO, Piece.REST_GATHERED),
)


def with_resharded_root(sections: list[Section]) -> list[Section]:
    """Return a micro-batch whose root is not gathered while the loss is computed.

    ``sections``: the runs, with the pieces of ZeRO-2 or ZeRO-3.
    """
    return [_resharded(section) for section in sections]


def _resharded(section: Section) -> Section:
    places = [n for n, event in enumerate(section.events) if is_whole(event.kind)]
    if not places:
        return section
    events = section.events
    if section.run.phase == "forward":
        there = places[0] + 1  # the head's product is the last of the root's forward
        found = (*events[:there], of_piece(GO, Piece.REST), *events[there:])
        return section._replace(events=found)
    comes = [n for n in places if events[n].kind.terms[0].coefficient > 0]
    there = (comes or places)[-1] + bool(comes)
    ahead = tuple(event for event in events[:there] if event.piece is not None)
    loss = tuple(event for event in events[:there] if event.piece is None)
    gathered = tuple(of_piece(*signed) for signed in _GATHERED)
    return section._replace(events=(*loss, *gathered, *ahead, *events[there:]))
