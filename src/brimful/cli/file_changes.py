"""What to change in a file of another program's settings: keys, and what comes of them.

A search finds what would fit, or be faster; which keys say so is asked of that program's exporter
and reader (``export/changed_keys.py``). What is told is of the file with those keys, planned anew
as ``plan --from`` of it would be.
"""

import argparse
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from brimful.cli import flags, for_program, searching
from brimful.cli.output import host_may_fit, show_facts
from brimful.cli.run_length import is_length_said
from brimful.cli.sources import take_source
from brimful.errors import InputError, OutOfTimeError, UnsupportedError
from brimful.search.budget import Budget
from brimful.units import format_bytes, format_days

if TYPE_CHECKING:
    from brimful.export.changed_keys import Change, Changed
    from brimful.search.solve import Solution
    from brimful.values.job import Job, Precision
    from brimful.values.plan import Plan

MOST, MOST_TIGHT = 2, 1
"""Changes that are told of a file that does not fit, and of one that may."""
LONGEST_S = 20.0
"""After which nothing else is tried, and nothing else simulated."""
MOST_TRIES = 3
"""Searches of one change, each within what keys of the file said the last time."""
LEAST_GAIN = 1.05
"""How much faster another file has to be to be told."""
_STAY = frozenset({
    "reference", "engine", "fsdp", "compile", "allocator", "optimizer_in_backward", "loss_chunks",
})  # fmt: skip
"""What is left as the file has it."""
_LABEL = "change"
_DAY_S = 86400.0


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file with other keys, planned.

    Attributes:
        keys: That change.
        is_tight: Whether it may fit rather than fits.
        step_s: Of a step, predicted; None: unknown.
        times: How many times as fast as the file as it stands; None where that does not fit.
        price: Why not the same is learnt; empty: it is.
        words: All of it in a line.
        keeps_batch: Whether as many texts are at once on a GPU as the file has them.
    """

    keys: "tuple[Change, ...]"
    is_tight: bool
    step_s: float | None
    times: float | None
    price: str
    words: str
    keeps_batch: bool = True


class _Asked(NamedTuple):
    """What is asked of a file.

    Attributes:
        args: The flags.
        plan: What the file says, planned.
        budget: Of all searches together.
    """

    args: argparse.Namespace
    plan: "Plan"
    budget: Budget


def tell_changes(
    args: argparse.Namespace, found: "Solution", word: str | None
) -> tuple[FileChange, ...]:
    """Print what to change in the file that was read, each as soon as it is found."""
    if getattr(args, "typed", None) is None or found.plan.estimate is None:
        return ()
    fits = found.record.rows[0].fits and word not in {"tight", "no"}
    most = 1 if fits else MOST_TIGHT if word == "tight" else MOST
    told = list[FileChange]()
    asked = _Asked(args, found.plan, Budget(min(LONGEST_S, args.budget or LONGEST_S)))
    now = found.record.rows[0].step_s
    every = _faster(asked, now) if fits else _fitting(asked, is_tight=word == "tight")
    for each in every:
        told.append(each)
        if not args.json:
            from brimful.show.summary import Fact

            show_facts(Fact(_LABEL if len(told) == 1 else "", each.words))
        if len(told) == most:
            break
    return tuple(told)


def _faster(asked: _Asked, now: float | None) -> Iterator[FileChange]:
    """Yield what is faster with other settings, where all that it needs was traced.

    ``now``: seconds of a step as the file has it; None: unknown.
    """
    if native := _native(asked.plan):
        freed = _freed(asked, native.typed)
        changed = None
        if freed is not None:
            changed = _changed(asked, freed, native.typed, price=native.price)
        if changed is not None:
            yield changed
            return
    freed = _freed(asked, {})
    if freed is None or not now:
        return
    try:
        if searching.is_untraced(freed):
            return
    except (InputError, UnsupportedError):  # as of a batch that is for fewer than all GPUs
        return
    changed = _changed(asked, freed, {}, now=now)
    if changed is not None and changed.times and changed.times >= LEAST_GAIN:
        yield changed


def _fitting(asked: _Asked, *, is_tight: bool) -> Iterator[FileChange]:
    """Yield what fits: with other settings, then what its owner could allow.

    ``is_tight``: whether it may fit as it is: then what may fit too is no better.
    """
    for typed, price, job in _allowed(asked.plan):
        if not asked.budget.left_s:
            return
        freed = _with_room(asked, typed, job)
        if freed is None:
            continue
        changed = _changed(asked, freed, typed, price=price)
        if changed is not None and not (is_tight and changed.is_tight):
            if price or changed.keeps_batch:
                yield changed
            else:
                yield from _with_batch(asked, changed)
            if not price:
                return


def _with_batch(asked: _Asked, smaller: FileChange) -> Iterator[FileChange]:
    """Yield what takes fewer texts at once and what keeps them; what fits for sure comes first."""
    if not smaller.is_tight:
        yield smaller
        yield from islice(_keeping_batch(asked), 1)
        return
    other = next(_keeping_batch(asked), None)
    pair = [smaller] if other is None else [smaller, other]
    yield from sorted(pair, key=lambda each: each.is_tight or bool(each.price))


def _keeping_batch(asked: _Asked) -> Iterator[FileChange]:
    """Yield what fits with as many texts at once, and what its owner could allow for that."""
    for typed, price, job in _allowed(asked.plan):
        if not asked.budget.left_s or "seq_len" in typed:
            return
        freed = _with_room(asked, typed, job)
        if freed is None:
            continue
        freed.micro_batch = asked.plan.strategy.micro_batch
        changed = _changed(asked, freed, typed, price=price)
        if changed is not None and changed.keeps_batch:
            yield changed


class _Allowed(NamedTuple):
    """What could be allowed.

    Attributes:
        typed: Flags.
        price: Why not the same is learnt with them; empty: it is.
        job: The job with them.
    """

    typed: dict[str, Any]
    price: str
    job: "Job"


def _native(plan: "Plan") -> _Allowed | None:
    """Return the recipe of as many bits that a card has units for, where the file's is emulated."""
    from brimful.cli.usual import place_of
    from brimful.techniques.kernel_support import why_emulated

    job, place = plan.job, place_of(plan.cluster.device)
    other = cast("Precision", job.precision.replace("bf16", "fp16"))
    if why_emulated(job.precision, place) is None or why_emulated(other, place) is not None:
        return None
    changed = msgspec.structs.replace(job, precision=other)
    return _Allowed({"precision": other}, f"{job.precision} is emulated on this card", changed)


