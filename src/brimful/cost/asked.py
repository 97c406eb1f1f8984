"""What is asked of the allocator, tensor by tensor.

One that goes is found by its kind, by the block whose gradient it is, or by the piece of what
sharding adds.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.in_use import done_from
from brimful.allocator.replay import Requests
from brimful.cost.additions import NUM_PIECES, Piece
from brimful.cost.piece_tensors import NUM_STREAMS, OLDEST_FIRST, Tensors
from brimful.cost.profiles import Alike
from brimful.cost.recipes import FP32_BYTES, HALF_BYTES
from brimful.cost.resident import Made
from brimful.values.results import GRADIENTS, ITEM_NAMES

GRADIENT = ITEM_NAMES.index(GRADIENTS)
SHARDS = frozenset({Piece.BLOCK_SHARD, Piece.REST_SHARD, Piece.EXPERTS_SHARD})
_MOST_GATHERED = 2
"""Units that FSDP1 has let go of before a gather waits for the first of them to be free.
Source: ``_FreeEventQueue`` of ``torch/distributed/fsdp/_limiter_utils.py``."""
_Rows = defaultdict[Alike, list[int]]
_Pieces = defaultdict[int, list[list[int]]]
"""By piece and part (``additions.of_part``)."""


class Move(NamedTuple):
    """A tensor of a kind that comes or goes.

    Attributes:
        number: Of its kind, the same for all moves of that kind.
        key: The kind.
        num_bytes: Of it; 0: it goes.
        newer: Of those that are still there, how many came behind the one that goes.
        stream: On which it comes.
        beside: Bytes that come and go behind it, as it is made.
        is_gradient: Whether it is one, which no micro-batch owns.
        is_expert: Whether it is that of parted experts.
        is_used: Whether another stream uses it when it goes.
    """

    number: int
    key: Alike
    num_bytes: int
    newer: int
    stream: int
    beside: int
    is_gradient: bool
    is_expert: bool
    is_used: bool = False


class Asked:
    """Requests so far, and which rows there are of every key.

    Attributes:
        num_unmatched: Events that let go of what was never there; 0 unless a profile is wrong.
    """

    def __init__(self, *, leaves: bool = False) -> None:
        """Begin with nothing.

        ``leaves``: whether reduced shards go to the host, those that came first first.
        """
        self.num_unmatched = 0
        self._oldest_first = OLDEST_FIRST | SHARDS if leaves else OLDEST_FIRST
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._streams: list[int] = []
        self._gradients: _Rows = defaultdict(list)
        self._rows: _Rows = defaultdict(list)
        self._pieces: _Pieces = defaultdict(list)
        self._rows_of: defaultdict[Hashable, _Rows] = defaultdict(lambda: defaultdict(list))
        self._pieces_of: defaultdict[Hashable, _Pieces] = defaultdict(lambda: defaultdict(list))
        self._of_blocks: list[dict[int, bool]] = []
        self._of_rest: list[dict[int, bool]] = []
        self._keys: dict[int, Alike] = {}
        self._lists: dict[int, list[int]] = {}
        self._lists_of: defaultdict[Hashable, dict[int, list[int]]] = defaultdict(dict)
        self._first_stream = 0
        self._late: list[int] = []
        self._used: dict[int, int] = {}
        self._waits: list[int] = []
        self._flushes: list[int] = []
        self._launches: list[int] = []
        self._num_let_go = 0

    def allocate(self, num_bytes: int, stream: int = 0) -> int:
        """Ask for memory, and return its row."""
        row = len(self._sizes)
        self._sizes.append(num_bytes)
        self._streams.append(stream)
        self._events.append(row)
        return row

    def free(self, rows: Iterable[int]) -> None:
        """Give rows back."""
        self._events.extend(~row for row in rows)

    def make(self, things: Iterable[Made]) -> None:
        """Ask for what stays, and for what it is made from."""
        events, sizes, streams = self._events, self._sizes, self._streams
        for num_bytes, passing in things:
            first, num = len(sizes), len(num_bytes)
            sizes += num_bytes
            streams += [0] * num
            if not passing:
                events += range(first, first + num)
                continue
            for place in range(num):
                events.append(first + place)
                events += [~(first + gone) for gone, behind in passing if behind == place]

    def pass_by(self, sizes: Sequence[int]) -> None:
        """Ask for what goes at once."""
        self.free([self.allocate(num_bytes) for num_bytes in sizes])

    # -- what other streams use --

    def wait(self) -> None:
        """Let the host wait for the device."""
        self._waits.append(len(self._events))

    def flush(self) -> None:
        """Give back all that is cached."""
        self._flushes.append(len(self._events))

    def launch(self, num: int) -> None:
        """Give the device so many operations to do, which matter where streams share memory."""
        if self._used:
            self._launches.extend([len(self._events)] * num)

    def gather(self) -> None:
        """Let the host wait where too many units were let go of and may still be used.

        Told stronger than its source: that waits for the first of them alone, and here, as on the
        tape (``pretend/streams.py``), all that was let go of has been done with behind a wait.
        So the unit let go of last is free one gather too early.
        """
        if self._num_let_go >= _MOST_GATHERED:
            self._num_let_go -= 1
            self.wait()

    def free_used(self, rows: Sequence[int]) -> None:
        """Give rows back that another stream may still use."""
        for row in rows:
            self._used[row] = len(self._events)
            self._events.append(~row)

    # -- by key --

    def enter(self, stage: int, micro_batch: int) -> None:
        """Go on among the rows of one micro-batch in one stage, its pieces and its streams."""
        self._rows = self._rows_of[stage, micro_batch]
        self._lists = self._lists_of[stage, micro_batch]
        self._pieces = self._pieces_of[stage]
        self._first_stream = stage * NUM_STREAMS

    @property
    def num_rows(self) -> int:
        """How many rows were asked for; the next has this number."""
        return len(self._sizes)

    def take(self, key: Alike, since: int = 0) -> list[int]:
        """Return the newest row of a kind, which is the caller's to give back; none: nothing.

        ``since``: the first row that may be it.
        """
        row = [row for row in self._alike(key)[-1:] if row >= since]
        for one in row:
            self._alike(key).pop()
            del self._keys[one]
        return row

    def leave(self, item: int | None = None, *, but: int = 0) -> None:
        """Give back what there is left where this goes on, oldest first.

        ``item``: index of a class; None: of every class, but for gradients.
        """
        kinds = [key for key in self._rows if item in {None, key[1]}]
        rows = sorted(row for key in kinds for row in self._rows[key])
        self._let_go(rows[: len(rows) - but])

    def come(self, key: Alike, num_bytes: int, stream: int = 0) -> int:
        """Ask for a tensor of a kind."""
        row = self.allocate(num_bytes, stream)
        self._alike(key).append(row)
        self._keys[row] = key
        return row

    def play(self, moves: Iterable[Move], part: dict[int, bool]) -> None:
        """Ask for tensors and give them back, move by move.

        The loop is hot: a kind's rows are found by its number, as hashing kinds would take most of
        the time.
        """
        events, sizes, streams, keys = self._events, self._sizes, self._streams, self._keys
        lists = self._lists
        for number, key, num_bytes, newer, stream, beside, is_gradient, is_expert, is_used in moves:
            rows = lists.get(number)
            if rows is None:
                rows = lists[number] = self._alike(key)
            if num_bytes:
                row = len(sizes)
                sizes.append(num_bytes)
                streams.append(stream)
                events.append(row)
                rows.append(row)
                keys[row] = key
                if beside:
                    self.pass_by((beside,))
                if is_gradient:
                    part[row] = is_expert
            elif rows:
                row = rows.pop(max(-len(rows), -1 - newer))
                del keys[row]
                if is_gradient:
                    self._forget(row)
                if is_used:
                    self._used[row] = len(events)
                events.append(~row)
            else:
                self.num_unmatched += 1

    def _forget(self, row: int) -> None:
        for part in (*self._of_blocks, *self._of_rest):
            part.pop(row, None)

    def _alike(self, key: Alike) -> list[int]:
        """Return the rows of a kind; gradients are no micro-batch's own."""
        _, item = key
        return (self._gradients if item == GRADIENT else self._rows)[key]

    # -- gradients, which the pieces of a block or of the rest let go of together --

    def begin_block(self) -> dict[int, bool]:
        """Begin a block's backward, and return where its gradients are put down."""
        return _new_part(self._of_blocks)

    def begin_rest(self) -> dict[int, bool]:
        """Begin a micro-batch; return the same for what is in no block, which is one part."""
        return _new_part(self._of_rest)

    def reduce(
        self,
        *,
        is_block: bool,
        is_experts: bool | None = None,
        held: int | None = None,
        newest: bool = False,
        last_bytes: int = 0,
    ) -> None:
        """Give back the gradients of the part that came first.

        ``is_experts``: whether only those of its experts, or all others; None: all. ``held``: the
        piece that they become: each is there in a wider type before it goes. ``newest``: whether it
        is that of the part that came last instead. ``last_bytes``: of the last parameter's, which
        goes when the reduced shard is there: the loop over parameters has hold of it
        (``foreach_reduce`` of ``_fsdp_collectives``).
        """
        parts = [part for part in (self._of_blocks if is_block else self._of_rest) if part]
        if not parts:  # of adapters the rest has none
            self.num_unmatched += is_block
            return
        part = parts[-1 if newest else 0]
        chosen = [row for row, is_one in part.items() if is_experts in {None, is_one}]
        for row in chosen:
            del part[row]
        if held is None:
            last = [row for row in chosen if self._sizes[row] == last_bytes][:1]
            self._let_go([row for row in chosen if row not in last])
            self._free_late()
            self._late = last
            return
        wide: list[int] = []
        for row in reversed(chosen):  # in the order of parameters
            wide.append(self.allocate(self._sizes[row] * FP32_BYTES // HALF_BYTES))
            self._let_go([row])
        self._pieces[held].append(wide)

    def drop_gradients(self, *, has_embedding: bool = True) -> None:
        """Give back every gradient in the order of parameters.

        That is the embedding's, if there is one, then blocks', what came last first, then norm and
        head.
        """
        self._free_late()
        rest = sorted((row for part in self._of_rest for row in part), reverse=True)
        first = max(rest, key=self._sizes.__getitem__, default=None) if has_embedding else None
        blocks = sorted((row for part in self._of_blocks for row in part), reverse=True)
        ends = [row for row in rest if row != first]
        self._let_go([*([] if first is None else [first]), *blocks, *ends])
        self._of_blocks.clear()
        self._of_rest.clear()
        for stage in [*self._pieces_of.values()] or [self._pieces]:
            self._pieces = stage
            for piece in self.whichever(Piece.EXPERTS_SHARD, Piece.BLOCK_SHARD, Piece.REST_SHARD):
                self.drop(piece)

    def _let_go(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._alike(self._keys.pop(row)).remove(row)
            self._events.append(~row)

    # -- pieces --

    def whichever(self, *pieces: Piece) -> list[int]:
        """Return pieces of every part that there are of, in order."""
        return [each for piece in pieces for each in self._pieces if each % NUM_PIECES == piece]

    def come_piece(self, piece: int, tensors: Tensors) -> None:
        """Ask for the tensors of a piece."""
        stream = tensors.stream and self._first_stream + tensors.stream
        if piece % NUM_PIECES not in SHARDS:
            self._free_late()
        if tensors.is_limited:
            self.gather()
        rows = [self.allocate(num_bytes, stream) for num_bytes in tensors.num_bytes]
        self._pieces[piece].append(rows)
        self.launch(len(rows))
        self._free_late()

    def _free_late(self) -> None:
        late, self._late = self._late, []
        self._let_go(late)

    def has(self, piece: int) -> bool:
        """Whether there is any of a piece."""
        return bool(self._pieces[piece])

    def go_piece(self, piece: int, tensors: Tensors | None = None) -> None:
        """Give a piece back.

        ``tensors``: what it is made of; None: nothing that other streams use.
        """
        if not self._pieces[piece]:
            self.num_unmatched += 1
            return
        is_oldest = piece % NUM_PIECES in self._oldest_first
        rows = self._pieces[piece].pop(0 if is_oldest else -1)
        if tensors is None or not tensors.is_used:
            self.free(rows)
            return
        self.free_used(rows)
        self._num_let_go += tensors.is_limited

    def drop(self, piece: int) -> None:
        """Give back all that there is of a piece."""
        for rows in reversed(self._pieces.pop(piece, [])):
            self.free(rows)

    def requests(self) -> Requests:
        """Return all of it as columns."""
        return Requests(
            events=np.array(self._events, dtype=np.int64),
            num_bytes=np.array(self._sizes, dtype=np.int64),
            streams=np.array(self._streams, dtype=np.int64),
            in_use_until=self._until() if self._used else None,
            cache_flushes=np.array(self._flushes, dtype=np.int64) if self._flushes else None,
        )

    def _until(self) -> NDArray[np.int64]:
        """Return, per row, from when on other streams have done with it; 0 where none uses it."""
        until = np.zeros(len(self._sizes), dtype=np.int64)
        freed = np.array([*self._used.values()], dtype=np.int64)
        done = done_from(freed, self._waits, self._launches, len(self._events))
        until[[*self._used]] = done
        return until


def _new_part(parts: list[dict[int, bool]]) -> dict[int, bool]:
    if not parts or parts[-1]:
        parts.append({})
    return parts[-1]
