"""Shell scripts that start a program that trains: the command line that they start, read off them.

No shell is run. Branches are taken as their tests say, of what the script itself says; where a test
is of what is not known here, each branch is read as if it ran. Loops over lists run their first
round. What a command, an argument of the script or the environment would say is left out with its
flag, and said.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from brimful.errors import FileFormatError
from brimful.files.writing import read_whole
from brimful.programs.shell_values import holds, is_so, matches
from brimful.programs.shell_words import (
    ASSIGNED,
    DECLARES,
    GIVEN,
    MARK,
    STARTERS,
    Words,
    closing,
    exported,
    whole_lines,
)
from brimful.text.escaping import shell_words, split_words

ENDINGS = frozenset({".sh", ".bash", ".zsh", ".slurm", ".sbatch"})
_ENDS = frozenset({"\n", ";", "&", "|", "&&", "||", ";;"})
_KEYWORD = re.compile(
    r"(if|then|elif|else|fi|for|while|until|do|done|case|esac|\{|\})(?=[\s;&|()]|$)"
)
_OF_TESTS = re.compile(r"\s+|(\]\]|&&|\|\||[()<>]|!(?=\s))")
"""What stands between the words of a test in double brackets."""
_PATTERN = re.compile(r"(?!(?:\s|;|#[^\n]*\n)*esac\b)(?:\s|;|#[^\n]*\n)*\(?([^()]*?)\)")
_JOINTS = {"&&": False, "||": True}
"""What a command says for the one behind it not to run."""
_FUNCTION = re.compile(r"(?:function\s+([\w-]+)\s*(?:\(\s*\))?|([\w-]+)\s*\(\s*\))\s*(?=\{)")
_RUNNERS = {"srun": 1, "mpirun": 1, "stdbuf": 1, "uv": 2, "poetry": 2, "pipenv": 2}
"""What starts a command that stands behind flags of its own, each with the words of it."""
_OF_RUNNERS = frozenset("-0123456789")
"""How their flags begin, and the numbers behind these (``-np 8``)."""
_SHELLS = frozenset({".", "bash", "dash", "ksh", "sbatch", "sh", "source", "zsh"})
"""What a script is handed to."""
_SETTINGS = frozenset({".json", ".toml", ".yaml", ".yml"})
"""How files of settings end."""
_COUNTED = frozenset({"--nproc_per_node", "--nproc-per-node"})
"""Flags of torchrun's that a word stands in for, where nobody says the number: each GPU."""
_DEPTH = 8
"""Of scripts and functions within one another."""


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
    variables = dict[str, str]()
    while words and not _is_script(words[0]):
        word = words.pop(0)
        if ASSIGNED.match(word):
            name, _, variables[name] = word.partition("=")
        elif word not in _SHELLS | STARTERS and not word.startswith("-"):
            return None
    if not words:
        return None
    script, *given = words
    values = {name: (value,) for name, value in variables.items()}
    return Call(Path(script), {**values, **_given(given)}, variables)