def _allowed(plan: "Plan") -> Iterator[_Allowed]:
    """Yield what could be allowed: what changes least first."""
    from brimful.search.offers import offers, plainest, pure_and_rounded
    from brimful.search.ways_out import MIN_SEQ_LEN

    job = plan.job
    if native := _native(plan):
        yield native
    yield _Allowed({}, "", job)
    made = {offer.allow: offer for offer in offers(job)}
    for allow in plainest(made):
        yield _Allowed(_typed(allow), made[allow].price, made[allow].job)
    length = job.seq_len // 2
    while length >= MIN_SEQ_LEN:
        shorter = msgspec.structs.replace(job, seq_len=length)
        yield _Allowed({"seq_len": length}, "texts are cut shorter", shorter)
        length //= 2
    if (both := pure_and_rounded(job)) is not None:
        yield _Allowed(_typed(both.allow), both.price, both.job)


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
    asked: _Asked, typed: Mapping[str, Any], *, fuses: bool = False
) -> argparse.Namespace | None:
    """Return the flags without the settings that the file says, within what its keys can say.

    ``fuses``: whether fused kernels are looked at too, which a program brings along: they are
    traced for it, which what fits already is not worth.
    """
    try:
        new = _variant(asked.args, typed)
        for name in {*flags.STRATEGY} - _STAY:
            if name not in typed and asked.args.typed.get(name) is None:
                setattr(new, name, None)
        for_program.narrow_wholly(new, asked.plan)
        new.fuses = fuses
    except (InputError, UnsupportedError):
        return None
    return new


