"""A micro-batch's requests: what the runs of a profile ask for, tensor by tensor, in order.

Whoever asks (one device, a stage of a pipeline, a reference) says which runs, and how often.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, count, groupby, islice, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from brimful.cost.additions import NUM_PIECES, Piece, is_block
from brimful.cost.asked import GRADIENT, SHARDS, Asked, Move
from brimful.cost.embedding import embedding_bytes
from brimful.cost.family import Family, family_chunks, family_dimensions, family_tokens
from brimful.cost.piece_tensors import COMPUTES, GATHERS, Tensors
from brimful.cost.profiles import Alike, Dimensions, Group, Mark, Profile, Run, alike, is_own
from brimful.cost.programs import keeps_products
from brimful.cost.row_sums import Event, RowSums
from brimful.cost.spread import num_pieces
from brimful.cost.trained import has_biases
from brimful.cost.trajectory import Array, kind_bytes, stands_for_none
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.values.job import Job
from brimful.values.results import GATHERED, ITEM_NAMES, REDUCED, SAVED_ACTIVATIONS

_GRADIENT_PIECES: dict[int, bool] = {
    Piece.BLOCK_GRADIENTS: False,
    Piece.REST_GRADIENTS: False,
    Piece.EXPERTS_GRADIENTS: True,
}
"""Pieces that the profile's own events bring; whether they are experts'."""
_HELD_OF: dict[int, Piece] = {
    Piece.BLOCK_GRADIENTS: Piece.BLOCK_HELD,
    Piece.REST_GRADIENTS: Piece.REST_HELD,
    Piece.EXPERTS_GRADIENTS: Piece.EXPERTS_HELD,
}
"""What gradients become that are held in a wider type, one parameter after the other."""
_NO_KEY: Alike = ((), 0)
_LIBRARIES: frozenset[Mark] = frozenset({"cuBLAS", "cuBLASLt"})
_BATCH: Alike = ((("BS", 8.0),), ITEM_NAMES.index(SAVED_ACTIVATIONS))
"""Tokens, and labels."""
_GATHERED = ITEM_NAMES.index(GATHERED)
"""What another program gathers apart comes on the stream of gathers; ours has pieces for it."""
_REDUCED = ITEM_NAMES.index(REDUCED)
_PARTED = "e"
"""The dimension that tells the gradients of parted experts."""


def sizes_in(job: Job, family: Family, profile: Profile, sizes: Array) -> "Sizes":
    """Add the bytes of kinds in the last piece of the loss, which may be a smaller one.

    Pieces of what sharding adds, at the end of the kinds, are no sizes of a loss.

    ``sizes``: [kinds], bytes anywhere else.
    """
    dims = family_dimensions(job, family)
    tokens, num_chunks = family_tokens(job, family), family_chunks(job, family)
    left = dims._replace(C=tokens - (num_chunks - 1) * dims.C)
    own = kind_bytes(profile, left)
    is_own = np.array([bool(kind.terms) for kind in profile.kinds])
    return Sizes(sizes, np.where(is_own, own, sizes), dims, left)


def marked_bytes(
    job: Job, family: Family, device: Device, profile: Profile | None = None
) -> dict[Mark, int]:
    """Return the bytes of what profiles mark, of the libraries' once each.

    Whether there are products with biases is the model's affair, but for a profile of its own.
    """
    has_light = has_biases(job.model) or (profile is not None and is_own(profile.key))
    cublas = libraries().cublas_bytes(version_of(device.capability))
    rows = 0
    if device.kernels == "cuda" and job.adapter is None:
        rows, _ = embedding_bytes(job, family)
    return {
        "cuBLAS": cublas,
        "cuBLASLt": min(libraries().cublas_lt_bytes, cublas) * has_light,
        "embedding": rows,
    }


class _Op(NamedTuple):
    """One event of a run.

    Attributes:
        key: Of the kind that comes or goes.
        num_bytes: Of a tensor; 0: it goes.
        times: How often it happens.
        item: Index of its class.
        newer: See ``EventKind``.
        mark: Likewise.
        beside: Bytes that come and go behind a tensor, as it is made.
        piece: What sharding adds, instead of all that; it comes where ``num_bytes`` is not 0.
        held: What gradients that go become, if anything.
        is_reduced: Whether gradients that go are in a shard next.
    """

    key: Alike
    num_bytes: int
    times: int
    item: int
    newer: int = 0
    mark: Mark = ""
    beside: int = 0
    piece: int | None = None
    held: int | None = None
    is_reduced: bool = False


_LIGHT = _Op(_NO_KEY, 0, 1, 0, mark="cuBLASLt")
"""The first product with a bias of a thread."""


class Sizes(NamedTuple):
    """Bytes of every kind, [kinds]: anywhere, and in the last piece of the loss; their sizes."""

    everywhere: Array
    last_chunk: Array
    dims: Dimensions
    last_dims: Dimensions


class Work(NamedTuple):
    """What a run asks for.

    Attributes:
        is_block: Whether it is of a block.
        times: How often it is run.
        parts: Its events, in order, each as often as it happens: tensors that come and go, between
            marks and what sharding adds.
        num_ops: Operations launched.
    """

    is_block: bool
    times: int
    parts: tuple[tuple[Move, ...] | _Op, ...]
    num_ops: int


class MicroBatch(NamedTuple):
    """What one micro-batch's events are made of.

    Attributes:
        profile: Where works and kinds are.
        sizes: Bytes of kinds.
        middle: Members of every group that are not the first or the last.
        pieces: Tensors of what sharding adds, by piece and part (``additions.of_part``).
        marked: Bytes of what is marked.
        sums: What gradients of vectors leave beside them.
        lends: Whether another stream uses gradients that are on their way, when they go.
    """

    profile: Profile
    sizes: Sizes
    middle: Mapping[Group, Array]
    pieces: Mapping[int, Tensors]
    marked: Mapping[Mark, int]
    sums: RowSums
    lends: bool = False

    def works_of(self, runs: Sequence[Run], *, opens: bool = True) -> tuple[Work, ...]:
        """Return what the runs of a micro-batch ask for, whichever micro-batch it is.

        ``opens``: whether the first product of all is in this forward.
        """
        alike = [self._alike(run) for run in runs]
        known = {
            each: self._ops_of(run, runs)
            for each, run in dict(zip(alike, runs, strict=True)).items()
        }
        every = [known[each] for each in alike]
        is_told = is_own(self.profile.key)
        if not is_told and not any(kind.mark == "cuBLASLt" for kind in self.profile.kinds):
            every = [list(ops) for ops in every]
            self._mark_light(every, runs)
        if not opens:
            forward = [run.phase == "forward" for run in runs]
            every = [
                [op for op in ops if op.mark not in _LIBRARIES] if is_forward else ops
                for is_forward, ops in zip(forward, every, strict=True)
            ]
        if self.pieces:
            every[0], every[-1] = _batch_first(every[0]), _batch_last(every[-1])
        distinct = {id(ops): ops for ops in every}
        parts = {
            place: tuple(_parts(_in_rounds(ops), lends=self.lends))
            for place, ops in distinct.items()
        }
        return tuple(
            Work(
                is_block(run),
                self._times(run, runs),
                parts[id(ops)],
                self.profile.works[run.work].num_ops,
            )
            for run, ops in zip(runs, every, strict=True)
        )

    def _alike(self, run: Run) -> object:
        """Return what the events of a run hang on: blocks of a kind have the same."""
        is_alone = self._num_middle(run) >= 0 or run.group == "chunk"
        role = "" if is_alone or not run.group else (run.group, run.role)
        return run.work, run.phase, is_block(run), _is_last_chunk(run), role

    def ask(self, asked: Asked, works: Sequence[Work]) -> None:
        """Ask for what runs need, in order.

        ``asked``: what was asked for before. ``works``: of its runs (``works_of``).
        """
        rest = asked.begin_rest()
        for work in works:
            for _ in range(work.times):
                part = asked.begin_block() if work.is_block else rest
                for each in work.parts:
                    if not isinstance(each, _Op):
                        asked.play(each, part)
                    elif each.piece is not None:
                        self._piece(asked, each)
                    else:
                        self._mark(asked, each.mark)
                asked.launch(work.num_ops)
        for piece in asked.whichever(Piece.BLOCK_AMONG, Piece.REST_AMONG, Piece.EXPERTS_AMONG):
            asked.drop(piece)

    def _times(self, run: Run, runs: Sequence[Run]) -> int:
        """Count how often a run happens; of two that stand for one block the one is left out."""
        middle = self._num_middle(run)
        if run.role == "middle":
            return max(0, middle)
        if middle >= 0 or run.group == "chunk":
            return 1
        groups = {r.group for r in runs if r.phase == run.phase and is_block(r)}
        if len(groups) == 1:
            return int(run.role == "first")
        return int(not stands_for_none(run, tuple(runs)))

    def _num_middle(self, run: Run) -> int:
        return int(self.middle[run.group][0]) if run.group else 0

    def _mark_light(self, every: Sequence[list[_Op]], runs: Sequence[Run]) -> None:
        """Mark the first product of each thread that may have a bias, which the profile has not.

        In forward it is the first of all; in backward that of the first block that is run again.
        """
        for run, ops in zip(runs, every, strict=True):
            marks = [place for place, op in enumerate(ops) if op.mark == "cuBLAS"]
            if run.phase == "forward" and marks:
                ops.insert(marks[0] + 1, _LIGHT)
                before = sum(op.piece is None for op in ops[: marks[0]])
                is_again = not keeps_products(self.profile.key)
                again = (o for r, o in zip(runs, every, strict=True) if is_again and _is_again(r))
                for first in islice(again, 1):
                    own = [place for place, op in enumerate(first) if op.piece is None]
                    first.insert(own[before], _LIGHT)

    def _ops_of(self, run: Run, runs: Sequence[Run]) -> list[_Op]:
        """Return a run's events; of a block that is first and last of its kind, what both have.

        That is what the first has, and what the last has beyond those between.
        """
        found = self._ops(run)
        if self._num_middle(run) >= 0 or run.group == "chunk" or not run.group:
            return found
        alike = {r.role: r for r in runs if (r.phase, r.group) == (run.phase, run.group)}
        other = alike.get("last" if run.role == "first" else "first")
        if other is None or "middle" not in alike:
            return found
        beyond = Counter(map(_what, self._ops(other)))
        beyond.subtract(map(_what, self._ops(alike["middle"])))
        added = list[_Op]()
        for op in self._ops(other):
            if beyond[_what(op)] > 0:
                beyond[_what(op)] -= 1
                added.append(op)
        for place in range(len(found) - 1, -1, -1):
            if beyond[_what(found[place])] < 0:
                beyond[_what(found[place])] += 1
                op, taken = found[place], _taken(added, found[place])
                found[place : place + 1] = taken
                if taken and op.num_bytes:
                    behind = (_without(op, later) for later in found[place + 1 :])
                    found[place + 1 :] = [_beside(taken[0], later) for later in behind]
        return [*found, *added]

    def _mark(self, asked: Asked, mark: Mark) -> None:
        """Ask for what is marked: rows are added up at once, libraries keep what they have."""
        num_bytes = self.marked.get(mark, 0)
        if num_bytes and mark == "embedding":
            asked.pass_by((num_bytes,))
        elif num_bytes:
            asked.allocate(num_bytes)

    def _piece(self, asked: Asked, op: _Op) -> None:
        piece, held = op.piece, op.held
        assert piece is not None
        if op.num_bytes:
            asked.come_piece(piece, self.pieces[piece])
        elif (own := piece % NUM_PIECES) in _GRADIENT_PIECES:
            is_experts = _GRADIENT_PIECES[own] if self._parts_experts else None
            is_block = own != Piece.REST_GRADIENTS
            last_bytes = self.pieces[piece].num_bytes[-1] if op.is_reduced else 0
            asked.reduce(is_block=is_block, is_experts=is_experts, held=held, last_bytes=last_bytes)
        else:
            asked.go_piece(piece, self.pieces[piece])

    @property
    def _parts_experts(self) -> bool:
        return Piece.EXPERTS in self.pieces

    def _ops(self, run: Run) -> list[_Op]:
        """Return the events of a run that change anything, in order."""
        found = self._listed(run)
        if run.phase == "backward":
            is_last = _is_last_chunk(run)
            return self._with_sums(found, self.sizes.last_dims if is_last else self.sizes.dims)
        return _input_last(found) if is_block(run) else found

    def _listed(self, run: Run) -> list[_Op]:
        kinds, found = self.profile.kinds, list[_Op]()
        num = num_pieces(self.profile)
        base = len(kinds) - 2 * num
        taken_back = list[tuple[object, bool]]()
        sizes = self.sizes.last_chunk if _is_last_chunk(run) else self.sizes.everywhere
        for event in self.profile.works[run.work].events:
            if event >= base:
                self._list_piece(found, (event - base) % num, comes=event - base < num)
                continue
            kind, size = kinds[event], round(sizes[event])
            if kind.mark:
                found.append(_Op(_NO_KEY, 0, 1, kind.item, mark=kind.mark))
                continue
            times = int(self.middle[kind.origin][0]) if kind.origin else 1
            if times < 0:
                taken_back += [(alike(kind), size > 0)] * -times
            elif size:
                found.append(_Op(alike(kind), max(0, size), times, kind.item, kind.newer))
        for back in taken_back:
            same = [i for i, op in enumerate(found) if (op.key, op.num_bytes > 0) == back]
            if same:
                del found[same[-1]]
        return found

    def _list_piece(self, found: list[_Op], piece: int, *, comes: bool) -> None:
        """Put a piece behind the events so far, of which it may be what gradients become."""
        before = found[-1].piece if found else None
        own = piece % NUM_PIECES
        was = None if before is None else before % NUM_PIECES
        if was is not None and _HELD_OF.get(was) == own and not found[-1].num_bytes:
            found[-1] = found[-1]._replace(held=piece)
            return
        if own in SHARDS and was in _GRADIENT_PIECES and before in self.pieces:
            found[-1] = found[-1]._replace(is_reduced=not self._parts_experts)
        if piece in self.pieces or own in _GRADIENT_PIECES:
            found.append(_Op(_NO_KEY, int(comes), 1, 0, piece=piece))

    def _with_sums(self, ops: list[_Op], dims: Dimensions) -> list[_Op]:
        """Return the events of a backward with what sums over tokens leave beside them."""
        events = [Event(op.key[0], op.num_bytes, op.mark) for op in ops]
        sizes = self.sums.beside(events, dims)
        return [op._replace(beside=size) for op, size in zip(ops, sizes, strict=True)]


def _parts(ops: Iterable[_Op], *, lends: bool) -> Iterator[tuple[Move, ...] | _Op]:
    """Yield tensors that come and go together, and each mark and piece between them."""
    for is_moves, together in groupby(ops, key=lambda op: op.piece is None and not op.mark):
        if is_moves:
            yield tuple(_move(op, lends=lends) for op in together)
        else:
            yield from together


_NUMBERS = count()


@cache
def _number(_key: Alike) -> int:
    """Number a kind, whichever profile it is of."""
    return next(_NUMBERS)


def _move(op: _Op, *, lends: bool) -> Move:
    return Move(
        number=_number(op.key),
        key=op.key,
        num_bytes=op.num_bytes,
        newer=op.newer,
        stream=GATHERS if op.item == _GATHERED else COMPUTES,
        beside=op.beside,
        is_gradient=op.item == GRADIENT,
        is_expert=_is_experts(op.key),
        is_used=lends and op.item == _REDUCED,
    )


def _in_rounds(ops: Iterable[_Op]) -> Iterator[_Op]:
    """Yield events as often as they happen: those of every block that stand together, in turn."""
    for times, together in groupby(ops, key=attrgetter("times")):
        yield from chain.from_iterable(repeat(tuple(together), times))


def _what(op: _Op) -> tuple[object, ...]:
    """Return what an event does, whichever tensor of a kind it takes."""
    return op.key, op.num_bytes > 0, op.times, op.mark, op.piece, op.held


def _taken(added: list[_Op], op: _Op) -> list[_Op]:
    """Take what comes in the place of an event: the same tensor, of another class; or nothing."""
    for place, other in enumerate(added):
        same_size = op.key[0] == other.key[0] and bool(op.key[0])
        if same_size and (op.num_bytes > 0, op.times) == (other.num_bytes > 0, other.times):
            return [added.pop(place)]
    return []


def _without(gone: _Op, op: _Op) -> _Op:
    """Return an event behind a tensor that is of another class now: one newer of its own less."""
    is_older = op.key == gone.key and _goes(op) and op.newer
    return op._replace(newer=op.newer - 1) if is_older else op


def _beside(made: _Op, op: _Op) -> _Op:
    """Return an event behind a tensor that is of its class now: one newer more."""
    return op._replace(newer=op.newer + 1) if op.key == made.key and _goes(op) else op


def _is_last_chunk(run: Run) -> bool:
    """Whether a run is of the last piece of the loss, with which backward begins."""
    return run.group == "chunk" and run.role == ("last" if run.phase == "forward" else "first")


def _input_last(ops: list[_Op]) -> list[_Op]:
    """Let what a forward was given go behind the whole parameters: its caller had hold of it."""
    last = next(i for i in range(len(ops), 0, -1) if not _goes(ops[i - 1]))
    own, inputs, others = Counter[Alike](), list[_Op](), list[_Op]()
    for place, op in enumerate(ops):
        is_input = op.piece is None and _goes(op) and op.newer >= own[op.key]
        if op.piece is None and not op.mark:
            own[op.key] += op.times * (1 if op.num_bytes else is_input - 1)
        if is_input and place >= last:
            inputs.append(op)
            continue
        others.append(op)
        if place >= last:  # and was newer than the inputs
            inputs = [_without(op, given) for given in inputs]
    return [*others, *inputs]


def _batch_first(ops: list[_Op]) -> list[_Op]:
    """Let tokens and labels come before what is gathered for them."""
    own = next(place for place, op in enumerate(ops) if op.piece is None)
    end = next(i for i in range(own, len(ops)) if ops[i].key != _BATCH)
    return [*ops[own:end], *ops[:own], *ops[end:]]


def _batch_last(ops: list[_Op]) -> list[_Op]:
    """Let them go behind what is reduced."""
    batch = [op for op in ops if op.key == _BATCH]
    return [*(op for op in ops if op.key != _BATCH), *batch]


def _goes(op: _Op) -> bool:
    return not op.num_bytes and not op.mark


def _is_again(run: Run) -> bool:
    """Whether a run is the backward of a block whose forward is run again."""
    return run.phase == "backward" and run.group == "checkpointed"


def _is_experts(key: Alike) -> bool:
    terms, _ = key
    return any(_PARTED in factors for factors, _ in terms)