def _given(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what a script or a function is given, by its names there."""
    numbered = {str(place): (each,) for place, each in enumerate(words, 1)}
    return {**numbered, "@": tuple(words), "*": tuple(words), "#": (str(len(words)),)}


def _is_script(text: str) -> bool:
    """Whether a text names a script of a shell, which is there."""
    path = Path(text)
    return path.suffix in ENDINGS and path.is_file()


def started(call: Call, is_known: Callable[[str], bool]) -> Started:
    """Return the command line of a program that a script starts.

    ``is_known``: whether a command line is one of a program that is read here. Raises
    FileFormatError: it is no text.
    """
    return _started(call, is_known) or _started(call, is_known, follows=False) or Started("", ())


def _started(
    call: Call, is_known: Callable[[str], bool], *, follows: bool = True
) -> Started | None:
    """Return the first command of a program that is known; None: there is none.

    ``follows``: whether only those branches are read whose tests hold.
    """
    path = call.path
    variables = {"#": ("0",), **call.variables, "0": (str(path),)}
    shell = _Shell(_text_of(path), Words("", variables, []), {**call.exported})
    shell.follows = follows
    every = [
        Started(line, each.notes)
        for each in shell.commands()
        if (line := next(filter(is_known, _lines_of(each.line)), ""))
    ]
    if not every:
        return None
    first, *others = every
    more = f"{path.name} starts {len(every)} programs, of which the first is read"
    if not follows:
        more += ": what it is given would say which"
    notes = (*first.notes, *shell.notes, *([more] if others else []))
    return Started(shell_words(_found(split_words(first.line), path)), notes)


def _found(words: Sequence[str], script: Path) -> Iterator[str]:
    """Yield words with the files that they name, of the folder that a script is started from.

    That is its own or one above, where no such file is here.
    """
    for word in words:
        flag, is_given, value = word.rpartition("=")
        name = Path(value)
        is_file = name.suffix in _SETTINGS and not name.is_absolute() and not name.is_file()
        folders = script.resolve().parents if is_file else ()
        places = (str(folder / value) for folder in folders if (folder / value).is_file())
        yield f"{flag}{is_given}{next(places, value)}"


def _text_of(path: Path) -> str:
    try:
        return whole_lines(read_whole(path).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is no script in UTF-8; give its command line") from error


def _lines_of(line: str) -> Iterator[str]:
    """Yield a command, and those that it hands to a launcher of its own behind ``--``."""
    if " -- " in line:
        words = split_words(line)
        behind = words[words.index("--") + 1 :] if "--" in words else []
        parts, part = list[list[str]](), list[str]()
        for word in (*behind, "&&"):
            if word in {"&&", ";"}:
                parts.append(part)
                part = []
            else:
                part.append(word)
        yield from (shell_words(_stripped(each)) for each in parts if each)
    yield from [line] * bool(line)


class _Block:
    """A branch or a loop that was begun.

    Attributes:
        kind: The word that began it.
        start: Where its first test begins.
        was_live: Whether what holds it runs.
        is_live: Whether the part of it that is read runs.
        is_taken: Whether one of its branches runs; None: nobody knows here.
        subject: What a ``case`` is of; None: nobody knows here.
        num_given: Words that a script still had when a round of a loop began.
    """

    def __init__(self, kind: str, start: int, *, is_live: bool) -> None:
        """Begin it."""
        self.kind, self.start = kind, start
        self.was_live = self.is_live = is_live
        self.is_taken: bool | None = False
        self.subject: str | None = ""
        self.num_given = 0

    def choose(self, is_so: bool | None) -> None:  # noqa: FBT001 - what a test says
        """Begin a branch that runs where a test holds and no branch before it runs."""
        self.is_live = self.was_live and self.is_taken is not True and is_so is not False
        if is_so is not False and self.is_taken is False:
            self.is_taken = is_so


class _Shell:
    """Reads a script from its beginning to its end."""

    def __init__(
        self, text: str, words: Words, environment: dict[str, str], outer: "_Shell | None" = None
    ) -> None:
        self._words = Words(text, words.variables, words.unknown)
        self._environment = environment
        self._blocks: list[_Block] = []
        self.functions: dict[str, str] = {} if outer is None else outer.functions
        self.depth: int = 0 if outer is None else outer.depth + 1
        self._status: bool | None = True
        self.follows: bool = True if outer is None else outer.follows
        self.notes: list[str] = []

    def commands(self) -> Iterator[Started]:
        """Yield the commands with what is known of their words."""
        reader, words = self._words, list[str]()
        while reader.at < len(reader.text):
            if words in ([], ["!"]) and (taken := self._syntax()) is not None:
                words += taken
                continue
            mark = reader.operator(words)
            if mark is None:
                assigned = reader.assigned(words)
                words += reader.word() if assigned is None else assigned
            elif mark in _ENDS:
                yield from self._ended(words, mark)
                words = []
        yield from self._ended(words, "\n")

    def _ended(self, words: list[str], mark: str) -> Iterator[Started]:
        """Run a command that ends, and say whether what stands behind it runs."""
        if words and self._words.is_live:
            yield from self._run(words)
        if mark == "|":
            self._status = None
        if mark == ";;" and self._blocks:
            self._pattern(self._blocks[-1])
        self._settle(skips=mark in _JOINTS and self._status is _JOINTS[mark])

    def _settle(self, *, skips: bool = False) -> None:
        is_within = not self._blocks or self._blocks[-1].is_live
        self._words.is_live = is_within and not skips

    def _syntax(self) -> list[str] | None:
        """Take what is no command, or a test as the words of one; None: a command begins."""
        reader = self._words
        while reader.text[reader.at : reader.at + 1] in {" ", "\t"}:
            reader.at += 1
        text, start = reader.text, reader.at
        if text.startswith("[[", start):
            return ["[", *self._tested()]
        if text.startswith("((", start):
            reader.at = closing(text, start)
            return ["((", text[start + 2 : reader.at - 2]]
        if found := _FUNCTION.match(text, start):
            reader.at = closing(text, found.end())
            self.functions[found[1] or found[2]] = text[found.end() + 1 : reader.at - 1]
            return []
        if (found := _KEYWORD.match(text, start)) is None:
            return None
        reader.at = found.end()
        self._keyword(found[1])
        self._settle()
        return []

    def _tested(self) -> Iterator[str]:
        """Take what stands between ``[[`` and ``]]``."""
        reader = self._words
        reader.at += 2
        while reader.at < len(reader.text):
            if found := _OF_TESTS.match(reader.text, reader.at):
                reader.at = found.end()
                if found[1] == "]]":
                    return
                yield from [found[1]] * bool(found[1])
            else:
                yield " ".join(reader.word())

    def _keyword(self, word: str) -> None:
        block = self._blocks[-1] if self._blocks else None
        if word in {"if", "while", "until", "for", "case"}:
            is_live = self._words.is_live
            self._blocks.append(_Block(word, self._words.at, is_live=is_live))
            self._begin(self._blocks[-1])
        elif block is None or word in {"{", "}"}:
            return
        elif word == "then":
            block.choose(self._status)
        elif word in {"elif", "else"}:
            if self.follows and block.was_live and block.is_taken is None:
                self._say_unknown(block)
            block.is_live = block.was_live and block.is_taken is not True
            self._status = None
        elif word == "do":
            is_off = block.kind == "until" and self._status is not None
            block.choose(not self._status if is_off else self._status)
        elif word == "done" and self._goes_again(block):
            self._words.at = block.start
            self._begin(block)
        else:
            self._blocks.pop()

    def _say_unknown(self, block: _Block) -> None:
        test = self._words.text[block.start :].partition("\n")[0].partition(";")[0].strip()
        words = f"if {test} is not known here: each of its branches is read"
        if words not in self.notes:
            self.notes.append(words)

    def _begin(self, block: _Block) -> None:
        """Take what stands behind the word that begins a block, and have its test run."""
        self._status = None
        block.is_live, block.is_taken = block.was_live, False
        block.num_given = len(self._words.variables.get("@", ()))
        if block.kind == "for":
            self._loop()
        elif block.kind == "case":
            subject = self._words.plain(" ".join(self._next_word()))
            block.subject = subject if self.follows else None
            self._next_word()  # in
            self._pattern(block)

    def _goes_again(self, block: _Block) -> bool:
        """Whether a loop that takes words off what the script is given has more of them."""
        is_sure = block.was_live and block.is_taken is True
        return is_sure and len(self._words.variables.get("@", ())) < block.num_given

    def _next_word(self) -> list[str]:
        """Take the next word of the same line."""
        reader = self._words
        while reader.text[reader.at : reader.at + 1] in {" ", "\t"}:
            reader.at += 1
        return reader.word()

    def _loop(self) -> None:
        """Take the name and the words of a loop, of which the first round runs."""
        reader = self._words
        name = "".join(self._next_word())
        if not name:  # for ((...))
            reader.at = closing(reader.text, reader.at)
            return
        values, mark = list[str](), None
        while reader.at < len(reader.text) and mark not in {"\n", ";"}:
            mark = reader.operator([])
            if mark is None:
                values += reader.word()
        values = values[1:]  # but in
        self._status = bool(values)
        if values and reader.is_live:
            reader.variables[name] = (values[0],)
            if len(values) > 1:
                self.notes.append(f"of the rounds of {name} the first is read: {values[0]}")

    def _pattern(self, block: _Block) -> None:
        """Take the next pattern of a ``case``, and say whether what stands behind it runs."""
        reader = self._words
        found = _PATTERN.match(reader.text, reader.at)
        if block.kind != "case" or found is None:
            return
        reader.at = found.end()
        patterns = [each.strip().strip("\"'") for each in found[1].split("|")]
        of = block.subject
        block.choose(None if of is None else any(matches(of, each) for each in patterns))

    def _run(self, words: list[str]) -> Iterator[Started]:
        """Run a command: what is a shell's own, or hand it on."""
        is_not = words[0] == "!"
        self._status, command = None, words[is_not:]
        bare = [*dropwhile(ASSIGNED.match, _stripped(command))]
        head = bare[0] if bare else ":"
        if head in {"[", "test"}:
            self._status = holds([self._words.plain(each) for each in bare[1:] if each != "]"])
        elif head == "((":
            self._status = is_so(self._words.filled(bare[1]), self._words.number)
        elif head in {":", "true", "false"}:
            self._status = head != "false"
        elif head == "shift":
            self._shift(int(bare[1]) if bare[1:] and bare[1].isdecimal() else 1)
        elif self.depth < _DEPTH and (inner := self._inner(bare)) is not None:
            yield from self._within(*inner)
        elif head == "read" and self._words.handed:
            self._words.variables[bare[-1]] = (self._words.handed,)
        else:
            yield self._command(command)
        self._words.handed = ""
        if self._status is not None:
            self._status = (self._status is not is_not) if self.follows else None

    def _shift(self, num: int) -> None:
        variables = self._words.variables
        left = variables.get("@", ())[num:]
        for place in range(len(left) + 1, len(left) + num + 1):
            variables.pop(str(place), None)
        variables |= _given(left)

    def _inner(self, words: Sequence[str]) -> tuple[str, Sequence[str] | None] | None:
        """Return the text that a command has the shell read, and what that is given.

        None: it has it read none; of a text that is given nothing, what the script itself is.
        """
        head, *rest = words
        if head in self.functions:
            return self.functions[head], rest
        if head == "eval":
            return " ".join(rest), None
        if head in _SHELLS and self._words.handed:
            return whole_lines(self._words.handed), None
        if head not in _SHELLS or not rest:
            return None
        if rest[0].startswith("-") and rest[0].endswith("c") and len(rest) > 1:
            return rest[1], None
        own = Path("".join(self._words.variables.get("0", ())))
        places = (Path(rest[0]), own.parent / rest[0])
        file = next((each for each in places if _is_script(str(each))), None)
        return None if file is None else (_text_of(file), rest[1:] or None)

    def _within(self, text: str, given: Sequence[str] | None) -> Iterator[Started]:
        """Read what a command has the shell read."""
        variables = self._words.variables
        outer = {name: variables.get(name) for name in (*"123456789@*#",)}
        if given is not None:
            for name in outer:
                variables.pop(name, None)
            variables |= _given(given)
        shell = _Shell(text, self._words, self._environment, self)
        yield from shell.commands()
        self.notes += shell.notes
        if given is not None:
            for name, value in outer.items():
                variables.pop(name, None)
                variables |= {} if value is None else {name: value}

    def _command(self, words: Sequence[str]) -> Started:
        """Return a command without what is unknown of it, with the flags before that.

        Its environment stands before it, of what was exported too.
        """
        if words[0] in DECLARES:
            self._environment |= exported(self._words.variables, words)
            return Started("", ())
        kept, left = list[str](), list[str]()
        for word in words:
            sources = [self._words.unknown[int(place)] for place in MARK.findall(word)]
            text = MARK.sub("", word)
            takes_flag = not text and kept and kept[-1].startswith("-")
            if takes_flag and sources and not GIVEN.intersection(sources):
                flag = kept.pop()
                sources.insert(0, f"{flag} ")
                kept += [flag, "gpu"] if flag in _COUNTED else []
            elif not sources or (text and not text.startswith("-")):
                kept.append(text)
            elif text.rstrip("=") in _COUNTED:
                kept.append(f"{text}gpu")
            if sources and text.startswith("-"):
                sources = [MARK.sub(lambda found: self._words.unknown[int(found[1])], word)]
            left += ["".join(sources)] * bool(sources)
        told = (f"{each} is left out: not known here" for each in dict.fromkeys(left))
        command = _stripped(kept)
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return Started(shell_words([*variables * bool(command), *command]), tuple(told))


def _stripped(words: Sequence[str]) -> list[str]:
    """Return a command without what is said before it, but its variables."""
    rest, variables = list(words), list[str]()
    while rest:
        runs = _RUNNERS.get(rest[0], 0)
        if ASSIGNED.match(rest[0]):
            variables.append(rest.pop(0))
        elif rest[0] in STARTERS:
            rest = rest[1:]
        elif runs:
            rest = rest[runs:]
            while rest and (rest[0][:1] in _OF_RUNNERS or MARK.fullmatch(rest[0])):
                rest = rest[1:]
        else:
            return [*variables, *rest]
    return []
