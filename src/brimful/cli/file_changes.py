"""What to change in a file of another program's settings: keys, and what comes of them.

A search finds what would fit, or be faster; which keys say so is asked of that program's exporter
and reader (``export/changed_keys.py``). What is told is of the file with those keys, planned anew
as ``plan --from`` of it would be.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.cli import flags, for_program, searching
from brimful.cli.output import host_may_fit, show_facts
from brimful.cli.sources import take_source
from brimful.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from brimful.export.changed_keys import Change, Changed
    from brimful.search.solve import Solution
    from brimful.values.job import Job
    from brimful.values.plan import Plan

MOST, MOST_TIGHT = 2, 1
"""Changes that are told of a file that does not fit, and of one that may."""
LONGEST_S = 20.0
"""After which nothing else is tried."""
MOST_TRIES = 3
"""Searches of one change, each within what keys of the file said the last time."""
LEAST_GAIN = 1.05
"""How much faster another file has to be to be told."""
_STAY = frozenset({"reference", "engine", "compile", "allocator", "optimizer_in_backward"})
"""What is left as the file has it."""
_LABEL = "change"


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file with other keys, planned.

    Attributes:
        keys: That change.
        is_tight: Whether it may fit rather than fits.
        step_s: Of a step, predicted; None: unknown.
        times: How many times as fast as the file as it stands; None where that does not fit.
        price: Why not the same is learnt; empty: it is.
        words: All of it in a line.
    """

    keys: "tuple[Change, ...]"
    is_tight: bool
    step_s: float | None
    times: float | None
    price: str
    words: str


def tell_changes(
    args: argparse.Namespace, found: "Solution", word: str | None
) -> tuple[FileChange, ...]:
    """Print what to change in the file that was read, each as soon as it is found.

    Args:
        args: The flags.
        found: What the file says, planned.
        word: What its replay or its proof said.
    """
    if getattr(args, "typed", None) is None or found.plan.estimate is None:
        return ()
    fits = found.record.rows[0].fits and word not in {"tight", "no"}
    most = 1 if fits else MOST_TIGHT if word == "tight" else MOST
    told = list[FileChange]()
    every = _faster(args, found) if fits else _fitting(args, found, is_tight=word == "tight")
    for each in every:
        told.append(each)
        if not args.json:
            from brimful.show.summary import Fact

            show_facts(Fact(_LABEL if len(told) == 1 else "", each.words))
        if len(told) == most:
            break
    return tuple(told)


def _faster(args: argparse.Namespace, found: "Solution") -> Iterator[FileChange]:
    """Yield what is faster with other settings, where all that it needs was traced."""
    now = found.record.rows[0].step_s
    freed = _freed(args, found.plan, {})
    if freed is None or not now or searching.is_untraced(freed):
        return
    changed = _changed(args, freed, found.plan, {}, ("", now))
    if changed is not None and changed.times and changed.times >= LEAST_GAIN:
        yield changed


def _fitting(
    args: argparse.Namespace, found: "Solution", *, is_tight: bool
) -> Iterator[FileChange]:
    """Yield what fits: with other settings, then what its owner could allow.

    Args:
        args: The flags.
        found: What the file says, planned.
        is_tight: Whether it may fit as it is: then what may fit too is no better.
    """
    from brimful.search.ways_out import has_room

    until = time.monotonic() + LONGEST_S
    for typed, price, job in _allowed(found.plan.job):
        if time.monotonic() > until:
            return
        if not has_room(job, found.plan.cluster):
            continue
        freed = _freed(args, found.plan, typed)
        if freed is None:
            continue
        changed = _changed(args, freed, found.plan, typed, (price, None))
        if changed is not None and not (is_tight and changed.is_tight):
            yield changed
            if not price:
                return


def _allowed(job: "Job") -> "Iterator[tuple[dict[str, Any], str, Job]]":
    """Yield flags, why not the same is learnt with them, and the job: what changes least first."""
    from brimful.search.offers import offers, plainest, pure_and_rounded
    from brimful.search.ways_out import MIN_SEQ_LEN

    yield {}, "", job
    made = {offer.allow: offer for offer in offers(job)}
    for allow in plainest(made):
        yield _typed(allow), made[allow].price, made[allow].job
    length = job.seq_len // 2
    while length >= MIN_SEQ_LEN:
        shorter = msgspec.structs.replace(job, seq_len=length)
        yield {"seq_len": length}, "texts are cut shorter", shorter
        length //= 2
    if (both := pure_and_rounded(job)) is not None:
        yield _typed(both.allow), both.price, both.job


def _typed(allow: str) -> dict[str, Any]:
    names, values = allow.split()[::2], allow.split()[1::2]
    flagged = zip(names, values, strict=True)
    return {name.removeprefix("--").replace("-", "_"): value for name, value in flagged}


