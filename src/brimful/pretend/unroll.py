"""Unrolling a tape: from a few blocks to all, from a few micro-batches or steps to many.

A model's blocks are alike, so a tape of few tells the tape of many: copies of a unit are put
between it and the next, wherever the tape goes through the units. Two neighbours are compared
event by event first; what does not repeat exactly is refused, and the caller traces it in full.
Knows nothing of models: ``depth.py`` says which blocks a shallow one keeps.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from brimful.errors import UnsupportedError
from brimful.pretend.alike import Kinds, Pair, difference, pair_of
from brimful.pretend.blocks import (
    NO_UNIT,
    Pattern,
    Units,
    block_of,
    count_blocks,
    count_units,
    units_of_blocks,
    units_of_stretches,
)
from brimful.pretend.copies import Copied, put_copies
from brimful.pretend.recording import Recording

MIN_UNITS = 4
"""First and last are special; two that are not show that neighbours are alike."""
MIN_STEPS = 3
FORWARD, BACKWARD = " forward", " backward"
_STEP = re.compile(r"step (\d+) (.*)")


class NotPeriodicError(UnsupportedError):
    """A tape that cannot be unrolled, with the reason; trace it in full."""


def unroll_blocks(
    deep: Recording, *, shallow: Recording, pattern: Pattern, num_blocks: int
) -> Recording:
    """Return the tape of a model with more blocks than were traced.

    Args:
        deep: The tape of the model with at least ``MIN_UNITS`` units of blocks.
        shallow: The same with fewer, at least 1: it shows how what is outside the blocks (the norms
            of all gradients, stacked) grows with their number.
        pattern: How the blocks of one stack repeat.
        num_blocks: Blocks of the whole stack; as many more than in ``deep`` as whole units make.

    Raises:
        NotPeriodicError: The blocks are not alike.
    """
    units = units_of_blocks(deep, pattern, adopted=_made_per_unit(deep, shallow, pattern))
    num_more = num_blocks - count_blocks(deep, pattern.stack)
    if num_more < 0 or num_more % pattern.period:
        raise NotPeriodicError(
            f"{num_blocks - num_more} blocks cannot be unrolled to {num_blocks} in units of "
            f"{pattern.period}"
        )
    num_copies = num_more // pattern.period
    if not num_copies:
        return deep
    grown = _grow(deep, shallow, units, pattern, num_copies)
    copied, unit = _repeat(
        grown, units, num_copies=num_copies, kinds=_block_kinds(grown, pattern), with_phases=False
    )
    return _with_owners(copied, pattern, unit + 1, num_copies)


def unroll_micro_batches(recording: Recording, *, num_micro_batches: int) -> Recording:
    """Return the tape of steps with more micro-batches than were traced.

    Args:
        recording: A tape whose every step has the same number of micro-batches, at least 3 (4 where
            the program makes the next batch before the last one's end).
        num_micro_batches: Of each step.

    Raises:
        NotPeriodicError: The micro-batches are not alike.
    """
    for step in _step_numbers(recording):
        forwards = [p for p in _phases_of(recording, step) if recording.phases[p].endswith(FORWARD)]
        starts = _starts(recording, forwards)
        num_copies = num_micro_batches - len(starts)
        if num_copies < 0:
            raise NotPeriodicError(f"{len(starts)} micro-batches were traced")
        if num_copies:
            stop = _end_of_phases(recording, step)
            recording = _repeat_stretches(recording, starts, stop, num_copies).recording
    return recording


def unroll_steps(recording: Recording, *, num_steps: int) -> Recording:
    """Return the tape of more steps than were traced.

    Args:
        recording: A tape of at least ``MIN_STEPS`` steps and nothing after them.
        num_steps: How many.

    Raises:
        NotPeriodicError: The steps after the first are not alike.
    """
    numbers = _step_numbers(recording)
    num_copies = num_steps - len(numbers)
    if num_copies < 0:
        raise NotPeriodicError(f"{len(numbers)} steps were traced, more than {num_steps}")
    if not num_copies:
        return recording
    starts = _starts(recording, [_phases_of(recording, number)[0] for number in numbers])
    copied = _repeat_stretches(recording, starts, len(recording.events), num_copies)
    return _with_steps(copied, num_copies)


def _repeat(
    recording: Recording, units: Units, *, num_copies: int, kinds: Kinds, with_phases: bool
) -> tuple[Copied, int]:
    """Copy the first inner unit that is like its neighbour; return its number too.

    Raises:
        NotPeriodicError: There is none.
    """
    reasons = []
    for pair in _inner_pairs(units):
        reason = difference(recording, units, pair, kinds, with_phases=with_phases)
        reasons.append(reason)
        if not reason:
            copied = put_copies(recording, pair, num_copies=num_copies, with_phases=with_phases)
            return copied, pair.unit
    few = f"{units.count} units were traced, and {MIN_STEPS} are needed at least"
    raise NotPeriodicError(f"the tape does not repeat: {(*reasons, few)[0]}")


def _inner_pairs(units: Units) -> Iterator[Pair]:
    """Yield pairs of neighbours, the most inner first; the first unit is like no other."""
    firsts = range(1, units.count - 1)
    middle = (units.count - 2) / 2
    for unit in sorted(firsts, key=lambda unit: abs(unit - middle)):
        yield pair_of(units, unit)


def _repeat_stretches(
    recording: Recording, starts: tuple[int, ...], stop: int, num_copies: int
) -> Copied:
    """Copy a micro-batch or a step.

    Where the program begins a unit before its forward pass, the last one ends early; so the
    stretches may end where the last one ends instead of beginning where the first one begins.
    """
    if len(starts) < MIN_STEPS:
        raise NotPeriodicError(f"{len(starts)} were traced, and {MIN_STEPS} are needed at least")
    length = starts[-1] - starts[-2]
    from_starts = (*starts, min(starts[-1] + length, stop))
    from_stop = (starts[0], *(stop - n * length for n in range(len(starts) - 1, -1, -1)))
    names = [_STEP.sub(r"step \2", name) for name in recording.phases]
    kinds = Kinds(owner=np.arange(len(recording.owners)), phase=_numbers(names))
    reasons = []
    for edges in (from_starts, from_stop):
        units = units_of_stretches(recording, edges)
        try:
            return _repeat(recording, units, num_copies=num_copies, kinds=kinds, with_phases=True)[
                0
            ]
        except NotPeriodicError as error:
            reasons.append(error)
    raise reasons[0]


def _step_numbers(recording: Recording) -> list[int]:
    found = (_STEP.fullmatch(name) for name in recording.phases)
    return sorted({int(match[1]) for match in found if match})


def _phases_of(recording: Recording, step: int) -> list[int]:
    """Return the phases of a step, by number."""
    return [i for i, name in enumerate(recording.phases) if name.startswith(f"step {step} ")]


def _starts(recording: Recording, phases: list[int]) -> tuple[int, ...]:
    return tuple(int(recording.phase_starts[phase]) for phase in phases)


def _end_of_phases(recording: Recording, step: int) -> int:
    """Return the event after a step's last backward pass."""
    last = max(i for i in _phases_of(recording, step) if recording.phases[i].endswith(BACKWARD))
    ends = [*recording.phase_starts.tolist(), len(recording.events)]
    return int(ends[last + 1])


def _with_steps(copied: Copied, num_copies: int) -> Recording:
    """Number the steps of the copies, and those after them."""
    first = int(np.argmax(copied.phase_copy > 0))
    is_after = np.arange(len(copied.phase_copy)) > first
    shifts = np.where((copied.phase_copy == 0) & is_after, num_copies, copied.phase_copy)
    names = [
        _STEP.sub(lambda match, by=by: f"step {int(match[1]) + by} {match[2]}", name)  # type: ignore[misc]
        for name, by in zip(copied.recording.phases, shifts.tolist(), strict=True)
    ]
    return replace(copied.recording, phases=tuple(names))


def _with_owners(copied: Copied, pattern: Pattern, unit_after: int, num_copies: int) -> Recording:
    """Number the blocks of the copies, and those after them."""
    old = copied.recording
    block = np.array([block_of(owner, pattern.stack) for owner in old.owners])[old.owner]
    is_after = block >= pattern.num_prefix + unit_after * pattern.period
    shift = np.where(is_after, num_copies, copied.row_copy) * (block >= 0)
    pairs, index = np.unique(old.owner * (num_copies + 1) + shift, return_inverse=True)
    owners = []
    for pair in pairs.tolist():
        owner, by = divmod(pair, num_copies + 1)
        owners.append(_moved(old.owners[owner], pattern, by=by * pattern.period))
    return replace(old, owner=index.astype(np.int32), owners=tuple(owners))


def _grow(
    deep: Recording, shallow: Recording, units: Units, pattern: Pattern, num_copies: int
) -> Recording:
    """Give what is outside the blocks the size it has with more of them.

    Raises:
        NotPeriodicError: The two tapes do not have the same allocations outside the blocks.
    """
    by = num_copies / (units.count - count_units(shallow, pattern))
    sizes, kinds, shapes = deep.num_bytes.copy(), deep.shape_dtype.copy(), list(deep.shapes)
    for row, like in _same_outside(deep, shallow, units, pattern):
        grown = int(sizes[row] - shallow.num_bytes[like])
        if grown:
            sizes[row] += round(grown * by)
            shape, few_shape = shapes[kinds[row]], shallow.shapes[shallow.shape_dtype[like]]
            kinds[row] = len(shapes)
            shapes.append((_grown_shape(shape[0], few_shape[0], by), shape[1]))
    return replace(deep, num_bytes=sizes, shape_dtype=kinds, shapes=tuple(shapes))


def _same_outside(
    deep: Recording, shallow: Recording, units: Units, pattern: Pattern
) -> Iterator[tuple[int, int]]:
    """Pair the allocations outside the units of two tapes, by what made them, in order."""
    ours, theirs = _by_maker(deep, pattern), _by_maker(shallow, pattern)
    for maker, rows in ours.items():
        outside = [row for row in rows if units.of_row[row] == NO_UNIT]
        others = theirs.get(maker, [])
        if len(rows) == len(others):
            yield from zip(rows, others, strict=True)
        elif outside and len(set(deep.num_bytes[rows]) | set(shallow.num_bytes[others])) > 1:
            raise NotPeriodicError(
                f"{maker[2]} makes {len(rows)} tensors of several sizes outside the blocks with "
                f"many, and {len(others)} with few"
            )


def _made_per_unit(deep: Recording, shallow: Recording, pattern: Pattern) -> dict[int, int]:
    """Find rows that nobody owns, made in one go, so many for each unit; tell the unit of each.

    FSDP2 makes an empty tensor for each module it is given, before that has a path.
    """
    found: dict[int, int] = {}
    count = count_units(deep, pattern)
    num_more = max(1, count - count_units(shallow, pattern))
    theirs = _by_maker(shallow, pattern)
    for maker, rows in _by_maker(deep, pattern).items():
        each, rest = divmod(len(rows) - len(theirs.get(maker, [])), num_more)
        run = rows[: each * count]
        in_one_go = len(run) == each * count and np.all(np.diff(deep.born[run]) == 1)
        if each > 0 and not rest and in_one_go and len(set(deep.num_bytes[rows].tolist())) == 1:
            found |= {row: place // each for place, row in enumerate(run)}
    return found


def _by_maker(recording: Recording, pattern: Pattern) -> dict[tuple[int, str, str, str], list[int]]:
    """Group the rows that no block owns by phase, owner, operation and line."""
    inner = np.array([block_of(owner, pattern.stack) >= 0 for owner in recording.owners])
    found: dict[tuple[int, str, str, str], list[int]] = {}
    for row in np.flatnonzero(~inner[recording.owner]).tolist():
        maker = (
            int(recording.phase[row]),
            recording.owners[recording.owner[row]],
            recording.ops[recording.op[row]],
            recording.lines[recording.line[row]],
        )
        found.setdefault(maker, []).append(row)
    return found


def _grown_shape(shape: str, few: str, by: float) -> str:
    """Let each dimension grow as much further as it has grown: [9] to [12] once more is [15]."""
    sizes, few_sizes = (re.findall(r"\d+", text) for text in (shape, few))
    if len(sizes) != len(few_sizes):
        return shape
    pairs = zip(map(int, sizes), map(int, few_sizes), strict=True)
    return str([size + round((size - size_few) * by) for size, size_few in pairs])


def _numbers(values: list[str]) -> NDArray[np.int64]:
    """Give equal texts equal numbers."""
    return np.unique(np.array(values or [""]), return_inverse=True)[1].astype(np.int64)


def _block_kinds(recording: Recording, pattern: Pattern) -> Kinds:
    """Owners are alike that differ in whole units."""
    names = []
    for owner in recording.owners:
        inner = block_of(owner, pattern.stack) - pattern.num_prefix
        names.append(_moved(owner, pattern, by=-max(0, inner - inner % pattern.period)))
    return Kinds(owner=_numbers(names), phase=np.arange(len(recording.phases)))


def _moved(owner: str, pattern: Pattern, *, by: int) -> str:
    """Give the block in a path another number."""
    block = block_of(owner, pattern.stack)
    if block < 0 or not by:
        return owner
    rest = owner.removeprefix(f"{pattern.stack}.{block}")
    return f"{pattern.stack}.{block + by}{rest}"
