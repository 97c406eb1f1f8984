"""The leaves of somebody's settings file, each taken once, left to the planner, or not read."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.files.writing import read_whole
from brimful.programs.counted import LAUNCHED

AUTO = "auto"
NVME = "nvme"
_FLAGS_OF_SCALE = ("initial_scale", "growth_factor", "backoff_factor", "growth_interval")
_OF_ONE_MODEL = ("tp", "pp")
"""Degrees of one model, of which replicas take what is left."""
_DEPENDENT = {
    "precision": _FLAGS_OF_SCALE,
    "optimizer": ("beta1", "beta2", "epsilon"),
    "tokens": ("steps",),
    "schedule": ("warmup_steps",),
    "method": ("base", "adapter_dtype", "upcast"),
    **dict.fromkeys(("dp_replicate", *_OF_ONE_MODEL), ("dp_shard",)),
    "zero": ("dp_replicate", "dp_shard"),
    "dp_shard": ("dp_replicate",),
}
"""Flags that are no longer of use where the user typed another one."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A flag that a file says.

    Attributes:
        flag: As argparse calls it.
        value: As argparse would have read it.
        key: Where in the file it stands.
        is_each: Whether the value is that of one text in a micro-batch, and grows with them.
    """

    flag: str
    value: Any
    key: str
    is_each: bool = False


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says.

    Attributes:
        taken: Flags.
        left: Keys whose value is ``auto``.
        unread: Keys that are no part of a plan, each as ``key=value``.
        notes: What was read as something else than it says, in sentences.
        on_disk: Keys of what it keeps on NVMe, each with ``optimizer`` or ``param``.
        known: Keys that were looked for, there or not, each with the type of its value.
        second_copy: Devices that share a copy of the parameters more (ZeRO++'s hpZ); 0: none.
        stand_ins: What is planned in place of what it says, where that could turn a verdict.
        moves_shards: The key by which FSDP keeps shards of parameters on the host too; empty: none.
        beside_bytes: Of each parameter, what its GPU keeps beside what is planned.
        beside: What that is, in words.
        engine_settings: How DeepSpeed's engine shards, as a strategy says it; None: it does not.
    """

    taken: tuple[Taken, ...]
    left: tuple[str, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]
    on_disk: tuple[tuple[str, str], ...] = ()
    known: tuple[tuple[str, type], ...] = ()
    second_copy: int = 0
    stand_ins: tuple[str, ...] = ()
    moves_shards: str = ""
    beside_bytes: int = 0
    beside: str = ""
    engine_settings: str | None = None

    def joined(self, other: "Read", section: str = "") -> "Read":
        """Return what this file and another say; where both say a flag, as this one does.

        ``other``: what a file says that this one names, or a part of this one. ``section``: under
        which the other's keys are looked for; empty: they are not.
        """
        mine = {each.flag for each in self.taken}
        theirs = [(f"{section}.{key}", kind) for key, kind in other.known if section]
        return Read(
            taken=(*self.taken, *(each for each in other.taken if each.flag not in mine)),
            left=self.left + other.left,
            unread=self.unread + other.unread,
            notes=self.notes + other.notes,
            on_disk=self.on_disk + other.on_disk,
            known=(*self.known, *theirs),
            second_copy=self.second_copy or other.second_copy,
            stand_ins=self.stand_ins + other.stand_ins,
            moves_shards=self.moves_shards or other.moves_shards,
            beside_bytes=self.beside_bytes or other.beside_bytes,
            beside=self.beside or other.beside,
            engine_settings=self.engine_settings or other.engine_settings,
        )


