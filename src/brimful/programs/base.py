"""Values that all programs share."""

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from brimful.errors import InputError, NotInstalledError
from brimful.text.escaping import shell_words, split_words

STEPS = Path(__file__).parent / "steps"
"""Where what runs a step of a program lies, for those that need something around them."""
_MOST, _DIGITS = 10**9, 10
"""No size, length or degree of a program is larger."""
_SHOWN = 40
"""Characters of a value that an error repeats."""
FOLDER = "<folder>"
"""Stands in arguments and files for the folder that a program's files are written to."""


def check_installed(whose: str, packages: Sequence[str], install: str = "pip install") -> None:
    """Refuse a program of which a package is missing.

    Raises InputError: one of them is not installed.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise NotInstalledError(
            f"{whose} runs here as it is, and {missing[0]} is not installed; "
            f"{install} {' '.join(missing)}"
        )


class Rank(NamedTuple):
    """A process that is run, and what it is.

    Attributes:
        rank: Its number in the world.
        words: What it does.
    """

    rank: int
    words: str


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that will be run on the pretend GPU.

    Attributes:
        name: How it is called.
        argv: The script and its arguments.
        world_size: Processes in its world.
        ranks: Which of them are run: one of each kind.
        assume: Packages of kernels that are stood in for.
        environment: Variables that are set for it.
        notes: What was left out or taken for granted, a sentence each.
        files: What is written beside it, each a path within ``FOLDER`` and a text.
    """

    name: str
    argv: tuple[str, ...]
    world_size: int
    ranks: tuple[Rank, ...]
    assume: tuple[str, ...]
    environment: dict[str, str]
    notes: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()


class Command(NamedTuple):
    """A command line as it was given.

    Attributes:
        script: What is run.
        arguments: The script's own.
        environment: Variables before it.
        num_processes: That a launcher starts; None: it is not said.
        notes: What reading it took for granted, a sentence each.
        keys: What a file that was read as it calls a flag; empty: flags.
        unread: What of that file is not read, and no byte hangs on, as key=value.
        launcher: What says how many processes there are; empty: nothing does.
    """

    script: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    num_processes: int | None
    notes: tuple[str, ...] = ()
    keys: Mapping[str, str] = MappingProxyType({})
    unread: tuple[str, ...] = ()
    launcher: str = ""

    def in_its_words(self, text: str) -> str:
        """Return a sentence of flags with what the file calls them."""
        if not self.keys:
            return text
        flags = "|".join(map(re.escape, sorted(self.keys, key=len, reverse=True)))
        return re.sub(rf"(?:{flags})(?![\w-])", lambda found: self.keys[found[0]], text)

    def as_assigned(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return flags as keys of the file that are assigned to; as they are, if there is none."""
        if not self.keys:
            return tuple(words)
        given = flags_of(words, self.script).values
        keys = [(self.keys.get(flag, flag), " ".join(value) or "true") for flag, value in given]
        return tuple(key if "=" in key else f"{key}={value}" for key, value in keys)


class RankPeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process took.

    Attributes:
        rank: Its number in the world.
        words: What it does.
        simulated_peak_allocated_bytes: Of live tensors, as ``torch.cuda`` counts blocks.
        simulated_peak_reserved_bytes: What the allocator held at most, by its replay.
        simulated_process_bytes: Of the process, as the driver says it: with the middle of what lies
            outside of the allocator, a group of all processes among it.
        fits: Whether the card has room for that.
        capacity_bytes: What the allocator can have there.
        unknown_ops: Operations whose kernels may take memory that nobody knows here.
        assumptions: What the run rests on.
    """

    rank: int
    words: str
    simulated_peak_allocated_bytes: int
    simulated_peak_reserved_bytes: int
    simulated_process_bytes: int
    fits: bool
    capacity_bytes: int
    unknown_ops: tuple[str, ...]
    assumptions: tuple[str, ...]


class Flags(NamedTuple):
    """A command line, flag by flag.

    Attributes:
        values: Of each flag, in order; a switch has none.
    """

    values: tuple[tuple[str, tuple[str, ...]], ...]

    def first(self, *names: str, default: int) -> int:
        """Return a flag's number; of a flag that is given twice the last, as argparse does."""
        found = [(flag, given) for flag, given in self.values if flag in names]
        if not found:
            return default
        flag, given = found[-1]
        digits = given[0].lstrip("0") if len(given) == 1 and given[0].isdecimal() else ""
        if not digits:
            shown = " ".join(given)[:_SHOWN]
            raise InputError(f"{flag} {shown} is no whole number of 1 or more; give one")
        if len(digits) > _DIGITS or int(digits) > _MOST:
            shown = given[0][:_SHOWN]
            raise InputError(f"{flag} {shown} is over {_MOST:,}, as nothing is; give less")
        return int(digits)

    def text(self, name: str) -> str:
        """Return a flag's value; empty: it is not there."""
        return next((" ".join(given) for flag, given in reversed(self.values) if flag == name), "")

    def share(self, name: str, *, default: float) -> float:
        """Return a flag's number, which may have a point."""
        text = self.text(name)
        try:
            return float(text) if text else default
        except ValueError:
            raise InputError(f"{name} {text} is no number; give one") from None

    def has(self, name: str) -> bool:
        """Whether a flag is there."""
        return any(flag == name for flag, _ in self.values)


def flags_of(words: Sequence[str], script: str) -> Flags:
    """Take a command line apart."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, is_given, value = word.partition("=")
            found.append((flag, [value] if is_given else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise InputError(f"{word} stands behind {script} and belongs to no flag; leave it out")
    return Flags(tuple((flag, tuple(given)) for flag, given in found))


class Shortened(str):
    """A command line without some flags of another.

    Attributes:
        left_out: The flags.
    """

    __slots__ = ("left_out",)
    left_out: tuple[str, ...]


def shortened(text: str, flags: Sequence[str]) -> Shortened:
    """Return a command line without some of its flags and what they are given."""
    kept = list[str]()
    is_left_out = False
    for word in split_words(text):
        if word.startswith("--"):
            is_left_out = word.partition("=")[0] in flags
        if not is_left_out:
            kept.append(word)
    line = Shortened(shell_words(kept))
    line.left_out = tuple(flags)
    return line


def as_mapping(flags: Flags) -> dict[str, object]:
    """Return a command line as a YAML of arguments has it: a switch is true."""
    return {
        flag: True if not given else given[0] if len(given) == 1 else list(given)
        for flag, given in flags.values
    }
