"""What is outside the repeated units and yet grows with their number, extrapolated from two tapes.

The norms of all gradients are stacked, the losses of all micro-batches summed up: one allocation
whose size is linear in the number of units. Operations that allocate nothing leave no event by
which to tell their unit; they are counted instead. Both are made sure of by a tape with fewer
units.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.blocks import NotPeriodicError
from brimful.pretend.recording import OpCost, Recording

Maker = tuple[str, str, str, str]
"""Phase, owner, operation and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Two tapes of the same program, and how far to extrapolate.

    Attributes:
        deep: The one with more units.
        shallow: The one with fewer.
        num_more: How many more units ``deep`` has.
        num_copies: How many more still are wanted.
    """

    deep: Recording
    shallow: Recording
    num_more: int
    num_copies: int

    def linear(self, many: int, few: int) -> int:
        """Extrapolate a number, given its values in the two tapes."""
        each, rest = divmod(many - few, self.num_more)
        if rest:
            raise NotPeriodicError(
                f"{few} grew to {many} with {self.num_more} more units, not by as much with each"
            )
        return many + each * self.num_copies


def by_maker(recording: Recording, rows: NDArray[np.int64]) -> dict[Maker, list[int]]:
    """Group rows by what made them."""
    found: dict[Maker, list[int]] = defaultdict(list)
    for row in rows.tolist():
        maker = (
            recording.phases[recording.phase[row]],
            recording.owners[recording.owner[row]],
            recording.ops[recording.op[row]],
            recording.lines[recording.line[row]],
        )
        found[maker].append(row)
    return dict(found)


def grow_rows(
    growth: Growth,
    ours: Mapping[Maker, list[int]],
    theirs: Mapping[Maker, list[int]],
    outside: NDArray[np.bool_],
) -> Recording:
    """Return the deep tape, with sizes outside its units as they are with more of them.

    ``ours``: rows of the deep one that may be outside the units, by maker. ``outside``: per row of
    the deep one: whether it is outside. Raises NotPeriodicError: the two tapes do not have the same
    allocations outside the units.
    """
    deep, shallow = growth.deep, growth.shallow
    sizes, kinds, shapes = deep.num_bytes.copy(), deep.shape_dtype.copy(), list(deep.shapes)
    for row, like in _same_outside(growth, ours, theirs, outside):
        if sizes[row] != shallow.num_bytes[like]:
            sizes[row] = growth.linear(int(sizes[row]), int(shallow.num_bytes[like]))
            shape, dtype = shapes[kinds[row]]
            few_shape, _ = shallow.shapes[shallow.shape_dtype[like]]
            grown = (_grown_shape(growth, shape, few_shape), dtype)
            if grown not in shapes:
                shapes.append(grown)
            kinds[row] = shapes.index(grown)
    return replace(deep, num_bytes=sizes, shape_dtype=kinds, shapes=tuple(shapes))


def _same_outside(
    growth: Growth,
    ours: Mapping[Maker, list[int]],
    theirs: Mapping[Maker, list[int]],
    outside: NDArray[np.bool_],
) -> Iterator[tuple[int, int]]:
    """Pair the rows outside the units of two tapes, by what made them, in order."""
    deep, shallow = growth.deep, growth.shallow
    for maker, rows in ours.items():
        others = theirs.get(maker, [])
        if len(rows) == len(others):
            pairs = zip(rows, others, strict=True)
            yield from (pair for pair in pairs if outside[pair[0]])
        elif outside[rows].any() and not _same_sizes(deep, rows, shallow, others):
            raise NotPeriodicError(
                f"{maker[2]} makes {len(rows)} tensors outside the units where there are many, "
                f"{len(others)} where there are few, and not of the same sizes"
            )


def _same_sizes(deep: Recording, rows: list[int], shallow: Recording, others: list[int]) -> bool:
    """Whether nothing grew with the number of units: that would be of a size that few lack."""
    sizes = {*deep.num_bytes[rows].tolist()}
    return sizes == {*shallow.num_bytes[others].tolist()}


def _grown_shape(growth: Growth, shape: str, few: str) -> str:
    """Let each dimension grow: [9] after [3] with two more units is [15] with two more still."""
    sizes, few_sizes = (list(map(int, re.findall(r"\d+", text))) for text in (shape, few))
    if len(sizes) != len(few_sizes):
        return shape
    return str([growth.linear(*pair) for pair in zip(sizes, few_sizes, strict=True)])


def grow_costs(growth: Growth, unrolled: Recording) -> Recording:
    """Return the unrolled tape with the work of operations that left no event in their unit.

    The number of operations of each kind, phase by phase, and the bytes that they move are exact;
    where in the phase the added ones stand is not known.
    """
    if not unrolled.costs:
        return unrolled
    deep, shallow, here = map(_kinds, (growth.deep, growth.shallow, unrolled))
    costs = list(unrolled.costs)
    place = {(unrolled.phases[cost.phase], cost.op): i for i, cost in enumerate(costs)}
    added: list[OpCost] = []
    for key in deep:
        last = place[key]
        missing = _missing(growth, deep[key], shallow[key], here[key])
        added += [costs[last]._replace(matrix_flops=m, attention_flops=a, moved_bytes=b)
                  for m, a, b in missing.elements()]  # fmt: skip
        more = _moved(growth, deep[key], shallow[key]) - _total(here[key] + missing)
        if more:
            costs[last] = costs[last]._replace(moved_bytes=(*costs[last].moved_bytes, more))
    return replace(unrolled, costs=tuple(sorted([*costs, *added], key=lambda cost: cost.event)))


_Work = tuple[int, int, tuple[int, ...]]


def _kinds(recording: Recording) -> dict[tuple[str, str], Counter[_Work]]:
    found: dict[tuple[str, str], Counter[_Work]] = defaultdict(Counter)
    for cost in recording.costs:
        key = (recording.phases[cost.phase], cost.op)
        found[key][cost.matrix_flops, cost.attention_flops, cost.moved_bytes] += 1
    return found


def _missing(
    growth: Growth, deep: Counter[_Work], shallow: Counter[_Work], here: Counter[_Work]
) -> Counter[_Work]:
    """Return the operations that more units would do and that no copy has brought along."""
    lost = +Counter(
        {
            work: growth.linear(count, shallow[work]) - here[work]
            for work, count in deep.items()
            if shallow[work] and count > shallow[work]
        }
    )
    return lost  # noqa: RET504 - the type of +Counter


def _moved(growth: Growth, deep: Counter[_Work], shallow: Counter[_Work]) -> int:
    return growth.linear(_total(deep), _total(shallow))


def _total(kinds: Counter[_Work]) -> int:
    return sum(sum(work[2]) * count for work, count in kinds.items())
