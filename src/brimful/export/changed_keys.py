"""Which keys of another program's file say another plan, and what each would have to say.

Nothing is listed by file or program: its exporter says how it spells a plan, and its reader what
comes of a key. So a change is what the exporter writes in another way, or a key that the reader
looks for; and it counts if the file, read with it, says the flags of the other plan.
"""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export import TARGETS, deepspeed
from brimful.export.given import Given
from brimful.export.leaves import Leaves, Read, find_file, flat, load_json
from brimful.export.read_source import content_of, program_of, read_source
from brimful.export.shipped_settings import shipped
from brimful.export.told import plainer
from brimful.export.trainer_leaves import DEEPSPEED
from brimful.values.job import Job
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy, num_micro_batches

_GIVEN = Given(plan="plan.yaml", data="DATA", out="OUT")
_OF_ADAPTERS = {
    "method": "", "base": "base", "lora_rank": "rank", "lora_alpha": "alpha",
    "lora_targets": "targets", "trained_modules": "trained_modules",
}  # fmt: skip
"""Flags of what trains, each with the adapters' field."""
_THEIR_OWN = frozenset({"adapter_dtype", "upcast", "accumulate"})
"""Flags that follow from others in a program of its own."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One key that would say something else.

    Attributes:
        key: Dotted, as it stands in the file.
        old: What it says; None: it is not there.
        new: What it would have to say; None: it has to go.
        file: Where it stands, if that is a file which the first one names.
    """

    key: str
    old: Any
    new: Any
    file: str = ""


class Changed(NamedTuple):
    """A file that says another plan.

    Attributes:
        changes: Keys, in the order in which the file has them.
        content: The file with them.
        missed: Flags of the plan that no key of the file says.
    """

    changes: tuple[Change, ...]
    content: dict[str, Any]
    missed: tuple[str, ...]


class _File(NamedTuple):
    """A file of settings, opened.

    Attributes:
        path: Of it.
        leaves: Its leaves by dotted key, with those of a file of DeepSpeed's that it names.
        named: That file; empty: there is none.
        num_devices: That it is planned for.
        num_layers: Blocks of the model.
    """

    path: Path
    leaves: dict[str, Any]
    named: str
    num_devices: int
    num_layers: int

    def read(self, leaves: Mapping[str, Any]) -> Read:
        """Read it as if it said so."""
        content = nested(leaves)
        return read_source(
            self.path, num_devices=self.num_devices, num_layers=self.num_layers, content=content
        )


