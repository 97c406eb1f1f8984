"""A summary on a terminal: 80 columns, at most twelve lines."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brimful.show.stand_in import judged
from brimful.show.summary import Fact, Meter, Summary, Verdict

if TYPE_CHECKING:
    from rich.text import Text

WIDTH = 80
LABEL_WIDTH = 10
MOST_OF_ALL, MOST_LINES = 12, 9
"""Of an answer; and of a summary that others follow later: what is proven, what was assumed and
what comes next take three."""
BAR_WIDTH, OVERFULL_WIDTH = 20, 10
"""Of a bar; one that says nothing but that there is too little leaves its room to the numbers."""
STYLES: dict[Verdict, str] = {
    "FITS": "bold green",
    "TIGHT": "bold yellow",
    "NO": "bold red",
    "UNKNOWN": "bold",
}
OF_SPEED = frozenset(
    {"speed", "run", "would be", "limits", "faster", "network", "by count", "one node", "next"}
)
"""What is left out where a card stands in for another, whose speed is not known; what comes next
is for that card too."""
YIELDING = ("if tight", "faster", "why", "against", "routing", "would be")
"""What is left out first, in this order: it explains an answer, and few ask for it."""
ADVISING = frozenset({"limits", "stands in"})
"""What is said shortly only before what is asked for is left out: its advice is lost so, or what
else was planned otherwise."""
CHOSEN = ("speed", "settings", "layout")
"""What was chosen where something fits, and how fast it is."""
LASTING = (
    "at most", "paged", "host", *CHOSEN, "limits", "grows", "within", "by kind", "safer", "risk",
    "machines", "not read", "stands in", "left out", "to rent", "yours", "take", "run",
)  # fmt: skip
"""What is left out last, in this order: what was chosen, how fast that is, how long a run takes,
and a text may be, is what most people ask; but what was chosen only of what fits. What nothing read
could turn the verdict."""
_RATES = re.compile(r",? [\d.,]+[KM]? tokens/s(?: in all)?|, [\d.]+% slower")
_hidden: set[str] = set()


@contextmanager
def speed_hidden(*, is_hidden: bool) -> Iterator[None]:
    """Leave out whatever is said of speed, time and money, where these are of a stand-in."""
    try:
        if is_hidden:
            _hidden.update(OF_SPEED)
        yield
    finally:
        if is_hidden:
            _hidden.clear()


def is_speed_hidden() -> bool:
    """Whether speed is left out."""
    return bool(_hidden)


def summary_lines(summary: Summary, most: int = MOST_LINES) -> "list[Text]":
    """Lay out a summary.

    Returns its lines: verdict and subject, memory with a bar, and the facts; where there are more
    than it may take the last are said shortly, and then left out.
    """
    summary = judged(summary)
    word = summary.verdict or "ANSWER"
    first = fact_lines([Fact(word, summary.subject)])
    if summary.verdict is not None:
        first[0].stylize(STYLES[summary.verdict], 0, len(word))
    meters = fact_lines(map(metered_fact, summary.meters))
    head, facts = [*first, *meters], [each for each in summary.facts if each.label not in _hidden]
    is_chosen = any(fact.label in {"settings", "layout"} for fact in facts)
    lasts = is_chosen and summary.verdict in {"FITS", "TIGHT"}
    lasting = tuple(label for label in LASTING if lasts or label not in CHOSEN)
    return [*head, *fact_lines(_fitting(facts, most - len(head), lasting))]


def _fitting(facts: list[Fact], most: int, lasting: tuple[str, ...]) -> list[Fact]:
    """Return what is said in so many lines, of one that is left out what there is room for again.

    What took many lines may leave more than others did that went before it.
    """
    left, places, gone = list(facts), list(range(len(facts))), list[tuple[int, Fact]]()
    while left and len(fact_lines(left)) > most:
        first = _first_to_yield(left, lasting)
        if (place := _to_shorten(left, first, lasting)) is None:
            gone.append((places.pop(first), left.pop(first)))
        else:
            left[place] = Fact(left[place].label, left[place].short, left[place].least)
    told = dict(zip(places, left, strict=True))
    again = [(place, facts[place]) for place in told if facts[place].least]
    for place, fact in (*again, *reversed(gone)):
        is_whole = place in told and told[place].text != fact.least
        for words in () if is_whole else (fact.short or fact.text, fact.least):
            others = {**told, place: Fact(fact.label, words)}
            if words and len(fact_lines(others.values())) <= most:
                told = others
                break
    return [told[place] for place in sorted(told)]


def _first_to_yield(facts: list[Fact], lasting: tuple[str, ...]) -> int:
    """Return the place of what is left out first: by what it is about, then the last."""
    order = {label: place for place, label in enumerate((*YIELDING, None, *lasting))}
    ranks = list[int]()
    for fact in facts:  # one without a label goes on with what stands above it
        ranks.append(order.get(fact.label, order[None]) if fact.label or not ranks else ranks[-1])
    first = min(ranks)
    last = len(facts) - 1 - ranks[::-1].index(first)
    return ranks.index(first) if first < order[None] else last


def _to_shorten(facts: list[Fact], gone: int, lasting: tuple[str, ...]) -> int | None:
    """Return the place of what is said shortly before one is left out; None: nothing is."""
    long = [place for place, each in enumerate(facts) if _is_long(each)]
    yields = facts[gone].label in YIELDING
    kept = ADVISING | ({"speed"} if yields else frozenset())  # its range, and what each GPU does
    plain = [place for place in long if facts[place].label not in kept]
    if plain or yields:
        return plain[-1] if plain else None
    return next((n for n in long if n > gone or facts[gone].label in lasting), None)


def _is_long(fact: Fact) -> bool:
    """Whether a fact takes fewer lines where it is said shortly."""
    short = Fact(fact.label, fact.short)
    return bool(fact.short) and len(fact_lines([short])) < len(fact_lines([fact]))


def fact_lines(facts: Iterable[Fact]) -> "list[Text]":
    """Lay out facts, each under its label."""
    from rich.text import Text

    lines: list[Text] = []
    for fact in facts:
        if fact.label in _hidden:
            continue
        text = _RATES.sub("", fact.text) if _hidden else fact.text
        wrapped = textwrap.wrap(
            " ".join(text.split()),
            WIDTH - LABEL_WIDTH,
            break_on_hyphens=False,
            break_long_words=False,
        )
        for number, line in enumerate(wrapped or [""]):
            label = fact.label if number == 0 else ""
            lines.append(Text.assemble((f"{label:<{LABEL_WIDTH}}", "dim" if label else ""), line))
    return lines


def metered_fact(meter: Meter) -> Fact:
    """Draw a bar before both numbers; one that ends in an arrow where there is too little."""
    if meter.share > 1:
        return Fact(meter.label, f"{'█' * OVERFULL_WIDTH}▶ {meter.words}")
    full = round(meter.share * BAR_WIDTH)
    return Fact(meter.label, f"{'█' * full}{'░' * (BAR_WIDTH - full)} {meter.words}")
