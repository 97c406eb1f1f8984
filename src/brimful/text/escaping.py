"""Text that people gave, on its way to a schema, a shell, a YAML, JSON or a terminal: always data.

One function per target, and no other place escapes; that of HTML and SVG is ``report.markup``, and
what writes to a terminal is ``terminal``. Knows nothing of what the text says.
"""

import re
import shlex
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from brimful.errors import InputError
from brimful.text.yaml_loader import dumper

_UNSAFE = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
UNSAFE = re.compile(f"[{_UNSAFE}]")
"""What ends a line or steers a terminal (controls, U+0085, U+2028, U+2029), what turns text around
(bidi marks, embeddings, overrides and isolates), and halves of characters."""
MOST_CHARACTERS = 4096
"""Of one line that a person gives: as long as a path can be."""
Line = Annotated[str, msgspec.Meta(pattern=rf"\A[^{_UNSAFE}]*\Z", max_length=MOST_CHARACTERS)]
"""A name, a path or a sentence in a value that people write: one line that shows what it is."""

_MOST_SHOWN = 900


def check_line(text: str, *, what: str) -> str:
    """Return text as it is where it is a ``Line``, for what comes by no schema."""
    if found := UNSAFE.search(text):
        raise InputError(
            f"{what} holds {found.group()!a}, which no name has; write it on one line without "
            f"control characters"
        )
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{what} has {len(text)} characters and at most {MOST_CHARACTERS} are read; shorten it"
        )
    return text


def visible(text: str) -> str:
    r"""Spell what does not show, such as ``\x1b``; only line feeds stay what they are."""
    return "\n".join(map(visible_line, text.split("\n")))


def visible_line(text: str) -> str:
    r"""Spell what does not show, line feeds as ``\n`` too."""
    return UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def one_line(message: str) -> str:
    """Return a message fit for a terminal: one line, of characters that show, not endless.

    What the user gave stands in it as it was given, and that may be anything.
    """
    shown = visible_line(" ".join(message.splitlines()))
    if len(shown) <= _MOST_SHOWN:
        return shown
    half = _MOST_SHOWN // 2
    return f"{shown[:half]} [...] {shown[-half:]}"


def shell_words(words: Iterable[str]) -> str:
    r"""Quote words so that bash and zsh take each back as it is, on one line whatever they hold.

    Raises InputError: one holds a null character, which no argument of a program can.
    """
    return " ".join(map(_shell_word, words))


def split_words(text: str) -> list[str]:
    """Take the words of a command line apart, as a shell does that expands nothing.

    Raises ValueError: a quote is not closed.
    """
    return shlex.split(text)


def _shell_word(word: str) -> str:
    if "\0" in word:
        raise InputError(f"{word[:40]!a} holds a null character, which no argument has; change it")
    if not UNSAFE.search(word):
        return shlex.quote(word)
    # What does not show is spelled by its bytes in $'...', which is quoting of bash and zsh.
    return "$'" + "".join(map(_ansi_c, word)) + "'"


def _ansi_c(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if not UNSAFE.match(character):
        return character
    is_byte = "\udc80" <= character <= "\udcff"  # of a file name that is no UTF-8
    coded = character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in coded)


def shell_flag(flag: str, value: str) -> list[str]:
    """Return the words of a flag and its value, which may begin with a dash."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def comments(lines: Iterable[str]) -> list[str]:
    """Make comments of lines, for shells, YAML and Python: none of them ends before its line."""
    return [f"# {visible_line(line)}" for line in lines]


def yaml_text(content: Any) -> str:
    """Spell plain dicts, lists and values as YAML, fields in their order."""
    import yaml

    text: str = yaml.dump(content, Dumper=dumper(), sort_keys=False, width=100)
    return text


def json_text(content: Any, *, indent: int | None = None, also: str = "") -> str:
    """Spell a value as JSON in which no character steers what shows it.

    ``indent``: spaces of a level; None: all on one line. ``also``: characters to spell besides,
    which stand in no JSON but within texts.
    """
    try:
        text = msgspec.json.encode(content).decode()
    except UnicodeEncodeError:  # a file's name that is no UTF-8, which JSON has no way to say
        text = msgspec.json.encode(_without_halves(msgspec.to_builtins(content))).decode()
    text = UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
    for character in also:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text if indent is None else msgspec.json.format(text, indent=indent)


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {_without_halves(key): _without_halves(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_halves(inner) for inner in value]
    return value
