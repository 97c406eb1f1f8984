"""Saving while a run goes on: at once, or in the background from a copy in host memory.

The background is a thread around the same atomic ``write_checkpoint``: ``dcp.async_save`` ends with
DCP's own files, and checksums, manifest and rename would still be to do when it says it is done.
Tensors change in place in the next step, so the copy is made before ``save`` returns; there is one,
reused from save to save, and never more than one write in flight. The interpreter waits for the
thread before it ends.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from brimful.build.own import own_memory, sharded_as
from brimful.build.program import Program
from brimful.errors import BrimfulError
from brimful.train.checkpoint import Progress, write_checkpoint
from brimful.train.program_state import ProgramState, base_checksum, capture
from brimful.train.rotation import Kept, remove_old
from brimful.train.settings import SaveMode
from brimful.train.world import host_group, is_first


class Saved(NamedTuple):
    """A checkpoint that is whole and on the disk."""

    step: int
    path: Path


class Saver(ABC):
    """Keeps the checkpoints of one run."""

    @abstractmethod
    def save(self, program: Program, progress: Progress) -> None:
        """Save a run between two steps; the program may change as soon as this returns.

        Raises RunError: this checkpoint, or the one before it, could not be written. Raises
        UnsupportedError: the optimizer's state cannot be saved.
        """

    @abstractmethod
    def finished(self) -> list[Saved]:
        """List the checkpoints that became whole since this was last asked; does not wait.

        Raises RunError: one could not be written.
        """

    @abstractmethod
    def wait(self) -> list[Saved]:
        """Wait for what is being written; else as ``finished``."""


@contextmanager
def open_saver(root: Path, *, mode: SaveMode, kept: Kept) -> Iterator[Saver]:
    """Keep the checkpoints of a run while it lasts.

    ``root``: the run's ``checkpoints`` folder. ``mode``: ``sync`` writes while training waits,
    ``async`` in the background. Yields the saver. When the block ends nothing is being written any
    more. Raises RunError: the last checkpoint could not be written. Where the run ended with
    another error, that one says so too.
    """
    if mode == "sync":
        yield _SyncSaver(root, kept)
        return
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint") as thread:
        saver = _AsyncSaver(root, kept, thread)
        try:
            yield saver
        except BaseException as error:
            # Let an error that ends the run say that its last checkpoint failed too.
            try:
                saver.wait()
            except BrimfulError as failure:
                also = f"; besides, the last checkpoint failed: {failure}"
                if isinstance(error, BrimfulError):
                    error.args = (f"{error}{also}",)
                else:
                    error.add_note(also.removeprefix("; "))
            raise
        saver.wait()


class _SyncSaver(Saver):
    def __init__(self, root: Path, kept: Kept) -> None:
        self._root, self._kept = root, kept
        self._base: _Base = _Base()
        self._finished: list[Saved] = []

    def save(self, program: Program, progress: Progress) -> None:
        state = capture(program, base_crc32=self._base.checksum(program))
        self._finished.append(_write(self._root, state, progress, self._kept))

    def finished(self) -> list[Saved]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self) -> list[Saved]:
        return self.finished()


class _AsyncSaver(Saver):
    def __init__(self, root: Path, kept: Kept, thread: ThreadPoolExecutor) -> None:
        self._root, self._kept, self._thread = root, kept, thread
        self._base = _Base()
        self._group = host_group()  # collectives of a thread must not meet those of training
        self._copy: dict[str, torch.Tensor] = {}
        self._writing: Future[Saved] | None = None
        self._finished: list[Saved] = []

    def save(self, program: Program, progress: Progress) -> None:
        # The one copy is free again only when what it held is on the disk.
        self._await()
        state = capture(program, base_crc32=self._base.checksum(program))
        self._copy = _copied(state.program, into=self._copy)
        copied = state._replace(program=self._copy)
        self._writing = self._thread.submit(
            _write, self._root, copied, progress, self._kept, self._group
        )

    def finished(self) -> list[Saved]:
        if self._writing is not None and self._writing.done():
            self._await()
        finished, self._finished = self._finished, []
        return finished

    def wait(self) -> list[Saved]:
        self._await()
        return self.finished()

    def _await(self) -> None:
        """Wait for the write in flight; its error is raised once."""
        if self._writing is None:
            return
        try:
            saved = self._writing.result()
        except KeyboardInterrupt:
            # Ours, not the write's: that goes on and is asked for again.
            raise
        except BaseException:
            self._writing = None
            raise
        self._writing = None
        self._finished.append(saved)


class _Base:
    """The checksum of a frozen base, which is read once."""

    def __init__(self) -> None:
        self._known: dict[int, int | None] = {}

    def checksum(self, program: Program) -> int | None:
        key = id(program.model)
        if key not in self._known:
            self._known[key] = base_checksum(program)
        return self._known[key]


def _write(
    root: Path, state: ProgramState, progress: Progress, kept: Kept, group: Any = None
) -> Saved:
    path = write_checkpoint(root, state, progress, group=group)
    if is_first():
        remove_old(root, kept)
    return Saved(progress.step, path)


def _copied(
    tensors: dict[str, torch.Tensor], *, into: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Copy tensors to the host, into the memory of the last copy where that still fits."""
    copies = {name: _room(tensor, into.get(name)) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        own_memory(copies[name]).copy_(own_memory(tensor), non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return copies


def _room(tensor: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    if before is not None and (before.shape, before.dtype) == (tensor.shape, tensor.dtype):
        return before
    own = own_memory(tensor)
    # Only pinned memory is filled without a second copy in between.
    room = torch.empty(own.shape, dtype=own.dtype, pin_memory=own.is_cuda)
    return sharded_as(tensor, room)
