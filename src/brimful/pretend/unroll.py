"""Unrolling a tape: from a few blocks to all.

A model's blocks are alike, so a tape of few tells the tape of many: copies of a unit are put
between it and the next, wherever the tape goes through the units. Two neighbours are compared
event by event first; what does not repeat exactly is refused, and the caller traces it in full.
Knows nothing of models: which blocks a shallow one keeps is the caller's to say.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.alike import Kinds, Pair, difference, pair_of
from brimful.pretend.blocks import (
    NO_UNIT,
    NotPeriodicError,
    Pattern,
    Units,
    block_of,
    count_blocks,
    count_units,
    units_of_blocks,
)
from brimful.pretend.copies import Copied, put_copies
from brimful.pretend.growth import Growth, by_maker, grow_costs, grow_rows
from brimful.pretend.recording import Recording

MIN_UNITS = 4
"""First and last are special; two that are not show that neighbours are alike."""
MIN_STEPS = 3
_STEP = re.compile(r"step (\d+) (.*)")


def unroll_blocks(
    deep: Recording, *, shallow: Recording, pattern: Pattern, num_blocks: int
) -> Recording:
    """Return the tape of a model with more blocks than were traced.

    ``deep``: the tape of the model with at least ``MIN_UNITS`` units of blocks. ``shallow``: the
    same with fewer, at least 1: it shows how what is outside the blocks (the norms of all
    gradients, stacked) grows with their number. Blocks before and behind the units may be fewer
    too, if what is outside grows by as much with each of them. ``num_blocks``: blocks of the whole
    stack; as many more than in ``deep`` as whole units make.
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
    num_less = _num_more(deep, shallow, pattern)
    growth = Growth(deep=deep, shallow=shallow, num_more=num_less, num_copies=num_copies)
    rows = [by_maker(r, _unowned(r, pattern)) for r in (deep, shallow)]
    grown = grow_rows(growth, rows[0], rows[1], units.of_row == NO_UNIT)
    kinds = _block_kinds(grown, pattern)
    copied, unit = repeat_units(grown, units, num_copies=num_copies, kinds=kinds)
    return grow_costs(growth, _with_owners(copied, pattern, unit + 1, num_copies))


def repeat_units(
    recording: Recording, units: Units, *, num_copies: int, kinds: Kinds
) -> tuple[Copied, int]:
    """Copy the first inner unit that is like its neighbour; return its number too."""
    reasons = []
    for pair in _inner_pairs(units):
        reason = difference(recording, units, pair, kinds)
        reasons.append(reason)
        if not reason:
            return put_copies(recording, pair, num_copies=num_copies), pair.unit
    few = f"{units.count} units were traced, and {MIN_STEPS} are needed at least"
    raise NotPeriodicError(f"the tape does not repeat: {(*reasons, few)[0]}")


def _inner_pairs(units: Units) -> Iterator[Pair]:
    """Yield pairs of neighbours, the most inner first; the first unit is like no other."""
    firsts = range(1, units.count - 1)
    middle = (units.count - 2) / 2
    for unit in sorted(firsts, key=lambda unit: abs(unit - middle)):
        yield pair_of(units, unit)


def _with_owners(copied: Copied, pattern: Pattern, unit_after: int, num_copies: int) -> Recording:
    """Number the blocks of the copies, and those after them."""
    old = copied.recording
    block = np.array([block_of(owner, pattern.stack) for owner in old.owners])[old.owner]
    is_after = block >= pattern.num_prefix + unit_after * pattern.period
    shift = np.where(is_after, num_copies, copied.row_copy) * (block >= 0)
    pairs, index = np.unique(
        old.owner.astype(np.int64) * (num_copies + 1) + shift, return_inverse=True
    )
    names: dict[str, int] = {}
    numbers = []
    for pair in pairs.tolist():
        owner, by = divmod(pair, num_copies + 1)
        name = _moved(old.owners[owner], pattern, by=by * pattern.period)
        numbers.append(names.setdefault(name, len(names)))
    owner_of = np.array(numbers, dtype=np.int32)[index]
    return replace(old, owner=owner_of, owners=tuple(names))


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


def _unowned(recording: Recording, pattern: Pattern) -> NDArray[np.int64]:
    """Return the rows that no block owns."""
    inner = np.array([block_of(owner, pattern.stack) >= 0 for owner in recording.owners])
    return np.flatnonzero(~inner[recording.owner])


def _made_per_unit(deep: Recording, shallow: Recording, pattern: Pattern) -> dict[int, int]:
    """Find rows that nobody owns, so many for each unit; tell the unit of each.

    FSDP2 makes an empty tensor for each module it is given, before that has a path, all in one go.
    While a base is loaded and quantised, each weight is there in full for a moment.
    """
    found: dict[int, int] = {}
    count, num_all = count_units(deep, pattern), count_blocks(deep, pattern.stack)
    num_more = max(1, _num_more(deep, shallow, pattern))
    theirs = by_maker(shallow, _unowned(shallow, pattern))
    for maker, rows in by_maker(deep, _unowned(deep, pattern)).items():
        each, rest = divmod(len(rows) - len(theirs.get(maker, [])), num_more)
        is_of_all = each * num_all == len(rows) * pattern.period
        first = each * pattern.num_prefix // pattern.period if is_of_all else 0
        run = rows[first : first + each * count]
        if each < 1 or rest or len(run) < each * count:
            continue
        in_one_go = np.all(np.diff(deep.born[run]) == 1)
        alike = len(set(deep.num_bytes[rows].tolist())) == 1
        while_loading = not _STEP.fullmatch(maker[0]) and (is_of_all or len(run) == len(rows))
        if (in_one_go and alike) or (while_loading and _repeats(deep.num_bytes[run], count)):
            found |= {row: place // each for place, row in enumerate(run)}
    return found


def _num_more(deep: Recording, shallow: Recording, pattern: Pattern) -> int:
    """Return how many more units' worth of blocks one tape has, wherever in the stack they are."""
    many, few = (count_blocks(recording, pattern.stack) for recording in (deep, shallow))
    return (many - few) // pattern.period


def _repeats(sizes: NDArray[np.int64], count: int) -> bool:
    """Whether sizes are ``count`` times the same."""
    by_unit = sizes.reshape(count, -1)
    return bool((by_unit == by_unit[0]).all())
