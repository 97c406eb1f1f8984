"""The words of a shell script with what its variables say; none of it is run.

Assignments with ``$NAME``, ``${NAME:-value}`` and its like, ``$((...))`` and arrays are understood.
What nobody says here stands in words as a mark, of which ``unknown`` has what stands there.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brimful.programs.shell_values import changed, computed

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
ASSIGNED = re.compile(rf"({NAME})(\+?)=")
_PLAIN = re.compile(rf"({NAME})|[0-9@*#?$!]")
_BRACED = re.compile(rf"(#?)({NAME}|[0-9@*#])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_INSTEAD = re.compile(r":?([-=+?])(.*)", re.DOTALL)
"""What stands in braces behind a name for where it has no value, or has one."""
_OPERATORS = frozenset("\n;&|()<>")
_BETWEEN = _OPERATORS | {" ", "\t"}
_ESCAPED = frozenset('$`"\\')
MARK = re.compile("\ue000([0-9]+)\ue001")
_MARKS = re.compile("[\ue000\ue001]")
_COMMENTED = re.compile(r"^([ \t]*#.*?)\\+$", re.MULTILINE)
"""A line that is a comment alone, which no backslash continues."""
GIVEN = frozenset({"$@", "$*", "${@}", "${*}"})
"""What a script is given behind its name, which is the value of no flag."""
DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
STARTERS = frozenset({"!", "env", "exec", "nohup", "sudo", "time"})
"""Words before a command that change nothing of it."""
_EXPR = re.compile(r"[$`]\(?\s*expr (.*?)[`)]", re.DOTALL)
_SELF = re.compile(r"\$\(.*dirname.*(\$\{?0|BASH_SOURCE).*\)|`dirname \"?\$0\"?`", re.DOTALL)
"""How a script asks for its own folder."""
_HERE = frozenset({"$(pwd)", "`pwd`", "$PWD", "${PWD}"})
_COUNTS = re.compile(rf"\$\(\s*echo \"?\$\{{?({NAME})\}}?\"? *\|.*(wc -l|NF\b).*\)", re.DOTALL)
"""How a script counts what a list by commas has."""


def whole_lines(text: str) -> str:
    """Return a script's text, its continued lines as one."""
    text = text.replace("\r\n", "\n")
    return _MARKS.sub("", _COMMENTED.sub(r"\1", text).replace("\\\n", " "))


