"""How far each kind of number was off, as ``docs/trust.md`` says: carried as data.

``python docs/generate_trust.py`` writes ``accuracy.json`` beside the page, from the same evidence.
"""

from functools import cache
from importlib import resources

import msgspec

from brimful.show import markup
from brimful.show.markup import Html
from brimful.web.words import Words


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far one kind of number was off; errors are as the page prints them.

    Attributes:
        key: Its name.
        words: What is compared.
        figures: How many were compared.
        median: Of absolute errors.
        p90: Likewise, ninetieth percentile.
        worst: Likewise.
    """

    key: str
    words: str
    figures: int
    median: str
    p90: str
    worst: str


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tables.

    Attributes:
        card: Runs of ours, on a GPU.
        published: Runs of others, on GPUs.
        own: Runs of ours, on CPUs.
    """

    card: tuple[Kind, ...]
    published: tuple[Kind, ...]
    own: tuple[Kind, ...]


@cache
def accuracy() -> Accuracy:
    """Read what is carried."""
    data = resources.files("brimful.web").joinpath("accuracy.json").read_bytes()
    return msgspec.json.decode(data, type=Accuracy)


def sentence(key: str, words: Words) -> str:
    """Say of one kind of published figure how far it was off.

    Beside an answer stand kinds by which nothing of ours was chosen: they say what to expect.
    """
    kind = next(kind for kind in accuracy().published if kind.key == key)
    return words["accuracy.sentence"].format(
        what=words[f"accuracy.{key}"], n=kind.figures, median=kind.median, p90=kind.p90
    )


def accuracy_tables(words: Words) -> Html:
    """Set the tables."""
    return markup.join(
        [
            _table(words["accuracy.card"], accuracy().card, words),
            _table(words["accuracy.published"], accuracy().published, words),
            _table(words["accuracy.own"], accuracy().own, words),
        ]
    )


def _table(caption: str, kinds: tuple[Kind, ...], words: Words) -> Html:
    right = frozenset({1, 2, 3, 4})
    rows = [
        markup.row(
            [
                markup.text(cell)
                for cell in (kind.words, str(kind.figures), kind.median, kind.p90, kind.worst)
            ],
            right=right,
        )
        for kind in kinds
    ]
    headings = tuple(words[f"accuracy.column.{i}"] for i in range(5))
    return markup.table(caption, headings, [markup.join(rows)], right=right)
