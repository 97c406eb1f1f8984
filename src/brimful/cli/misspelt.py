"""Flags that are ours but for dashes, case or one letter, and words that are no flags at all."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brimful.cli.other_flags import NO_FLAG, flags_meant, is_elsewhere
from brimful.text.escaping import shell_words
from brimful.text.slips import num_slips

_DASHES = re.compile(r"[-\u2010-\u2015\u2212]+")
"""Hyphens, those of web pages and of text processors too."""
_SHORTEST = 5
"""Letters of the longer of two flags of which one is a slip: ``--dp`` is no ``--tp``."""
_ALIKE = 0.7
"""From which a flag is taken for a misspelt other one: ``--deadline`` is no ``--engine``."""


def respelt(arguments: Sequence[str], known: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return a command line with the flags that were meant, and what was taken for what.

    ``known``: the flags that the verb has.
    """
    meant = {**flags_meant(known), **{flag: flag for flag in known if flag.startswith("--")}}
    words, notes = list[str](), list[str]()
    for place, word in enumerate(arguments):
        if word == "--":
            return [*words, *arguments[place:]], notes
        typed, equals, value = word.partition("=")
        flag = "" if _is_known(typed, known) else _meant(typed, meant)
        words.append(f"{flag}{equals}{value}" if flag else word)
        if flag:
            notes.append(f"{flag} is taken for {typed}")
    return words, notes


def _is_known(typed: str, known: Mapping[str, Any]) -> bool:
    """Whether a word is no flag, one of ours, or one that others' tables have."""
    written = typed.lower().replace("_", "-")
    return not _DASHES.match(typed) or {typed, written} & {*known} != set() or is_elsewhere(written)


def _meant(typed: str, meant: Mapping[str, str]) -> str:
    """Return the one flag that a word can have been meant as; empty: none, or several."""
    word = _folded(typed)
    found = {flag for name, flag in meant.items() if _folded(name) == word}
    if not found and typed.startswith("--"):
        found = {flag for name, flag in meant.items() if _is_near(_folded(name), word)}
    return found.pop() if len(found) == 1 else ""


def _is_near(name: str, word: str) -> bool:
    longest = max(len(name), len(word))
    return longest >= _SHORTEST and abs(len(name) - len(word)) <= 1 and num_slips(name, word) == 1


def _folded(flag: str) -> str:
    return _DASHES.sub("", flag).lower().replace("_", "")


def unknown_words(
    arguments: Sequence[str], left: Sequence[str], known: Mapping[str, Any], prog: str
) -> Iterable[str]:
    """Say of all words that are no flags which they are, and what was meant; then the line again.

    ``arguments``: the command line. ``left``: what of it is nobody's.
    """
    wrong = [word.partition("=")[0] for word in left if word.startswith("-")]
    meant = {flag: _like(flag, known) for flag in wrong if flag not in NO_FLAG}
    yield f"unrecognized arguments: {' '.join(left)}"
    if near := [f"{ours} for {flag}" for flag, ours in meant.items() if ours]:
        yield f"did you mean {' and '.join(near)}?"
    if far := [flag for flag, ours in meant.items() if not ours]:
        yield f"nothing here is like {' or '.join(far)}"
    yield from dict.fromkeys(NO_FLAG[flag] for flag in wrong if flag in NO_FLAG)
    if (line := _corrected(arguments, left, meant)) is not None:
        yield f"to paste: {prog} {line}"


def _like(flag: str, known: Mapping[str, Any]) -> str:
    return next(iter(difflib.get_close_matches(flag, list(known), n=1, cutoff=_ALIKE)), "")


def _corrected(
    arguments: Sequence[str], left: Sequence[str], meant: Mapping[str, str]
) -> str | None:
    """Return a line with the flags that were meant, without the others; None: it is not known.

    A word behind a flag that is none may be its value, or the model.
    """
    rest, words = list(left), list[str]()
    is_dropped = False
    for word in arguments:
        flag, equals, value = word.partition("=")
        is_left = word in rest
        if is_left:
            rest.remove(word)
        if is_left and word.startswith("-"):
            ours = meant.get(flag, "")
            is_dropped = not ours
            words += [f"{ours}{equals}{value}"] if ours else []
        elif not is_left:
            words.append(word)
            is_dropped = False
        elif words and words[-1] in meant.values():
            words.append(word)
        elif not is_dropped:
            return None
    return shell_words(words)
