"""How much of a script's batch would fit, by what one run recorded: a proportion, phase by phase.

What grows with a batch is told from what does not (states, copies of a model, what an update makes
beside them) by class, phase and shape, and every request is made smaller by its own share. So that
phase binds that does at the smaller size, which is mostly another than at the larger one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import AllocatorSettings
from brimful.allocator.held import held_of
from brimful.pretend.logits import sizes_in, with_logits
from brimful.pretend.reading import FITTED_BUFFERS, OF_TOKENS, classify
from brimful.pretend.recording import NEVER, Recording
from brimful.values.results import (
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    WORKSPACES,
)

_PASSES = ("forward", "backward", "eval")
"""Ends of the names of phases that work on a batch."""
_LEAST_SEEN = 0.5
"""Share of what forward passes make in whose sizes a number has to be seen to be the batch's."""
_WHOLE = ("int64", "int32")
"""Types of tokens and labels."""
_FINEST = 32
"""Parts of what fits, to one of which it is told."""


class Argument(NamedTuple):
    """A number that a script is given.

    Attributes:
        name: Without dashes.
        value: The number.
    """

    name: str
    value: int


class Proportion(NamedTuple):
    """How much of a batch would fit.

    Attributes:
        names: The argument that says how large the batch is; several where they are of one value,
            none where only tensors do.
        least: What fits if only that grows with the batch that surely does; 0: not even 1.
        most: If all does that may.
        is_sure: Whether these fit with room to spare; else the allocator's cache is emptied on the
            way, or what lies outside of it may take the room.
        given: How large it is.
        constant: What the program's text calls it; empty: nothing.
    """

    names: tuple[str, ...]
    least: int
    most: int
    is_sure: bool = True
    given: int = 0
    constant: str = ""


class Room(NamedTuple):
    """What the allocator may hold.

    Attributes:
        settings: How it behaves.
        sure_bytes: Whatever lies outside of it.
        capacity_bytes: At most.
    """

    settings: AllocatorSettings
    sure_bytes: int
    capacity_bytes: int

    def holds(self, recording: Recording, *, surely: bool) -> bool:
        """Whether a program completes in it."""
        requests = recording.requests()
        if surely:
            held = held_of(requests, settings=self.settings, capacity_bytes=None)
            return held.peak_reserved_bytes <= self.sure_bytes
        held = held_of(requests, settings=self.settings, capacity_bytes=self.capacity_bytes)
        return not held.short_bytes


class _Rows(NamedTuple):
    """Which allocations grow with a batch.

    Attributes:
        sure: [allocations], those that do.
        perhaps: [allocations], those, and what cannot be told from them.
    """

    sure: NDArray[np.bool_]
    perhaps: NDArray[np.bool_]


class Batch(NamedTuple):
    """A batch that is seen in a program's tensors.

    Attributes:
        names: The arguments that say how large it is; none: only tensors do.
        given: How large it is.
        rows: What grows with it.
        constant: What the program's text calls it; empty: nothing.
    """

    names: tuple[str, ...]
    given: int
    rows: "_Rows"
    constant: str = ""

    def scaled(self, recording: Recording, num: int) -> Recording:
        """Return a recording of the program with another batch, of what surely grows with it."""
        return _scaled(recording, self.rows.sure, self.given, num)


