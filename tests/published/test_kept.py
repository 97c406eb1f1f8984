"""Events of a run with tensors taken out: what is left takes the same tensors as before."""

from brimful.cost.profiles import EventKind, Run, Term, Work
from brimful.cost.sections import Event, Section
from brimful.published.kept import without
from brimful.published.logit_copies import Copies, with_copies
from brimful.values.results import ITEM_NAMES, LOGITS, TRANSIENTS

TRANSIENT, OF_LOSS = map(ITEM_NAMES.index, (TRANSIENTS, LOGITS))


def event(sign, newer=0, factors="BSH", item=TRANSIENT):
    return Event(EventKind((Term(factors, 2.0 * sign),), item, "", newer))


def taken(events):
    """Return which tensor every event takes, by the order in which they came; None: from before."""
    there, found, num = [], [], 0
    for each in events:
        if each.kind.terms[0].coefficient > 0:
            there.append(num)
            num += 1
        else:
            newer = each.kind.newer
            found.append(there.pop(-1 - newer) if newer < len(there) else None)
    return found


def test_the_tensor_that_lives_longest_is_left_out_and_others_go_as_before():
    events = [event(1), event(1), event(-1), event(1), event(-1, 1), event(-1)]
    assert taken(events) == [1, 0, 2]  # the first lives longest
    left = without(events, (Term("BSH", 2.0),), 1)
    assert [e.kind.terms[0].coefficient > 0 for e in left] == [True, False, True, False]
    assert taken(left) == [0, 1]


def test_what_came_before_the_run_still_goes():
    events = [event(1), event(1), event(-1, 2), event(-1, 1), event(-1)]
    assert taken(events) == [None, 0, 1]
    left = without(events, (Term("BSH", 2.0),), 1)
    assert taken(left) == [None, 0]
    assert [e.kind.newer for e in left if e.kind.terms[0].coefficient < 0] == [1, 0]


def test_no_more_is_left_out_than_there_is():
    events = [event(1), event(-1), event(1)]
    assert without(events, (Term("BSH", 2.0),), 5) == [event(1)]
    assert without(events, (Term("BSF", 2.0),), 1) == events


def test_copies_of_one_size_are_told_by_what_came_later():
    copies = Copies(
        bytes_of={"wide": 4, "shifted": 4, "padded": 4, "gradient": 2},
        forward=("wide", "shifted", "-wide"),
        backward=("padded", "-shifted", "gradient", "-padded"),
        last="gradient",
    )
    work = Work((), (), (), (), 0)
    ours = tuple(event(sign, factors="BSV", item=OF_LOSS) for sign in (1, -1))
    sections = [
        Section(Run("forward", "", "other", 0), work, (event(1), ours[0])),
        Section(Run("backward", "", "other", 1), work, (*ours, event(-1), ours[1])),
    ]
    forward, backward = with_copies(sections, copies)
    sizes = [(e.kind.terms[0].coefficient, e.kind.newer) for e in forward.events[1:]]
    assert sizes == [(4, 0), (4, 0), (-4, 1)]
    sizes = [(e.kind.terms[0].coefficient, e.kind.newer) for e in backward.events]
    assert sizes == [(4, 0), (-4, 1), (2, 0), (-4, 0), (-2, 0), (-2, 0)]
    assert backward.events[-2].kind.item == TRANSIENT  # the head's backward comes before the last


def test_a_loss_in_chunks_is_left_as_it_is():
    work = Work((), (), (), (), 0)
    chunk = (event(1, factors="CV", item=OF_LOSS), event(-1, factors="CV", item=OF_LOSS))
    sections = [Section(Run("forward", "chunk", "first", 0), work, chunk)]
    copies = Copies(bytes_of={"a": 2}, forward=("a",), backward=(), last="a")
    assert with_copies(sections, copies) == sections