def _with_room(asked: _Asked, typed: Mapping[str, Any], job: "Job") -> argparse.Namespace | None:
    """Return ``_freed`` where what stays on the devices has room, with what may be on the host."""
    from brimful.search.ways_out import has_room
    from brimful.techniques.offload import NONE

    freed = _freed(asked, typed, fuses=True)
    if freed is None:
        return None
    stays = getattr(freed, "offload", None) == NONE
    return freed if has_room(job, asked.plan.cluster, with_optimizer=stays) else None


def _searched(args: argparse.Namespace, budget: Budget) -> "Solution | None":
    """Return what a search finds, if it holds."""
    from brimful.process.library_output import quiet_libraries
    from brimful.search.tries import reserved_word

    quiet_libraries()
    try:
        found = searching.search(args, budget)
    except (InputError, OutOfTimeError, UnsupportedError):
        return None
    made = found.plan.estimate
    holds = made is not None and found.record.rows[0].fits and reserved_word(made) != "no"
    return found if holds and host_may_fit(made.host if made else None) else None


def _changed(
    asked: _Asked,
    freed: argparse.Namespace,
    typed: Mapping[str, Any],
    *,
    price: str = "",
    now: float | None = None,
) -> FileChange | None:
    """Search what is free and return it as keys of the file, planned as the file with them says.

    What no key says stays as the file has it, and the rest is searched again.

    ``freed``: the flags without settings that the file says. ``price``: why not the same is learnt
    then; empty: it is. ``now``: seconds of a step as the file stands, where it fits. Returns None:
    nothing holds that the file can say.
    """
    from brimful.export.changed_keys import changed_keys

    stands = _variant(asked.args, {})
    for _ in range(MOST_TRIES):
        found = _searched(freed, asked.budget)
        if found is None:
            return None
        try:
            changed = changed_keys(asked.args.source, asked.plan, found.plan, frozenset(typed))
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
    return _as_file(asked, changed, price, now)


def _as_file(asked: _Asked, changed: "Changed", price: str, now: float | None) -> FileChange | None:
    """Plan what a file says with other keys; None: that does not hold."""
    from brimful.search.tries import reserved_word
    from brimful.show.beside import on_host

    try:
        new = _variant(asked.args, {}, changed.content)
        for_program.narrow(new)
    except (InputError, UnsupportedError):
        return None
    found = _searched(new, asked.budget)
    if found is None:
        return None
    made, step_s = found.plan.estimate, found.record.rows[0].step_s
    without_words = FileChange(
        keys=changed.changes,
        is_tight=made is not None and reserved_word(made) == "tight",
        step_s=step_s,
        times=now / step_s if now and step_s else None,
        price=price,
        words="",
        keeps_batch=found.plan.strategy.micro_batch >= asked.plan.strategy.micro_batch,
    )
    host = "" if made is None else on_host(made, found.plan.strategy)
    peak = "" if made is None else ", {} of {}".format(*map(format_bytes, made.told_peak))
    job = found.plan.job
    took = f", {_took_words(job, step_s)}" if step_s and is_length_said(new) else ""
    words = _words(asked.args.source, job, without_words, peak, f"{took}{host}")
    return msgspec.structs.replace(without_words, words=words)


def _took_words(job: "Job", step_s: float) -> str:
    """Say how long a file's own number of steps takes."""
    return f"{format_days(job.num_steps * step_s / _DAY_S)} for its {job.num_steps:,} steps"


def _words(source: Path, job: "Job", change: FileChange, peak: str, more: str) -> str:
    """Say which keys, and what comes of them.

    ``peak``: what it takes of what there is. ``more``: how long, and what the host holds.
    """
    from brimful.programs.settings import name_of
    from brimful.show.run import rate_words

    by_file: dict[str, list[str]] = {}
    for each in change.keys:
        by_file.setdefault(each.file or name_of(source), []).append(key_words(each))
    said = (f"{file}: {', '.join(words)}" for file, words in by_file.items())
    how = f"would {'be tight' if change.is_tight else 'fit'}"
    if change.times:
        how = f"{change.times:.2g} x as fast"
    rate = f", {rate_words(job, change.step_s)}" if change.step_s else ""
    why = f" ({change.price}: it changes what is learnt)" if change.price else ""
    return f"{'; '.join(said)}: {how}{peak}{rate}{more}, predicted{why}"


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