def batch_of(
    recording: Recording,
    arguments: Iterable[Argument],
    constants: Iterable[Argument] = (),
    *,
    by_tensors: bool = False,
) -> Batch | None:
    """Return the batch of a program; None: it is not seen in what forward passes make.

    ``arguments``: those that may say how large its batch is. ``constants``: of the program's text,
    where none of these is seen. ``by_tensors``: whether the rows of its tokens or labels tell,
    where no constant is seen either.
    """
    item = with_logits(recording, classify(recording))
    dims = [sizes_in(shape) for shape, _ in recording.shapes]
    loose = _loose(recording, item)
    names, given = _batch_of(recording, dims, loose, arguments)
    constant = ""
    if not names:
        called, given = _batch_of(recording, dims, loose, constants)
        names, constant = ("",) * bool(called), "".join(called[:1])
    for num_sizes in (2, 1) if by_tensors else ():
        if not names:
            sizes = _first_sizes(recording, dims, num_sizes)
            told = (_batch_of(recording, dims, loose, [Argument("", num)]) for num in sizes)
            seen = [each for each in told if each[0]]
            if len(seen) > 1:  # of which nobody knows which it is
                return None
            names, given = seen[0] if seen else ((), 0)
    if not names:
        return None
    rows = _rows(recording, item, dims, loose, given)
    return Batch(tuple(filter(None, names)), given, rows, constant)


def by_proportion(
    recording: Recording, arguments: Iterable[Argument], room: Room
) -> Proportion | None:
    """Return how much of a batch would fit of a program that does not.

    ``arguments``: those that may say how large its batch is. Returns None where none of the
    arguments is seen in the sizes of what forward passes make.
    """
    batch = batch_of(recording, arguments)
    return None if batch is None else proportion_of(recording, batch, room)


def proportion_of(recording: Recording, batch: Batch, room: Room) -> Proportion:
    """Return how much of a batch would fit.

    ``recording``: of a program that does not.
    """
    for surely in (True, False):
        least, most = (
            _most(recording, each, batch.given, room, surely=surely) for each in batch.rows
        )
        if most:
            most = max(least, most)
            return Proportion(batch.names, least, most, surely, batch.given, batch.constant)
    return Proportion(batch.names, 0, 0, given=batch.given, constant=batch.constant)


def most_of(recording: Recording, batch: Batch, room: Room, *, times: int = 1) -> int:
    """Return the largest batch that surely fits, if only that changes with it that surely does.

    ``recording``: of the program, or of a smaller one with as many allocations. ``times``: up to
    how many times the given one.
    """
    return _most(recording, batch.rows.sure, batch.given, room, surely=True, times=times)


def _first_sizes(
    recording: Recording, dims: Sequence[tuple[int, ...]], num_sizes: int
) -> list[int]:
    """Return how many rows tables of whole numbers have, as tokens and labels are given in."""
    ops = np.array(["arange" not in op for op in recording.ops])[recording.op]
    kinds = np.unique(recording.shape_dtype[ops])
    whole = (i for i in kinds.tolist() if recording.shapes[i][1] in _WHOLE)
    whole_dims = [dims[i] for i in whole]
    tables = [each for each in whole_dims if len(each) == num_sizes]
    if num_sizes == 1:  # tokens of a table, one after another, are no batch
        tokens = [each for each in whole_dims if len(each) > 1]
        beside = {size for each in tokens for size in (*each[1:], prod(each))}
        return sorted({each[0] for each in tables} - beside)
    # Positions of tokens to one another are square, and no batch.
    return sorted({each[0] for each in tables if each[0] != each[-1]})


