"""Which cases of a long list `make test` runs: what ``@pytest.mark.few`` on a function means.

``few``: as few cases as show every value of every parameter at least once; a parameter that is a
tuple, a mapping or a named tuple counts by its fields, ``by_words=True`` a name by its words.
``few(n)``: n of them, evenly spread over the list. ``few(only=[...])``: those of these ids. The
others are marked ``long``: ``make test-all`` runs them.
"""

import re
from collections.abc import Mapping


def chosen(cases, num=None, *, by_words=False):
    """Choose cases.

    Args:
        cases: Of one function, its parameters by name.
        num: How many; None: until every value of every parameter has been seen.
        by_words: Whether words within a text are values.

    Returns:
        Their places in the list, in order.
    """
    if num is not None:
        return sorted({place * len(cases) // num for place in range(num)})
    values = [set(_values(case, by_words=by_words)) for case in cases]
    missing, found = set().union(*values), []
    while missing:  # each time the case that shows most, the first of them
        best = max(range(len(cases)), key=lambda i: (len(values[i] & missing), -i))
        found.append(best)
        missing -= values[best]
    return sorted(found)


def named(ids, only, *, are_all=True):
    """Choose cases by their ids.

    Args:
        ids: Of the cases of one function.
        only: Which of them to keep.
        are_all: Whether one that is none of them is refused.

    Returns:
        Their places in the list, in order.
    """
    unknown = set(only) - set(ids)
    assert not (are_all and unknown), f"no such cases: {unknown}"
    return [place for place, each in enumerate(ids) if each in only]


def _values(fields, path=(), *, by_words):
    """List what a case consists of, as places and values that compare."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _values(value, (*path, name), by_words=by_words)
            yield (*path, name), tuple(value)
        elif isinstance(value, tuple | list):
            yield from _values(dict(enumerate(value)), (*path, name), by_words=by_words)
        elif isinstance(value, str) and by_words:
            yield from ((path, word) for word in re.findall(r"[A-Za-z]+|\d+", value))
        else:
            yield (*path, name), repr(value)
