"""Words of a name that are others but for a letter or two: what was meant by ``Lama`` or ``Vison``.

Knows the words of the known models' names, and nothing of what they mean.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from brimful.models.language_parts import language_parts
from brimful.models.name_parts import DROPPED, HUB, LONGEST, spaced, split_publisher
from brimful.models.registry import registry
from brimful.text.slips import num_slips

_SHORTEST = 4
"""Letters of a word in which one that is wrong is a slip."""
_LONG = 9
"""Letters of a word in which two may be: Meditron is no Minitron."""
_MOST = 4
"""Words that one may be meant as, and ways in which a name may be meant."""
_WORD = re.compile(r"[a-z]+")
_SIZES = frozenset(
    {
        "base", "big", "huge", "large", "lite", "medium", "micro", "mini", "nano", "small", "tiny",
        "xlarge", "xsmall", "xxlarge",
    }
)  # fmt: skip
"""Words that many names end in, so that they say nothing of which model is meant."""


def respelt(text: str) -> Iterator[str]:
    """Yield the names that one may have been meant as, the likest first; none: no word is a slip.

    A word is a slip beside something that is right: a number, or a word that is none of a size.

    ``text``: as it was typed: a name of any spelling, a hub id.
    """
    tokens = spaced(split_publisher(text)[1][:LONGEST]).split()
    meant = [_meant(token) for token in tokens]
    ways = itertools.product(*meant)
    likest = sorted(itertools.islice(ways, _MOST**3), key=lambda way: sum(slip for slip, _ in way))
    for way in likest[:_MOST]:
        if any(slip for slip, _ in way) and _is_told(way):
            yield "-".join(word for _, word in way)


def _is_told(way: Iterable[tuple[int, str]]) -> bool:
    """Whether something of a name is right that says which model is meant."""
    return any(
        not slip and (not word.isalpha() or (len(word) >= _SHORTEST and word not in _SIZES))
        for slip, word in way
    )


def _meant(token: str) -> list[tuple[int, str]]:
    """List what a token may be meant as, each with the letters that are wrong then."""
    if not _WORD.fullmatch(token) or len(token) < _SHORTEST or token in _words():
        return [(0, token)]
    most = 2 if len(token) >= _LONG else 1
    found = [
        (slips, -common, word)
        for word, common in _words().items()
        if len(word) >= _SHORTEST
        and word[0] == token[0]
        and abs(len(word) - len(token)) <= most
        and (slips := num_slips(token, word)) <= most
    ]
    return [(slips, word) for slips, _, word in sorted(found)[:_MOST]] or [(0, token)]


@cache
def _words() -> Counter[str]:
    """Count the words of the names of known models, of the hub's names too."""
    sources = [entry["source"] for entry in registry().values()]
    hubs = [split_publisher(source)[1] for source in sources if HUB.match(source)]
    names = itertools.chain(registry(), hubs, language_parts(), DROPPED)
    return Counter(word for name in names for word in spaced(name).split() if word.isalpha())