class Words:
    """A script's text, word by word from its beginning, and its variables.

    Attributes:
        text: The script's.
        at: Where the next word begins.
        variables: What they say: several texts of an array.
        unknown: What nobody says here, as it stands there, by the number of its mark.
        is_live: Whether what is read is what runs: else nothing is assigned.
        handed: The text that stands in the script for the command that is read.
    """

    def __init__(
        self, text: str, variables: dict[str, tuple[str, ...]], unknown: list[str]
    ) -> None:
        """Begin at the beginning."""
        self.text, self.at = text, 0
        self.variables, self.unknown = variables, unknown
        self.is_live, self.handed = True, ""

    def operator(self, words: list[str]) -> str | None:
        """Take what ends a word; None: a word begins.

        ``words``: those before it, of which the last may say which output goes elsewhere.
        """
        text, start = self.text, self.at
        while self.at < len(text) and text[self.at] in " \t":
            self.at += 1
        letter = text[self.at : self.at + 1]
        if letter == "#":
            end = text.find("\n", self.at)
            self.at = len(text) if end < 0 else end
            return ""
        if letter and letter not in _OPERATORS:
            return None
        self.at += 1
        if letter in {"<", ">"}:
            self._redirected(letter, words if self.at == start + 1 else [])
            return ""
        if letter == "&" and text[self.at : self.at + 1] == ">":
            return ""
        if letter in {"&", "|", ";"} and text[self.at : self.at + 1] == letter:
            self.at += 1
            return letter * 2
        return letter or "\n"

    def _redirected(self, letter: str, words: list[str]) -> None:
        """Pass over where output goes, or the text that stands in the script."""
        text = self.text
        if words and words[-1] in {"1", "2"}:
            words.pop()
        is_text = letter == "<" and text[self.at : self.at + 1] == "<"
        is_text = is_text and text[self.at + 1 : self.at + 2] != "<"  # whose text is a word
        while self.at < len(text) and text[self.at] in "<>&- \t":
            self.at += 1
        is_plain = text[self.at : self.at + 1] in {"'", '"', "\\"}
        end = " ".join(self.word())
        if is_text:
            line = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*$", re.MULTILINE)
            found = line.search(text, self.at)
            handed = text[self.at : found.start() if found else None].partition("\n")[2]
            self.handed = handed if is_plain else self.filled(handed.replace('"', '\\"'))
            self.at = found.end() if found else len(text)

    def assigned(self, words: Sequence[str]) -> list[str] | None:
        """Take an assignment, of a list too; None: none stands here."""
        found = ASSIGNED.match(self.text, self.at)
        before = DECLARES | STARTERS
        if not found or not all(ASSIGNED.match(word) or word in before for word in words):
            return None
        self.at = found.end()
        old = self.variables.get(found[1], ()) if found[2] else ()
        if self.text[self.at : self.at + 1] == "(":
            self.at += 1
            self._set(found[1], (*old, *self._listed()))
            return []
        value = " ".join(self.word())
        self._set(found[1], ("".join((*old, value)),))
        return [f"{found[1]}={value}"]

    def _set(self, name: str, values: tuple[str, ...]) -> None:
        if self.is_live:
            self.variables[name] = values

    def _listed(self) -> Iterator[str]:
        """Yield the words of a list."""
        while self.at < len(self.text):
            mark = self.operator([])
            if mark == ")":
                return
            if mark is None:
                yield from self.word()

    def word(self) -> list[str]:
        """Take a word, which an expansion may make several of, or none."""
        words, is_there = [""], False
        while self.at < len(self.text) and self.text[self.at] not in _BETWEEN:
            letter = self.text[self.at]
            if letter == "'":
                end = self.text.find("'", self.at + 1)
                end = len(self.text) if end < 0 else end
                words[-1] += self.text[self.at + 1 : end]
                self.at, is_there = end + 1, True
            elif letter == '"':
                start, quoted = self.at, self.quoted()
                words[-1] += quoted[0]
                words += quoted[1:]
                is_all = self.text[start + 1 : self.at - 1] in GIVEN  # which may be nothing
                is_there = is_there or not is_all or quoted != [""]
            elif letter in "$`":
                first, *others = " ".join(self._expanded()).split() or [""]
                words[-1] += first
                words += others
                is_there = is_there or bool(first)
            else:
                self.at += letter == "\\"
                words[-1] += self.text[self.at : self.at + 1]
                self.at, is_there = self.at + 1, True
        return words if is_there else []

    def quoted(self) -> list[str]:
        """Take what stands in double quotes: a text, or several where a list stands in them."""
        self.at += 1
        words = [""]
        while self.at < len(self.text) and self.text[self.at] != '"':
            letter = self.text[self.at]
            if letter in "$`":
                first, *others = self._expanded() or ("",)
                words[-1] += first
                words += others
                continue
            self.at += letter == "\\" and self.text[self.at + 1 : self.at + 2] in _ESCAPED
            words[-1] += self.text[self.at : self.at + 1]
            self.at += 1
        self.at += 1
        return words

    def _expanded(self) -> tuple[str, ...]:
        """Take an expansion and return what it says."""
        text, start = self.text, self.at
        values: tuple[str, ...] | None = None
        if text[start] == "`":
            self.at = text.find("`", start + 1) + 1 or len(text)
        elif text.startswith("$((", start):
            self.at = closing(text, start + 1)
            sum_ = computed(self.filled(text[start + 3 : self.at - 2]), self.number)
            values = None if sum_ is None else (str(sum_),)
        elif text[start + 1 : start + 2] in {"(", "{"}:
            self.at = closing(text, start + 1)
            if text[start + 1] == "{":
                values = self._braced(text[start + 2 : self.at - 1])
        elif found := _PLAIN.match(text, start + 1):
            self.at = found.end()
            values = self.variables.get(found[0])
        else:
            self.at += 1
            return ("$",)
        source = text[start : self.at]
        return self._asked(source) if values is None else values

    def _asked(self, source: str) -> tuple[str, ...]:
        """Return what a command would say that scripts ask; else a mark."""
        if _SELF.fullmatch(source) and (own := self.variables.get("0")):
            ups = source.count("/..") + source.count("dirname") - 1
            return (str(Path(own[0]).parent.joinpath(*[".."] * ups)),)
        if source in _HERE:
            return (".",)
        if source.startswith("$(cat <<"):
            inner = Words(source[5:-1], self.variables, self.unknown)
            inner.operator([])
            return (inner.handed,)
        if sums := _EXPR.fullmatch(source):
            number = computed(self.filled(sums[1].replace("\\", "")), self.number)
            if number is not None:
                return (str(number),)
        if (counts := _COUNTS.fullmatch(source)) and (listed := self.variables.get(counts[1])):
            return (str("".join(listed).count(",") + 1),)
        self.unknown.append(source)
        return (f"\ue000{len(self.unknown) - 1}\ue001",)

    def _braced(  # noqa: PLR0911 - one for each form
        self, inner: str
    ) -> tuple[str, ...] | None:
        """Return what stands in braces says; None: it is not known here."""
        found = _BRACED.fullmatch(inner)
        if found is None:
            return None
        is_count, name, place, how = found.groups()
        values = self.variables.get(name)
        if place not in {None, "@", "*"}:
            number = computed(self.filled(place), self.number)
            values = None if values is None or number is None else values[number:][:1]
        if is_count and name:
            return None if values is None else (str(len(values if place else values[0])),)
        if instead := _INSTEAD.fullmatch(how):
            is_set = values is not None and (values != ("",) or how[0] != ":")
            if instead[1] == "+":
                return self._of_text(instead[2]) if is_set else ("",)
            if is_set or instead[1] == "?":
                return values
            said = self._of_text(instead[2])
            if instead[1] == "=":
                self._set(name, said)
            return said
        if values is None or not how:
            return values
        if any(MARK.search(value) for value in values):
            return None
        each = [changed(value, self.filled(how)) for value in values]
        return None if None in each else tuple(map(str, each))

    def number(self, name: str) -> int | None:
        """Return the number that a variable is; None: it is not set, or none."""
        text = "".join(self.variables.get(name, ("",)))
        return int(text) if text.removeprefix("-").isdecimal() else None

    def filled(self, text: str) -> str:
        """Return a text with what its variables say."""
        return " ".join(self._of_text(text)) if "$" in text else text

    def _of_text(self, text: str) -> tuple[str, ...]:
        """Return what a text says that stands for a variable that is not set."""
        inner = Words('"' + text.strip('"') + '"', self.variables, self.unknown)
        return tuple(inner.quoted())

    def plain(self, word: str) -> str | None:
        """Return a word of a test: variables that nobody set are empty there.

        None: it holds what a command would say.
        """
        sources = [self.unknown[int(place)] for place in MARK.findall(word)]
        if any(source.startswith(("$(", "`")) for source in sources):
            return None
        return MARK.sub("", word)


def closing(text: str, at: int) -> int:
    """Return the place behind the bracket that closes the one at a place."""
    opens, depth = text[at], 0
    closes = {"(": ")", "{": "}"}[opens]
    for place in range(at, len(text)):
        depth += (text[place] == opens) - (text[place] == closes)
        if not depth:
            return place + 1
    return len(text)


def exported(variables: Mapping[str, tuple[str, ...]], words: Sequence[str]) -> dict[str, str]:
    """Return what the commands behind an ``export`` find in their environment."""
    found = dict[str, str]()
    for word in words[1:] if words[0] == "export" else ():
        name = word.partition("=")[0]
        value = "".join(variables.get(name, ()))
        if value and not MARK.search(value):
            found[name] = value
    return found
