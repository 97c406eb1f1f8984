"""The page's own strings, in every language of ``strings.json``; what is computed says is English.

Labels of facts are translated where the table has them; sentences over numbers are the command
line's own, so that page and terminal say the same.
"""

import json
from functools import cache
from importlib import resources

from brimful.errors import unknown_name
from brimful.show.summary import Fact

DEFAULT = "en"


class Words:
    """The strings of one language."""

    def __init__(self, language: str, strings: dict[str, str]) -> None:
        """Keep them."""
        self.language = language
        self._strings = strings

    def __getitem__(self, key: str) -> str:
        """Return a string; one that is missing is a mistake of ours."""
        return self._strings[key]

    def labelled(self, fact: Fact) -> Fact:
        """Return a fact with its label in this language, where the table has it."""
        return fact._replace(label=self._strings.get(f"fact.{fact.label}", fact.label))

    @property
    def for_script(self) -> dict[str, str]:
        """The strings that the page's script says."""
        return {
            key.removeprefix("js."): text
            for key, text in self._strings.items()
            if key.startswith("js.")
        }


@cache
def tables() -> dict[str, dict[str, str]]:
    """Read every language."""
    text = resources.files("brimful.web").joinpath("strings.json").read_text("utf-8")
    read: dict[str, dict[str, str]] = json.loads(text)
    return read


def words_of(language: str) -> Words:
    """Return the strings of a language.

    Raises UnknownNameError: there is none of that name.
    """
    if language not in tables():
        raise unknown_name("language", language[:20], tables())
    return Words(language, tables()[language])


def language_of(accepted: str) -> str:
    """Choose by a browser's ``Accept-Language``: the first that we have."""
    for part in accepted.split(","):
        name = part.partition(";")[0].strip().lower()[:2]
        if name in tables():
            return name
    return DEFAULT
