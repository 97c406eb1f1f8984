"""Which storages are allocated, device by device, and where each stands in what is recorded."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from brimful.pretend import engine
from brimful.pretend.device import NAME
from brimful.pretend.loop_state import Change
from brimful.pretend.recording_builder import Place, RecordingBuilder
from brimful.pretend.stretches import Moves
from brimful.pretend.telling import UnlikeStatesError

HOST = "cpu"
MAIN = f"{NAME}:0"
"""The device of which is asked where none is named."""
COUNTERS_OF_LIVE_BYTES = ("allocated_bytes", "requested_bytes", "active_bytes")
"""Of ``torch.cuda.memory_stats``; a tape knows bytes as they were asked for."""
_RESERVED = "reserved_bytes.all"
COUNTERS_OF_TROUBLE = ("num_alloc_retries", "num_ooms")
"""Of the same: a program that ends has had none."""


class LiveStorages:
    """Storages that somebody holds, by the address that PyTorch gave them.

    Attributes:
        builders: What is recorded of each device.
        first: Of the device that ``MAIN`` names.
        known: Each with its row, and the device's recording that it is in.
    """

    def __init__(self) -> None:
        """Begin with one device, and nothing on it."""
        self.builders: dict[Any, RecordingBuilder] = {}
        self.known: dict[int, tuple[weakref.ref[Any], int, RecordingBuilder]] = {}
        self.first = self.builder(torch.device(MAIN))

    def builder(self, where: Any) -> RecordingBuilder:
        """Return what is recorded of a device."""
        builder = self.builders.get(where)
        if builder is None:
            builder = self.builders[where] = RecordingBuilder()
            if len(self.builders) > 1:
                builder.enter_late(self.first.phases)
        return builder

    def follow(
        self,
        storage: Any,
        row: int,
        builder: RecordingBuilder,
        frees: Callable[[], bool] | None = None,
    ) -> None:
        """Free a row when PyTorch drops its storage."""
        key = storage._cdata  # noqa: SLF001

        def freed(_: Any) -> None:
            _, row, builder = self.known.pop(key)
            if frees is None or frees():
                builder.free(row)

        self.known[key] = (weakref.ref(storage, freed), row, builder)

    def let_go(self, tensor: Any) -> None:
        """Follow a tensor's storage no more: its allocation is freed by who asks for this."""
        for plain in engine.plain_tensors(tensor):
            del self.known[plain.untyped_storage()._cdata]  # noqa: SLF001

    def resized(self, storage: Any, num_bytes: int, place: Callable[[Any], Place]) -> None:
        """Move a storage to a row of another size; ``place`` says where that is allocated."""
        ref, row, builder = self.known[storage._cdata]  # noqa: SLF001
        where = next(d for d, b in self.builders.items() if b is builder)
        made = place(where)._replace(owner=builder.owner_of(row))
        # What is there is copied, so the new stretch is allocated before the old one is freed.
        new = builder.allocate(num_bytes, torch.Size((num_bytes,)), torch.uint8, made)
        builder.free(row)
        self.known[storage._cdata] = (ref, new, builder)  # noqa: SLF001

    def put_stretches(self, moves: Mapping[Any, Moves], change: Change) -> None:
        """Record further stretches of what is alike, and let there be what is there behind them.

        ``moves``: of each device. ``change``: of what the program holds. Raises UnlikeStatesError:
        it holds something that nobody sees, and nothing was done.
        """
        of_builder = {id(self.builders[where]): each for where, each in moves.items()}
        seen = {(row, id(builder)) for _, row, builder in list(self.known.values())}
        kept = {(row, id(builder)) for builder, row in self.rows(change.kept)}
        alive = {(x, key) for key, each in of_builder.items() for x in each.kept | each.carried}
        if not alive <= seen:
            raise UnlikeStatesError
        if kept != {(x, key) for key, each in of_builder.items() for x in each.kept}:
            raise UnlikeStatesError
        made: dict[tuple[int, int], torch.Tensor] = {}

        def new(like: torch.Tensor, num: int) -> torch.Tensor:
            _, row, builder = self.known[like.untyped_storage()._cdata]  # noqa: SLF001
            key = of_builder[id(builder)].row(row, num), id(builder)
            if key not in made:
                room = like.untyped_storage().nbytes() // like.dtype.itemsize
                made[key] = torch.empty(room, dtype=like.dtype, device=like.device)
                self.follow(made[key].untyped_storage(), key[0], builder)
            return made[key].as_strided(like.shape, like.stride(), like.storage_offset())

        def was_moved(key: int, tensor: torch.Tensor) -> None:
            if key in self.known:
                row, builder = self.known.pop(key)[1:]
                self.follow(tensor.untyped_storage(), row, builder)

        for where, each in moves.items():
            each.put(self.builders[where])
        # No name here may be left with a reference: what it is of would be followed for ever.
        self.known |= {
            key: (ref, each.row(row, each.num), builder)
            for key, (ref, row, builder) in list(self.known.items())
            if row in (each := of_builder[id(builder)]).carried
        }
        change.make(new, was_moved)

    def memory_stats(self, where: Any) -> dict[str, int]:
        """Return counters of a device under the names of ``torch.cuda.memory_stats``."""
        builder = self.builder(where)
        running = builder.allocator()
        return (
            dict.fromkeys(COUNTERS_OF_TROUBLE, 0)
            | {
                f"{_RESERVED}.current": running.reserved_bytes,
                f"{_RESERVED}.peak": running.peak_bytes,
            }
            | {
                f"{counter}.all.{when}": num_bytes
                for counter in COUNTERS_OF_LIVE_BYTES
                for when, num_bytes in (
                    ("current", builder.live_bytes),
                    ("peak", builder.peak_bytes),
                )
            }
        )

    def reset_peak(self, where: Any) -> None:
        """Start the peak of a device again from what is alive now."""
        builder = self.builder(where)
        builder.peak_bytes = builder.live_bytes
        builder.allocator().reset_peak()

    def flush_caches(self) -> None:
        """Take note on every device that cached memory is given back here."""
        for builder in self.builders.values():
            builder.flush_cache()

    def wait(self) -> None:
        """Have the host wait for every device."""
        for builder in self.builders.values():
            builder.wait()

    def knows(self, tensors: Iterable[Any]) -> bool:
        """Whether the storage of one of some plain tensors is allocated."""
        return any(x.untyped_storage()._cdata in self.known for x in tensors)  # noqa: SLF001

    def rows(self, tensors: Iterable[Any]) -> Iterable[tuple[RecordingBuilder, int]]:
        """Yield where the storages of tensors stand that are known."""
        for tensor in tensors:
            for plain in engine.plain_tensors(tensor):
                entry = self.known.get(plain.untyped_storage()._cdata)  # noqa: SLF001
                if entry is not None:
                    yield entry[2], entry[1]

    def owner_of_inputs(self, args: Any, index: int | None) -> str:
        """Return whose the input is: an optimizer's state is its parameter's module's.

        ``index``: which of a list of results this is; each is of the input in its place. None for
        the only one: if it is made of a list, such as the norms of all gradients, it is nobody's.
        """
        for x in args:
            if isinstance(x, (list, tuple)):
                if index is None or index >= len(x):
                    continue
                x = x[index]  # noqa: PLW2901
            if isinstance(x, torch.Tensor):
                for builder, row in self.rows((x,)):
                    return builder.owner_of(row)
        return ""
