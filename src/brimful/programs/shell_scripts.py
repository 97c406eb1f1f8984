"""Shell scripts that start a program that trains: the command line that they start, read off them.

No shell is run. Lines that are continued, comments, assignments with ``$NAME``, ``${NAME}``,
``${NAME:-value}`` and arrays are understood; what a command substitution, an argument of the script
or the environment would say is left out with its flag, and said. Branches and loops are passed
through as if each of their commands ran once.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from brimful.errors import FileFormatError
from brimful.files.writing import read_whole
from brimful.text.escaping import shell_words, split_words

ENDINGS = frozenset({".sh", ".bash", ".zsh", ".slurm", ".sbatch"})
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNED = re.compile(rf"({_NAME})(\+?)=")
_PLAIN = re.compile(rf"({_NAME})|[0-9@*#?$!]")
_BRACED = re.compile(rf"({_NAME}|[1-9@*])(\[[@*]\])?(:?-(.*))?", re.DOTALL)
_OPERATORS = frozenset("\n;&|()<>")
_ENDS = frozenset({"\n", ";", "&", "|"})
_BETWEEN = _OPERATORS | {" ", "\t"}
_ESCAPED = frozenset('$`"\\')
_MARK = re.compile("\ue000([0-9]+)\ue001")
_MARKS = re.compile("[\ue000\ue001]")
_COMMENTED = re.compile(r"^([ \t]*#.*?)\\+$", re.MULTILINE)
"""A line that is a comment alone, which no backslash continues."""
_GIVEN = frozenset({"$@", "$*", "${@}", "${*}"})
"""What a script is given behind its name, which is the value of no flag."""
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})
_STARTERS = frozenset({
    "!", "do", "else", "elif", "env", "exec", "if", "nohup", "sudo", "then", "time", "while", "{",
})  # fmt: skip
"""Words before a command that change nothing of it."""
_RUNNERS = {"srun": 1, "mpirun": 1, "stdbuf": 1, "uv": 2, "poetry": 2, "pipenv": 2}
"""What starts a command that stands behind flags of its own, each with the words of it."""
_OF_RUNNERS = frozenset("-0123456789")
"""How their flags begin, and the numbers behind these (``-np 8``)."""
_SHELLS = frozenset({".", "bash", "dash", "ksh", "sbatch", "sh", "source", "zsh"})
"""What a script is handed to."""


class Call(NamedTuple):
    """How a script is started.

    Attributes:
        path: Of the script.
        variables: Of its environment, and what it is given, by number and as ``@`` and ``*``.
        exported: Of its environment alone, which its commands find in theirs.
    """

    path: Path
    variables: Mapping[str, tuple[str, ...]]
    exported: Mapping[str, str]


class Started(NamedTuple):
    """What a script starts.

    Attributes:
        line: The command, quoted; empty: it starts no program that is known.
        notes: What was left out, and which other commands train, in sentences.
    """

    line: str
    notes: tuple[str, ...]


def call_of(text: str) -> Call | None:
    """Return how a text starts a script of a shell that is there; None: it starts none.

    ``text``: the script's path, or a command line (``TP=2 bash train.sh 8``).
    """
    if _is_script(text):
        return Call(Path(text), {}, {})
    try:
        words = split_words(text)
    except ValueError:
        return None
    exported = dict[str, str]()
    while words and not _is_script(words[0]):
        word = words.pop(0)
        if _ASSIGNED.match(word):
            name, _, exported[name] = word.partition("=")
        elif word not in _SHELLS | _STARTERS and not word.startswith("-"):
            return None
    if not words:
        return None
    script, *given = words
    numbered = {str(place): (each,) for place, each in enumerate(given, 1)}
    variables = {name: (value,) for name, value in exported.items()}
    whole = {"@": tuple(given), "*": tuple(given)}
    return Call(Path(script), {**variables, **numbered, **whole}, exported)


def _is_script(text: str) -> bool:
    """Whether a text names a script of a shell, which is there."""
    path = Path(text)
    return path.suffix in ENDINGS and path.is_file()


def started(call: Call, is_known: Callable[[str], bool]) -> Started:
    """Return the command line of a program that a script starts.

    ``is_known``: whether a command line is one of a program that is read here. Raises
    FileFormatError: it is no text.
    """
    path = call.path
    try:
        text = read_whole(path).decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is no script in UTF-8; give its command line") from error
    text = _MARKS.sub("", _COMMENTED.sub(r"\1", text).replace("\\\n", " "))
    shell = _Shell(text, call.variables, call.exported)
    every = [each for each in shell.commands() if each.line and is_known(each.line)]
    if not every:
        return Started("", ())
    first, *others = every
    more = f"{path.name} starts {len(every)} programs, of which the first is read"
    return Started(first.line, (*first.notes, *([more] if others else [])))


class _Shell:
    """Reads a script from its beginning to its end.

    What nobody says here stands in words as a mark with its number in ``_unknown``.
    """

    def __init__(
        self,
        text: str,
        variables: Mapping[str, tuple[str, ...]],
        exported: Mapping[str, str],
    ) -> None:
        self._text, self._at = text, 0
        self._variables, self._exported = {**variables}, {**exported}
        self._unknown: list[str] = []

    def commands(self) -> Iterator[Started]:
        """Yield the commands with what is known of their words."""
        words = list[str]()
        while self._at < len(self._text):
            mark = self._operator(words)
            if mark is None:
                assigned = self._assigned(words)
                words += self._word() if assigned is None else assigned
            elif mark in _ENDS:
                yield self._command(words)
                words = []
        yield self._command(words)

    def _command(self, words: Sequence[str]) -> Started:
        """Return a command without what is unknown of it, with the flags before that.

        Its environment stands before it, of what was exported too.
        """
        if words and words[0] in _DECLARES:
            self._export(words)
            return Started("", ())
        kept, left = list[str](), list[str]()
        for word in words:
            sources = [self._unknown[int(place)] for place in _MARK.findall(word)]
            text = _MARK.sub("", word)
            takes_flag = not text and kept and kept[-1].startswith("-")
            if takes_flag and sources and not _GIVEN.intersection(sources):
                sources.insert(0, f"{kept.pop()} ")
            elif not sources or (text and not text.startswith("-")):
                kept.append(text)
            if sources and text.startswith("-"):
                sources = [_MARK.sub(lambda found: self._unknown[int(found[1])], word)]
            left += ["".join(sources)] * bool(sources)
        told = (f"{each} is left out: not known here" for each in dict.fromkeys(left))
        command = _stripped(kept)
        variables = [f"{name}={value}" for name, value in self._exported.items()] if command else ()
        return Started(shell_words([*variables, *command]), tuple(told))

    def _export(self, words: Sequence[str]) -> None:
        """Keep what the commands behind an ``export`` find in their environment."""
        for word in words[1:] if words[0] == "export" else ():
            name = word.partition("=")[0]
            value = "".join(self._variables.get(name, ()))
            if value and not _MARK.search(value):
                self._exported[name] = value

    def _operator(self, words: list[str]) -> str | None:
        """Take what ends a word; None: a word begins."""
        text, start = self._text, self._at
        while self._at < len(text) and text[self._at] in " \t":
            self._at += 1
        letter = text[self._at : self._at + 1]
        if letter == "#":
            end = text.find("\n", self._at)
            self._at = len(text) if end < 0 else end
            return ""
        if letter and letter not in _OPERATORS:
            return None
        self._at += 1
        if letter in {"<", ">"}:
            self._redirected(letter, words if self._at == start + 1 else [])
            return ""
        if letter == "&" and text[self._at : self._at + 1] == ">":
            return ""
        return letter or "\n"

    def _redirected(self, letter: str, words: list[str]) -> None:
        """Pass over where output goes, or the text that stands in the script.

        ``words``: those that touch it, of which the last may say which output goes there.
        """
        text = self._text
        if words and words[-1] in {"1", "2"}:
            words.pop()
        is_text = letter == "<" and text[self._at : self._at + 1] == "<"
        is_text = is_text and text[self._at + 1 : self._at + 2] != "<"  # whose text is a word
        while self._at < len(text) and text[self._at] in "<>&- \t":
            self._at += 1
        end = " ".join(self._word())
        if is_text:
            line = re.compile(rf"^[ \t]*{re.escape(end)}[ \t]*$", re.MULTILINE)
            found = line.search(text, self._at)
            self._at = found.end() if found else len(text)

    def _assigned(self, words: Sequence[str]) -> list[str] | None:
        """Take an assignment, of a list too; None: none stands here."""
        found = _ASSIGNED.match(self._text, self._at)
        before = _DECLARES | _STARTERS
        if not found or not all(_ASSIGNED.match(word) or word in before for word in words):
            return None
        self._at = found.end()
        old = self._variables.get(found[1], ()) if found[2] else ()
        if self._text[self._at : self._at + 1] == "(":
            self._at += 1
            self._variables[found[1]] = (*old, *self._listed())
            return []
        value = " ".join(self._word())
        self._variables[found[1]] = ("".join((*old, value)),)
        return [f"{found[1]}={value}"]

    def _listed(self) -> Iterator[str]:
        """Yield the words of a list."""
        while self._at < len(self._text):
            mark = self._operator([])
            if mark == ")":
                return
            if mark is None:
                yield from self._word()

    def _word(self) -> list[str]:
        """Take a word, which an expansion may make several of, or none."""
        words, is_there = [""], False
        while self._at < len(self._text) and self._text[self._at] not in _BETWEEN:
            letter = self._text[self._at]
            if letter == "'":
                end = self._text.find("'", self._at + 1)
                end = len(self._text) if end < 0 else end
                words[-1] += self._text[self._at + 1 : end]
                self._at, is_there = end + 1, True
            elif letter == '"':
                start, quoted = self._at, self._quoted()
                words[-1] += quoted[0]
                words += quoted[1:]
                is_all = self._text[start + 1 : self._at - 1] in _GIVEN  # which may be nothing
                is_there = is_there or not is_all or quoted != [""]
            elif letter in "$`":
                first, *others = " ".join(self._expanded()).split() or [""]
                words[-1] += first
                words += others
                is_there = is_there or bool(first)
            else:
                self._at += letter == "\\"
                words[-1] += self._text[self._at : self._at + 1]
                self._at, is_there = self._at + 1, True
        return words if is_there else []

    def _quoted(self) -> list[str]:
        """Take what stands in double quotes: a text, or several where a list stands in them."""
        self._at += 1
        words = [""]
        while self._at < len(self._text) and self._text[self._at] != '"':
            letter = self._text[self._at]
            if letter in "$`":
                first, *others = self._expanded() or ("",)
                words[-1] += first
                words += others
                continue
            self._at += letter == "\\" and self._text[self._at + 1 : self._at + 2] in _ESCAPED
            words[-1] += self._text[self._at : self._at + 1]
            self._at += 1
        self._at += 1
        return words

    def _expanded(self) -> tuple[str, ...]:
        """Take an expansion and return what it says."""
        text, start = self._text, self._at
        if text[start] == "`":
            self._at = text.find("`", start + 1) + 1 or len(text)
        elif text[start + 1 : start + 2] in {"(", "{"}:
            self._at = _closing(text, start + 1)
            inner = _BRACED.fullmatch(text[start + 2 : self._at - 1])
            if text[start + 1] == "{" and inner is not None:
                values = self._variables.get(inner[1])
                if values is not None and (values != ("",) or inner[3] is None):
                    return values
                if inner[3] is not None:
                    return self._of_text(inner[4])
        elif found := _PLAIN.match(text, start + 1):
            self._at = found.end()
            if found[0] in self._variables:
                return self._variables[found[0]]
        else:
            self._at += 1
            return ("$",)
        self._unknown.append(text[start : self._at])
        return (f"\ue000{len(self._unknown) - 1}\ue001",)

    def _of_text(self, text: str) -> tuple[str, ...]:
        """Return what a text says that stands for a variable that is not set."""
        inner = _Shell('"' + text.strip('"') + '"', self._variables, {})
        inner._unknown = self._unknown
        return tuple(inner._quoted())


def _closing(text: str, at: int) -> int:
    """Return the place behind the bracket that closes the one at a place."""
    opens, depth = text[at], 0
    closes = {"(": ")", "{": "}"}[opens]
    for place in range(at, len(text)):
        depth += (text[place] == opens) - (text[place] == closes)
        if not depth:
            return place + 1
    return len(text)


def _stripped(words: Sequence[str]) -> list[str]:
    """Return a command without what is said before it, but its variables."""
    rest, variables = list(words), list[str]()
    while rest:
        runs = _RUNNERS.get(rest[0], 0)
        if _ASSIGNED.match(rest[0]):
            variables.append(rest.pop(0))
        elif rest[0] in _STARTERS:
            rest = rest[1:]
        elif runs:
            rest = rest[runs:]
            while rest and rest[0][:1] in _OF_RUNNERS:
                rest = rest[1:]
        else:
            return [*variables, *rest]
    return []