class Leaves:
    """The leaves of a file by dotted key, each to be taken once; and what was made of them."""

    def __init__(self, path: Path, content: dict[str, Any], program: str) -> None:
        """Take a file's content."""
        self.path, self.program = path, program
        launched = content.get(LAUNCHED)
        self.is_launched = isinstance(launched, dict)
        self.rest = flat({name: x for name, x in content.items() if name != LAUNCHED})
        self.left: list[str] = []
        self.taken: list[Taken] = []
        self.notes: list[str] = []
        self.on_disk: list[tuple[str, str]] = []
        self.known: dict[str, type] = {}
        self.second_copy = 0
        self.stand_ins: list[str] = []
        self.moves_shards = ""
        self.beside_bytes = 0
        self.beside = ""
        self.engine_settings: str | None = None

    def has(self, section: str) -> bool:
        """Whether anything of a section is still there."""
        return any(key.startswith(f"{section}.") for key in self.rest)

    def take(self, key: str, kind: type, default: Any = None) -> Any:
        """Return a leaf; the default where it is missing or ``auto``."""
        self.known[key] = kind
        value = self.rest.pop(key, None)
        if value == AUTO:
            self.left.append(key)
            return default
        if value is None:
            return default
        is_number = (
            kind is float
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) <= sys.float_info.max
        )
        is_whole = kind is int and isinstance(value, float) and value.is_integer()
        if is_number or is_whole:
            return kind(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise FileFormatError(
                f"{self.path}: {key} is {json.dumps(value, default=str)} and {self.program} wants "
                f"{_NAMES[kind]} there; correct it"
            )
        return value

    def place(self, key: str, what: str) -> str:
        """Take where something is kept: ``cpu``, or ``none`` where the device keeps it.

        What is kept on NVMe passes through the host's memory, and is planned as if it stayed there.

        ``what``: is kept: ``optimizer`` or ``param``.
        """
        device = self.take(key, str, "none")
        if device == NVME:
            self.on_disk.append((key, what))
            return "cpu"
        if device not in {"none", "cpu"}:
            raise UnsupportedError(
                f"{self.path}: {key}={device} is not planned by this version, which keeps things "
                f"on the device or in host memory; use cpu or none"
            )
        return str(device)

    def say(self, flag: str, value: Any, key: str) -> None:
        """Take a flag, where there is a value."""
        if value is not None:
            self.taken.append(Taken(flag=flag, value=value, key=key))

    def say_shards_away(self, key: str) -> None:
        """Take FSDP's offload, which keeps the optimizer on the host and all that it updates."""
        self.say("offload", "optimizer", key)
        self.moves_shards = key

    def say_kept(self, kept: tuple[str, ...], key: str) -> None:
        """Take all that the host keeps, in place of what was said of it."""
        self.taken = [each for each in self.taken if each.flag != "offload"]
        self.say("offload", ",".join(kept), key)

    def accumulate(self, steps: int, num_devices: int, key: str) -> None:
        """Take how many micro-batches a step adds up, where nothing says how large one is."""
        if steps < 2:  # noqa: PLR2004 - which adds nothing up
            return
        batch = steps * num_devices
        self.taken.append(Taken(flag="global_batch", value=batch, key=key, is_each=True))
        self.notes.append(
            f"{key}={steps} says no batch: planned for {steps} times a text on each GPU, or "
            f"--micro-batch, {batch} of one text; --global-batch says another"
        )

    def cut_rows(self, parts: int, key: str, num_devices: int = 0) -> None:
        """Have rows that are cut among devices planned as rows of so many tokens, one on each.

        Each device has as many tokens then, and what it keeps of them.

        ``parts``: devices that share a row. ``num_devices``: of which they are; 0: who calls has
        looked whether there are such groups. Raises InputError: they do not divide its tokens, or
        there are no such groups of the devices.
        """
        if num_devices and (parts < 1 or num_devices % parts):
            raise InputError(
                f"{self.path}: {key}={parts} does not divide {num_devices} devices; give --gpus or "
                f"correct it"
            )
        if parts == 1:
            return
        many = "the tokens"
        for place, each in enumerate(self.taken):
            if each.flag == "seq_len":
                if each.value % parts:
                    raise InputError(
                        f"{self.path}: {key}={parts} does not divide {each.key}={each.value}; "
                        f"correct one"
                    )
                self.taken[place] = replace(each, value=each.value // parts)
                many = f"{each.value // parts:,} of {each.value:,} tokens"
        self.stand_ins.append(
            f"{key}={parts}: each GPU has {many} of a row, planned as a row of its own; attention "
            f"over whole rows is slower"
        )

    def read(self) -> Read:
        """Return what was made of the file."""
        unread = tuple(
            f"{key}={json.dumps(value, default=str)}" for key, value in self.rest.items()
        )
        return Read(
            taken=tuple(self.taken),
            left=tuple(self.left),
            unread=unread,
            notes=tuple(self.notes),
            on_disk=tuple(self.on_disk),
            known=tuple(self.known.items()),
            second_copy=self.second_copy,
            stand_ins=tuple(self.stand_ins),
            moves_shards=self.moves_shards,
            beside_bytes=self.beside_bytes,
            beside=self.beside,
            engine_settings=self.engine_settings,
        )


_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
}


def load_json(path: Path, program: str) -> dict[str, Any]:
    """Load a file of settings in JSON."""
    try:
        content = json.loads(read_whole(path).decode("utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); give {program}'s JSON"
        ) from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is no text in UTF-8; give {program}'s JSON") from error
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"{path} is no JSON: line {error.lineno}, column {error.colno}: {error.msg}; correct it"
        ) from error
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is no JSON of {program}'s (a number of thousands of digits, or thousands of "
            f"brackets); give another file"
        ) from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} holds no JSON object; {program}'s settings are one")
    return content


def find_file(leaves: Leaves, name: str) -> Path | None:
    """Find a file that is named from the folder of this one, one above, or the current one."""
    # Programs name it from where they are started, which is often the top of their checkout.
    places = [*(folder / name for folder in leaves.path.resolve().parents), Path(name)]
    return next((place for place in places if place.is_file()), None)


def named_file(leaves: Leaves, key: str, name: str, fix: str) -> Path:
    """Find a file that has to be there, as ``find_file`` does."""
    found = find_file(leaves, name)
    if found is None:
        raise InputError(
            f"{leaves.path}: {key} is {name}, and there is no such file beside it, above "
            f"or here; give its path, or {fix}"
        )
    return found


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a file's content by dotted key."""
    leaves: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves


def without(read: Read, typed: Mapping[str, Any]) -> tuple[list[Taken], list[str]]:
    """Part what a file says from what the user typed beside it, which wins.

    Returns what is taken, and sentences on what is not.
    """
    said = {each.flag: each.value for each in read.taken}
    other = [by for by in _DEPENDENT if by in typed and typed[by] != said.get(by)]
    gone = {flag: by for by in other for flag in _DEPENDENT[by]}
    resized = [by for by in _OF_ONE_MODEL if by in other]
    if resized and said.get("dp_shard") == 1:  # whole copies: as many as another degree leaves
        gone["dp_replicate"] = resized[0]
    kept, replaced = [], []
    for each in read.taken:
        by = each.flag if each.flag in typed else gone.get(each.flag)
        if by is None:
            kept.append(each)
        else:
            replaced.append(f"--{by.replace('_', '-')} stands in for {each.key}={each.value}")
    return kept, replaced
