"""Which blocks of a model show, in a trace, what all of its blocks do."""

from collections.abc import Sequence
from typing import NamedTuple

from brimful.cost.family import bodies_of
from brimful.cost.profiles import Body
from brimful.cost.sending import shown_sending
from brimful.models.sequence import numbered, shown_by
from brimful.simulate.own_shapes import OwnProgram


class Stack(NamedTuple):
    """The blocks that are traced.

    Attributes:
        places: Of each, which of the model's it is, in order; of a mixed body first as they are
            checkpointed, then as they are not, but where some send what they keep.
        num_again: How many are checkpointed, from the first on.
        num_sent: How many send what they keep.
        num_brought: Of how many the frozen base is brought.
        numbers: By which each is told (``Profile.sequence``); empty: by where it stands.
    """

    places: tuple[int, ...]
    num_again: int
    num_sent: int = 0
    num_brought: int = 0
    numbers: tuple[int, ...] = ()


def kinds_shown(own: OwnProgram) -> tuple[int, ...]:
    """Return the kinds of the blocks that are traced, where there are several."""
    kinds = own.built.kinds
    if shown := shown_sending(own.built, own.sending):
        return tuple(each.kind for each in shown)
    return tuple(kinds[place] for place in shown_by(kinds)) if len(set(kinds)) > 1 else ()


def stack_of(own: OwnProgram, body: Body) -> Stack:
    """Return which blocks are traced.

    Of a body of which some are checkpointed every kind that may be is there so, and behind them
    every kind that may not be as it is then: in each list, of which an encoder's is the first. Of
    one number of checkpointed blocks those that show all, each between its neighbours; so too where
    there would be more blocks than the model has, of which some classes hold a table. A body that
    is one unit is traced as it is.
    """
    kinds, last = own.built.kinds, len(own.built.kinds) - 1
    if not kinds:
        return Stack((), own.job.model.num_layers * (body != "plain"))
    if shown := shown_sending(own.built, own.sending):
        return Stack(
            tuple(each.place for each in shown),
            num_again=sum(each.is_again for each in shown),
            num_sent=sum(each.is_sent for each in shown),
            num_brought=sum(each.is_brought for each in shown),
        )
    places = shown_by(kinds) if len(set(kinds)) > 1 else (0, min(1, last), last)
    if body in {"plain", "checkpointed"}:
        return Stack(places, len(places) * (body != "plain"))
    counts = bodies_of(own.job)[body]
    if len(counts) == 1 and len(set(kinds)) > 1:
        return _stack_where(kinds, places, counts[0])
    told = list(enumerate(places))
    may_be, may_not = set(kinds[: counts[-1]]), set(kinds[counts[0] :])
    again = [each for each in told if kinds[each[1]] in may_be]
    plain = [(n + len(places), place) for n, place in told if kinds[place] in may_not]
    if len(again) + len(plain) > len(kinds) and len(set(kinds)) > 1:
        shows = (n for n in counts if may_be <= set(kinds[:n]) and may_not <= set(kinds[n:]))
        if (num := next(shows, None)) is not None:
            return _stack_where(kinds, places, num)
    numbers, both = zip(*again, *plain, strict=True)
    return Stack(both, len(again), numbers=numbers)


def _stack_where(kinds: Sequence[int], usual: Sequence[int], num_again: int) -> Stack:
    """Return which blocks are traced where so many are checkpointed.

    ``usual``: places of those that are traced where none is; they tell kinds by their numbers.
    ``num_again``: how many of the model's blocks are, from the first on.
    """
    places = shown_by(numbered((kind, at < num_again) for at, kind in enumerate(kinds)))
    number_of = {kinds[place]: number for number, place in enumerate(usual)}
    numbers = [number_of[kinds[place]] + at * len(usual) for at, place in enumerate(places)]
    return Stack(places, sum(place < num_again for place in places), numbers=tuple(numbers))
