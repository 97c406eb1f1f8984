"""A head in 4 bits: its weight is made whole for every product, in 16 bits and in another type.

It comes back in fp16 and is cast to the type of the input: two whole copies, while all that the
loss keeps of the logits is there.

Source: ``Linear4bit`` and ``MatMul4Bit`` of bitsandbytes 0.41; ``_convert_layers`` of
``lightning/fabric/plugins/precision/bitsandbytes.py``, which leaves out no layer.
"""

from brimful.cost.profiles import EventKind, Term
from brimful.cost.sections import Event, Section, apart, ended
from brimful.published.logit_copies import is_whole
from brimful.values.results import ITEM_NAMES, TRANSIENTS

_TRANSIENT = ITEM_NAMES.index(TRANSIENTS)


def with_packed_head(sections: list[Section]) -> list[Section]:
    """Return a micro-batch whose head is unpacked for its products.

    ``sections``: the runs, with a loss that is computed at once or copies of logits that are.
    """
    return [_with_packed_head(section) for section in sections]


def _with_packed_head(section: Section) -> Section:
    places = [n for n, event in enumerate(section.events) if is_whole(event.kind)]
    if not places:
        return section
    there = places[0] if section.run.phase == "forward" else places[-1]
    come = [apart(EventKind((Term("HV", 2.0),), _TRANSIENT, ""), n) for n in (1, 2)]
    gone = map(ended, come)
    events = section.events
    return section._replace(events=(*events[:there], *map(Event, [*come, *gone]), *events[there:]))