def _variant(
    args: argparse.Namespace, typed: Mapping[str, Any], content: dict[str, Any] | None = None
) -> argparse.Namespace:
    """Return the flags as if something else had been typed, or stood in the file."""
    quiet = {"json": True, "verbose": False, "output": None, "page": None}
    new = argparse.Namespace(**{**args.typed, **quiet, **typed})
    take_source(new, content)
    return new


def _freed(
    args: argparse.Namespace, plan: "Plan", typed: Mapping[str, Any]
) -> argparse.Namespace | None:
    """Return the flags without the settings that the file says, within what its keys can say."""
    try:
        new = _variant(args, typed)
        for name in {*flags.STRATEGY} - _STAY:
            if name not in typed and args.typed.get(name) is None:
                setattr(new, name, None)
        for_program.narrow_wholly(new, plan)
    except (InputError, UnsupportedError):
        return None
    return new


def _searched(args: argparse.Namespace) -> "Solution | None":
    """Return what a search finds, if it holds."""
    from brimful.process.library_output import quiet_libraries
    from brimful.search.budget import Budget
    from brimful.search.ways_out import reserved_word

    quiet_libraries()
    try:
        found = searching.search(args, Budget(args.budget))
    except (InputError, UnsupportedError):
        return None
    made = found.plan.estimate
    holds = made is not None and found.record.rows[0].fits and reserved_word(made) != "no"
    return found if holds and host_may_fit(made.host if made else None) else None


def _changed(
    args: argparse.Namespace,
    freed: argparse.Namespace,
    before: "Plan",
    typed: Mapping[str, Any],
    told: tuple[str, float | None],
) -> FileChange | None:
    """Search what is free and return it as keys of the file, planned as the file with them says.

    What no key says stays as the file has it, and the rest is searched again.

    Args:
        args: The flags.
        freed: The same without settings that the file says.
        before: What the file says, planned.
        typed: What the owner could allow.
        told: Why not the same is learnt then, and a step's seconds as it stands, where it fits.

    Returns:
        None: nothing holds that the file can say.
    """
    from brimful.export.changed_keys import changed_keys

    stands = _variant(args, {})
    for _ in range(MOST_TRIES):
        found = _searched(freed)
        if found is None:
            return None
        try:
            changed = changed_keys(args.source, before, found.plan, frozenset(typed))
        except (InputError, UnsupportedError):
            return None
        stay = {
            name: getattr(stands, name)
            for name in {*flags.STRATEGY} & {*changed.missed}
            if getattr(stands, name) not in (None, getattr(freed, name))
        }
        if not stay:
            break
        vars(freed).update(stay)
    if not changed.changes or {*typed} & {*changed.missed}:
        return None
    return _as_file(args, changed, *told)


def _as_file(
    args: argparse.Namespace, changed: "Changed", price: str, now: float | None
) -> FileChange | None:
    """Plan what a file says with other keys; None: that does not hold."""
    from brimful.search.ways_out import reserved_word

    try:
        new = _variant(args, {}, changed.content)
        for_program.narrow(new)
    except (InputError, UnsupportedError):
        return None
    found = _searched(new)
    if found is None:
        return None
    made, step_s = found.plan.estimate, found.record.rows[0].step_s
    is_tight = made is not None and reserved_word(made) == "tight"
    times = now / step_s if now and step_s else None
    return FileChange(
        keys=changed.changes,
        is_tight=is_tight,
        step_s=step_s,
        times=times,
        price=price,
        words=_words(args, found.plan, changed.changes, (price, is_tight, step_s, times)),
    )


def _words(
    args: argparse.Namespace,
    plan: "Plan",
    keys: "tuple[Change, ...]",
    came: tuple[str, bool, float | None, float | None],
) -> str:
    """Say which keys, and what comes of them."""
    from brimful.programs.settings import name_of
    from brimful.show.run import rate_words

    price, is_tight, step_s, times = came
    by_file: dict[str, list[str]] = {}
    for each in keys:
        by_file.setdefault(each.file or name_of(args.source), []).append(key_words(each))
    said = (f"{file}: {', '.join(words)}" for file, words in by_file.items())
    how = "would be tight" if is_tight else "would fit"
    if times:
        how = f"{times:.2g} x as fast"
    rate = f", {rate_words(plan.job, step_s)}" if step_s else ""
    why = f" ({price}: it changes what is learnt)" if price else ""
    return f"{'; '.join(said)}: {how}{rate}, predicted{why}"


def key_words(change: "Change") -> str:
    """Say one key: what it says, and what it would have to say."""
    new, old = _value(change.new), _value(change.old)
    if change.new is None:
        return f"no {change.key} ({old} now)"
    return f"{change.key}: {new} (new)" if change.old is None else f"{change.key}: {old} -> {new}"


def _value(value: Any) -> str:
    """Write a value as its file has it, near enough."""
    from brimful.text.escaping import json_text

    return value if isinstance(value, str) else json_text(value).strip()