def _loose(recording: Recording, item: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each allocation is made for a pass over a batch, and no state."""
    kinds = [ITEM_NAMES.index(name) for name in (SAVED_ACTIVATIONS, LOGITS, TRANSIENTS)]
    is_pass = np.array([name.endswith(_PASSES) for name in recording.phases])
    return np.asarray(np.isin(item, kinds) & is_pass[recording.phase])


def _batch_of(
    recording: Recording,
    dims: Sequence[tuple[int, ...]],
    loose: NDArray[np.bool_],
    arguments: Iterable[Argument],
) -> tuple[tuple[str, ...], int]:
    """Return which arguments say how large the batch is, and the number; none: no name.

    Of two that are seen, the one is a part of the other, and what is seen whole is the larger.
    """
    is_forward = np.array([name.endswith("forward") for name in recording.phases])
    made = loose & is_forward[recording.phase]
    weight = np.bincount(
        recording.shape_dtype[made], recording.num_bytes[made], minlength=len(dims)
    )
    seen: dict[int, list[str]] = {}
    for name, value in arguments:
        if value <= 1:
            continue
        has = np.array([value in each or bool(each and not each[0] % value) for each in dims])
        if weight[has].sum() >= _LEAST_SEEN * weight.sum() > 0:
            seen.setdefault(value, []).append(name)
    value = max(seen, default=0)
    return tuple(seen.get(value, ())), value


def _rows(
    recording: Recording,
    item: NDArray[np.int64],
    dims: Sequence[tuple[int, ...]],
    loose: NDArray[np.bool_],
    given: int,
) -> _Rows:
    """Tell what grows with a batch of ``given`` by its sizes: multiples of it, and no weight's."""
    states = [ITEM_NAMES.index(name) for name in (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)]
    held = {dims[i] for i in np.unique(recording.shape_dtype[np.isin(item, states)])}
    held |= {each[::-1] for each in held}
    of_weights = np.array([each in held for each in dims])[recording.shape_dtype]
    is_multiple = np.array([not prod(each) % given for each in dims])[recording.shape_dtype]
    is_first = np.array([bool(each) and each[0] == given for each in dims])[recording.shape_dtype]
    is_one = np.array([bool(each) and each[0] == 1 for each in dims])[recording.shape_dtype]
    is_back = np.array([name.endswith("backward") for name in recording.phases])[recording.phase]
    kinds = [ITEM_NAMES.index(name) for name in (SAVED_ACTIVATIONS, TRANSIENTS)]
    inputs = ~loose & is_first & np.isin(item, kinds)  # made before a pass begins
    sure = ((loose & is_multiple & ~is_one) | inputs) & ~of_weights
    # A gradient has its weight's sizes; what else has, may be an activation that happens to.
    unclear = loose & ~sure & ~(of_weights & is_back)
    # What a kernel takes for itself may hang on its tokens, by steps; of some it is known.
    passing = (item == ITEM_NAMES.index(WORKSPACES)) & (recording.died != NEVER)
    names = [op in (*FITTED_BUFFERS, *OF_TOKENS) for op in recording.ops]
    sure |= passing & is_multiple & np.array(names)[recording.op]
    return _Rows(sure, sure | unclear | passing)


def _most(  # noqa: PLR0913 - of what, and in what
    recording: Recording,
    grows: NDArray[np.bool_],
    given: int,
    room: Room,
    *,
    surely: bool,
    times: int = 1,
) -> int:
    """Return the largest batch that fits, up to so many times the given; 0: not even 1 does."""
    row = np.where(recording.events >= 0, recording.events, ~recording.events)
    sign = np.where(recording.events >= 0, 1, -1) * recording.num_bytes[row]
    grown, stays = (np.cumsum(sign * chosen[row]) for chosen in (grows, ~grows))
    left = (room.sure_bytes if surely else room.capacity_bytes) - stays
    if left.min(initial=0) < 0:
        return 0
    share = (left / np.maximum(grown, 1)).min(initial=float(times))
    low, high = 0, int(given * share) + 1  # tensors alone have no room in more

    def fits(num: int) -> bool:
        return room.holds(_scaled(recording, grows, given, num), surely=surely)

    if high > times * given and fits(times * given):
        return times * given
    while high - low > max(1, low // _FINEST):
        # Mostly little more is reserved than tensors take.
        num = (low + high) // 2 if low else max(1, high - 1 - (high - low) // 8)
        low, high = (num, high) if fits(num) else (low, num)
    return low


def _scaled(recording: Recording, grows: NDArray[np.bool_], given: int, num: int) -> Recording:
    sizes = np.where(grows, -(-recording.num_bytes * num // given), recording.num_bytes)
    return replace(recording, num_bytes=np.maximum(sizes, 1))