def changed_keys(
    path: Path, before: Plan, after: Plan, learnt: frozenset[str] = frozenset()
) -> Changed:
    """Return which keys of a file say another plan.

    ``path``: of the file, which says the first plan. ``after``: the other, of the same model on the
    same devices. ``learnt``: flags of the job that are to be another; all others stay as the file
    has them. Raises FileFormatError: the file cannot be read. Raises InputError: its numbers do not
    go together. Raises UnsupportedError: it is not planned by this version.
    """
    file = _opened(path, before)
    first = file.read(file.leaves)
    wanted = _said(first) | _wanted(before, after, learnt)
    misses = _counter(file, wanted)
    values = (*_values(after), *wanted.values())
    known = dict(first.known)
    every = (dict(file.leaves), *_proposed(file, before, after))
    proposed = min(every, key=lambda each: len(misses(each)))
    spelled = {
        key for key in _differing(file.leaves, proposed) if key in known and proposed.get(key)
    }
    leaves = _mended(proposed, misses, known, values)
    leaves = _pruned(file.leaves, leaves, misses, stay=spelled)
    order = {key: place for place, key in enumerate((*file.leaves, *leaves))}
    keys = sorted(_differing(file.leaves, leaves), key=order.__getitem__)
    return Changed(
        tuple(_change(file, key, leaves.get(key)) for key in keys),
        nested(leaves),
        tuple(sorted(misses(leaves))),
    )


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return content of dotted keys."""
    content: dict[str, Any] = {}
    for key, value in leaves.items():
        *above, name = key.split(".")
        place = content
        for each in above:
            place = place.setdefault(each, {})
        place[name] = copy.copy(value)
    return content


def _opened(path: Path, plan: Plan) -> _File:
    content = content_of(path)
    name = content.get(DEEPSPEED)
    sizes = (plan.cluster.num_devices, plan.job.model.num_layers)
    if not isinstance(name, str):
        return _File(path, flat(content), "", *sizes)
    found = find_file(Leaves(path, {}, DEEPSPEED), name)
    own = shipped(name)
    if found is not None:
        inside = load_json(found, "DeepSpeed")
    elif own is not None:
        inside = own.settings
    else:
        return _File(path, flat(content), "", *sizes)
    return _File(path, flat(content | {DEEPSPEED: inside}), name, *sizes)


def _change(file: _File, key: str, new: Any) -> Change:
    own = key.removeprefix(f"{DEEPSPEED}.")
    is_named = bool(file.named) and own != key
    named = {"key": own, "file": file.named} if is_named else {"key": key}
    return Change(old=file.leaves.get(key), new=new, **named)


def _said(read: Read) -> dict[str, Any]:
    """Return flags as a file says them, those that follow from others left out."""
    return {each.flag: each.value for each in read.taken if each.flag not in _THEIR_OWN}


def _flags(plan: Plan) -> dict[str, Any]:
    """Return a plan as flags."""
    job, adapter = plan.job, plan.job.adapter
    found = {**msgspec.structs.asdict(job), **msgspec.structs.asdict(plan.strategy)}
    found["steps"] = job.num_steps
    for flag, field in _OF_ADAPTERS.items():
        if field:
            value = None if adapter is None else getattr(adapter, field)
            found[flag] = ",".join(value) if isinstance(value, tuple) else value
    return found


def _wanted(before: Plan, after: Plan, learnt: frozenset[str]) -> dict[str, Any]:
    """Return the flags that the other plan says in another way, of a job those that may be."""
    was, will = _flags(before), _flags(after)
    may_differ = {*Strategy.__struct_fields__, *learnt} - _THEIR_OWN - {"allocator"}
    if "method" in learnt:
        may_differ |= {*_OF_ADAPTERS}
    return {flag: will[flag] for flag in may_differ if will[flag] != was[flag]}


def _counter(file: _File, wanted: Mapping[str, Any]) -> Any:
    """Return what tells which flags some leaves do not say, all where they cannot be read."""
    known: dict[str, frozenset[str]] = {}

    def misses(leaves: Mapping[str, Any]) -> frozenset[str]:
        name = repr(sorted(leaves.items(), key=lambda pair: pair[0]))
        if name not in known:
            try:
                said = _said(file.read(leaves))
            except (FileFormatError, InputError, UnsupportedError):
                known[name] = frozenset({*wanted, "(cannot be read)"})
            else:
                known[name] = frozenset(
                    flag for flag, value in wanted.items() if not _is_met(value, said.get(flag))
                )
        return known[name]

    return misses


def _is_met(wanted: Any, said: Any) -> bool:
    """Whether a file says a value, or leaves it open where none is wanted."""
    if said is None:
        return wanted is None or wanted is False or wanted == "none"
    chosen = said if isinstance(said, list) else [said]
    return wanted == said or wanted in chosen


def _proposed(file: _File, before: Plan, after: Plan) -> Iterator[dict[str, Any]]:
    """Yield a file's leaves with what an exporter writes in another way, its own and DeepSpeed's.

    Of a job that the program is not told by ``export``, what a plainer one has in another way.
    """
    for of in (lambda job: job, plainer):
        found = dict(file.leaves)
        for target, prefix in _targets(file):
            spelled = [_spelled(target, plan, of(plan.job)) for plan in (before, after)]
            if None in spelled:
                continue
            was, will = spelled
            for key in _differing(was, will):  # type: ignore[arg-type]
                there = found.pop(prefix + key, None)
                if key in will:  # type: ignore[operator]
                    found[prefix + key] = _beside(there, will[key])  # type: ignore[index]
        yield found


def _beside(there: Any, new: Any) -> Any:
    """Return what a key says then: to a list, as of plugins, is added what it has not."""
    if not isinstance(there, list) or not isinstance(new, list):
        return new
    return [*there, *(each for each in new if each not in there)]


def _targets(file: _File) -> tuple[tuple[str, str], ...]:
    """Return the exporters that spell a plan in a file, each with what stands before its keys.

    A program that nothing is written for has none: what its reader looks for is all that is tried.
    """
    name = program_of(file.path)
    whole = ((name, ""),) if name in TARGETS else ()
    section = f"{DEEPSPEED}."
    has_deepspeed = any(key.startswith(section) for key in file.leaves)
    return (*whole, (deepspeed.TO, section)) if has_deepspeed else whole


def _spelled(target: str, plan: Plan, job: Job) -> dict[str, Any] | None:
    """Return how an exporter says a plan; None: it does not, or in no file of keys."""
    asked = msgspec.structs.replace(plan, job=job)
    try:
        settings = TARGETS[target](asked, _GIVEN).settings
    except UnsupportedError:
        return None
    return None if settings is None else flat(settings)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


def _values(plan: Plan) -> tuple[Any, ...]:
    """Return what a key may have to say, as a number or a word."""
    return (num_micro_batches(plan.job, plan.strategy), *_flags(plan).values())


def _mended(
    leaves: dict[str, Any], misses: Any, known: Mapping[str, type], values: tuple[Any, ...]
) -> dict[str, Any]:
    """Change one key at a time while that says more of what is wanted, and two where none does.

    Of two the first says something that is wanted, and takes something else back.
    """
    while lacking := misses(leaves):
        every = _neighbours(leaves, known, values)
        best = min(every, key=lambda each: len(misses(each)), default=leaves)
        if len(misses(best)) >= len(lacking):
            helpful = (one for one in _neighbours(leaves, known, values) if lacking - misses(one))
            pairs = (two for one in helpful for two in _neighbours(one, known, values))
            best = min(pairs, key=lambda each: len(misses(each)), default=leaves)
        if len(misses(best)) >= len(lacking):
            break
        leaves = best
    return leaves


def _neighbours(
    leaves: dict[str, Any], known: Mapping[str, type], values: tuple[Any, ...]
) -> Iterator[dict[str, Any]]:
    """Yield leaves with one key changed: those that are there first."""
    for key in {**leaves, **dict(known)}:
        if key not in leaves and not _has_place(key, leaves):
            continue
        value = leaves.get(key)
        kind = known.get(key, type(value))
        if value is not None:
            yield {each: other for each, other in leaves.items() if each != key}
        if kind is bool:
            yield {**leaves, key: not value}
            continue
        if kind not in {int, float, str}:
            continue
        for other in dict.fromkeys(each for each in values if type(each) is kind):
            if other != value:
                yield {**leaves, key: other}


def _has_place(key: str, leaves: Mapping[str, Any]) -> bool:
    """Whether a key can stand beside leaves: none of them is a part of its path, or has it as one.

    A program may read a switch or a section of a name (``compile``, ``compile.model``).
    """
    parts = key.split(".")
    paths = {".".join(parts[:num]) for num in range(1, len(parts))}
    return not paths & {*leaves} and not any(each.startswith(f"{key}.") for each in leaves)


def _pruned(
    first: Mapping[str, Any], leaves: dict[str, Any], misses: Any, *, stay: set[str]
) -> dict[str, Any]:
    """Leave every key as it was that need not change, but for what an exporter writes.

    A program may ask for a key that follows from another here (``load_in_4bit`` of QLoRA).
    """
    lacking = misses(leaves)
    for key in _differing(first, leaves):
        tried = dict(leaves)
        tried.pop(key, None)
        if key in first:
            tried[key] = first[key]
        if key not in stay and misses(tried) <= lacking:
            leaves = tried
    return leaves


def spelled_by(path: Path, plan: Plan) -> tuple[str, ...]:
    """Return the exporters that write a plan in keys of a file: its program's, DeepSpeed's within.

    Raises FileFormatError: the file cannot be read.
    """
    targets = _targets(_opened(path, plan))
    return tuple(target for target, _ in targets if _spelled(target, plan, plan.job) is not None)


def sayable(path: Path, plan: Plan, flags: Mapping[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Return which values of flags a file can say by one key; no flag that it can say wholly.

    Raises FileFormatError: the file cannot be read. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: it is not planned by this version.
    """
    file = _opened(path, plan)
    first = file.read(file.leaves)
    values = tuple(value for each in flags.values() for value in each)
    found: dict[str, list[Any]] = {flag: [] for flag in flags}
    for leaves in (file.leaves, *_neighbours(file.leaves, dict(first.known), values)):
        try:
            said = _said(file.read(leaves))
        except (FileFormatError, InputError, UnsupportedError):
            continue
        for flag, asked in flags.items():
            found[flag] += [
                value
                for value in asked
                if value not in found[flag] and _is_met(value, said.get(flag))
            ]
    return {flag: every for flag, every in found.items() if 0 < len(every) < len(flags[flag])}
