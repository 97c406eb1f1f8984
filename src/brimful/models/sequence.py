"""Blocks of several kinds in one stack: the shortest sequence that shows all that a model has.

What a block does depends on its kind and, at most, on its neighbours': so a sequence in which every
kind stands between the same neighbours as in the model shows what each of its blocks does.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

END = -1
"""The kind of what is before the first block and behind the last."""
_SHOWN = 2
"""Blocks of a kind that show what each of them does once: what only one does is its own."""


class Context(NamedTuple):
    """A block's kind between its neighbours'."""

    before: int
    own: int
    behind: int


def numbered(told: Iterable[Hashable]) -> tuple[int, ...]:
    """Number kinds in the order in which they first appear."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(each, len(numbers)) for each in told)


def contexts(kinds: Sequence[int]) -> list[Context]:
    """Return every block's kind between its neighbours'."""
    padded = [END, *kinds, END]
    return [Context(*padded[place : place + 3]) for place in range(len(kinds))]


def shown_by(kinds: Sequence[int]) -> tuple[int, ...]:
    """Return places of blocks that, in this order, show every block between its neighbours.

    From one block that has to be shown to the next, in the order of the model, by as few as may be.
    """
    every = contexts(kinds)
    # Which contexts may stand behind which.
    follows: dict[Context, set[Context]] = {context: set() for context in every}
    for one in follows:
        follows[one] = {
            other for other in follows if (other.before, other.own) == (one.own, one.behind)
        }
    first_of: dict[Context, int] = {}
    for place, context in enumerate(every):
        first_of.setdefault(context, place)
    path, num_shown = [every[0]], {every[0].own: 1}
    for place in _to_show(every)[1:]:
        context = every[place]
        is_new = context not in path
        if not is_new and num_shown.get(context.own, 0) >= _SHOWN and place != len(kinds) - 1:
            continue
        for step in _way(path[-1], context, follows):
            path.append(step)
            num_shown[step.own] = num_shown.get(step.own, 0) + 1
    return tuple(first_of[context] for context in path)


def _to_show(every: Sequence[Context]) -> list[int]:
    """List the first places of every context, the first two of every kind, and the last of all."""
    found, seen, num = set[int](), set[Context](), dict[int, int]()
    for place, context in enumerate(every):
        num[context.own] = num.get(context.own, 0) + 1
        if context not in seen or num[context.own] <= _SHOWN:
            found.add(place)
        seen.add(context)
    return sorted({*found, len(every) - 1})


def _way(
    start: Context, goal: Context, follows: Mapping[Context, set[Context]]
) -> tuple[Context, ...]:
    """Return the shortest way from one context to another, of one step at least."""
    waiting: deque[tuple[Context, ...]] = deque([(start,)])
    seen = set[Context]()
    while waiting:
        path = waiting.popleft()
        for step in sorted(follows[path[-1]]):
            if step == goal:
                return (*path[1:], step)
            if step not in seen:
                seen.add(step)
                waiting.append((*path, step))
    raise AssertionError("the model itself leads from each of its blocks to the later ones")
