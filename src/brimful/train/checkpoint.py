"""Saving and loading a run so that nothing half-written is ever taken for a checkpoint.

A checkpoint is a folder ``step-00000020`` with the tensors (``tensor_files``) and a
``checkpoint.json`` with everything else. It is made under another name, synced, and renamed: a
folder with that name is whole, however the process or the machine ended. What of a program is
saved says ``program_state``; which checkpoints are kept says ``rotation``.
"""

import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from brimful.build.program import Program
from brimful.errors import FileFormatError
from brimful.files.writing import disk_error, write_bytes
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.text.escaping import json_text
from brimful.train.data.batches import DataPosition
from brimful.train.folders import sync
from brimful.train.program_state import (
    PlainState,
    ProgramState,
    adopt,
    base_checksum,
    capture,
    check_base,
    merged,
    of_others,
    room_for,
)
from brimful.train.tensor_files import load_tensors, read_shapes, save_tensors
from brimful.train.world import is_first, of_all, together, told_by_first
from brimful.units import MIB
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy, gathers

CHECKPOINT_SCHEMA = "brimful.checkpoint/2"
_MANIFEST = "checkpoint.json"
_CHECKSUM = "checkpoint.crc32"
"""Of the manifest, in hexadecimal; checkpoints of earlier versions have none."""
_NAME = re.compile(r"step-(\d{8,})")
_DAMAGED = "damaged-"
"""What the name of a checkpoint begins with that is not as it was saved."""


class OtherSchemaError(FileFormatError):
    """A checkpoint is of another version of this program, which is no damage."""


class SavedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a checkpoint, its length and its checksum: torch notices no flipped bit itself."""

    name: str
    num_bytes: int
    crc32: int


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The one field that every schema has had and will have."""

    schema: str


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint says about itself.

    Attributes:
        schema: ``CHECKPOINT_SCHEMA``.
        step: Optimizer steps done.
        position: Where the next step's data begins.
        tokens_hash: Which tokens it was trained on.
        heldout_loss: After this very step, in nats per token; None where it was not judged.
        plan: The plan it was trained by.
        state: What the program holds besides tensors.
        torch_version: Which torch wrote the tensors.
        files: Every other file of the folder.
    """

    schema: str
    step: int
    position: DataPosition
    tokens_hash: str
    heldout_loss: float | None
    plan: Plan
    state: PlainState
    torch_version: str
    files: tuple[SavedFile, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come: what a checkpoint holds besides the program; see ``Checkpoint``."""

    plan: Plan
    step: int
    position: DataPosition
    tokens_hash: str
    heldout_loss: float | None


def save_checkpoint(root: Path, program: Program, progress: Progress) -> Path:
    """Save a run.

    ``root``: the run's ``checkpoints`` folder. ``program``: model, optimizer and device; the
    generators' states are saved with them. Returns the folder. Where the step is already saved and
    sound, nothing is written. Raises RunError: the disk is full or cannot be written; earlier
    checkpoints are untouched. Raises UnsupportedError: the optimizer's state cannot be saved.
    """
    return write_checkpoint(root, capture(program, base_crc32=base_checksum(program)), progress)


def write_checkpoint(
    root: Path, state: ProgramState, progress: Progress, *, group: Any = None
) -> Path:
    """Save a state that nothing changes meanwhile; see ``save_checkpoint``.

    Of many processes all call this; the first makes the folder, and gives it its name.
    """
    final = root / f"step-{progress.step:08d}"
    if told_by_first(is_first() and is_sound(final), group):
        return final
    temporary = root / f".{final.name}.tmp"
    try:
        with _by_first(final, group) as first:
            if first:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        with _named(final):
            save_tensors(temporary, state.tensors, group=group)
        plain = merged(of_all(state.plain, group))
        with _by_first(final, group) as first:
            if first:
                _write_manifest(temporary, plain, progress)
                _rename(temporary, final)
    finally:
        if is_first():
            shutil.rmtree(temporary, ignore_errors=True)
    return final


@contextmanager
def _by_first(final: Path, group: Any) -> Iterator[bool]:
    """Say whether this process does it, and let a full disk end all of them."""
    with together(group), _named(final):
        yield is_first()


@contextmanager
def _named(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(final, error) from error


def _rename(temporary: Path, final: Path) -> None:
    sync(temporary)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    sync(final.parent)  # a rename is durable only once the folder that holds the name is


def load_checkpoint(folder: Path, program: Program, *, is_checked: bool = False) -> Checkpoint:
    """Put a checkpoint's tensors, numbers and generator states into a freshly built program.

    ``is_checked``: whether its content was found sound just now (``sound_checkpoint``). Returns
    what the checkpoint says about itself. Raises FileFormatError: it is not a checkpoint of ours,
    is damaged, or is of another model.
    """
    checkpoint = read_checkpoint(folder)
    if not is_checked:
        _check_content(folder, checkpoint)
    check_base(program, checkpoint.state)
    # Refuse moments in few bits of other shards: a scale is of a block that begins with one.
    rule = OPTIMIZERS[program.job.optimizer]
    theirs, ours = _cut(checkpoint.plan.strategy), _cut(program.strategy)
    if rule.rounds and theirs != ours:
        raise FileFormatError(
            f"{folder} has moments of {rule.name} in blocks that begin with each shard of {theirs} "
            f"and this plan has shards of {ours}; resume in the way that it was saved, or begin "
            f"anew"
        )
    saved = read_shapes(folder)
    room = room_for(program, saved, checkpoint.state)
    wanted = set(room) | of_others(program, saved)
    with together():
        _check_names(folder, set(saved), wanted)
    load_tensors(folder, room, torch_version=checkpoint.torch_version)
    adopt(program, room, checkpoint.state)
    return checkpoint


def _cut(strategy: Strategy) -> str:
    """Say by what parameters are cut."""
    num_shards = strategy.dp_shard if gathers(strategy) else 1
    return f"dp_shard={num_shards}, tp={strategy.tp}, ep={strategy.ep}"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read what a checkpoint says about itself and check that its files are there in full."""
    checkpoint = _read_manifest(folder)
    for file in checkpoint.files:
        path = folder / file.name
        if path.name != file.name or file.name == "..":
            raise FileFormatError(
                f"{folder} is not a checkpoint: it names {file.name!r}, outside it; name another"
            )
        num_bytes = path.stat().st_size if path.is_file() else 0
        if num_bytes != file.num_bytes:
            raise FileFormatError(
                f"{path} has {num_bytes} of {file.num_bytes} bytes; delete {folder} and resume"
            )
    return checkpoint


def list_checkpoints(root: Path) -> list[Path]:
    """List the checkpoints of a run by step, damaged ones too."""
    if not root.is_dir():
        return []
    return sorted(
        (path for path in root.iterdir() if _NAME.fullmatch(path.name)),
        key=_step_of,
    )


def newest_checkpoint(root: Path) -> Path | None:
    """Find the newest complete checkpoint; None where there is no checkpoint at all.

    Raises FileFormatError: there are checkpoints and every one is damaged.
    """
    folders = list_checkpoints(root)
    for folder in reversed(folders):
        if is_complete(folder):
            return folder
    if folders:
        read_checkpoint(folders[-1])
    return None


class Damaged(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is not as it was saved: its step, where it is, what is wrong with it."""

    step: int
    path: Path
    reason: str


class Sound(msgspec.Struct, frozen=True, kw_only=True):
    """The newest sound checkpoint of a run, and those that were newer and were not."""

    path: Path
    checkpoint: Checkpoint
    damaged: tuple[Damaged, ...]


def sound_checkpoint(root: Path) -> Sound | None:
    """Find the newest checkpoint whose files are as they were saved; reads all of their content.

    Returns it; None where there is no checkpoint at all. Raises OtherSchemaError: the newest that
    can be read is of another version.
    """
    folders, damaged = list_checkpoints(root), list[Damaged]()
    for folder in reversed(folders):
        try:
            checkpoint = read_checkpoint(folder)
            _check_content(folder, checkpoint)
        except OtherSchemaError:
            raise
        except FileFormatError as error:
            reason = str(error).rpartition("; ")[0]
            damaged.append(Damaged(step=_step_of(folder), path=folder, reason=reason))
            continue
        return Sound(path=folder, checkpoint=checkpoint, damaged=tuple(damaged))
    if folders:
        count = "the only checkpoint" if len(folders) == 1 else f"all {len(folders)} checkpoints"
        raise FileFormatError(
            f"{count} of {root} cannot be used: {damaged[0].reason}; put a copy back, or start "
            f"again in another --out"
        )
    return None


def set_aside(folder: Path) -> Path:
    """Keep a damaged checkpoint under another name.

    No run goes on from it then, and none counts it among its newest or writes over it.

    Raises RunError: it cannot be renamed.
    """
    names = (f"{_DAMAGED}{folder.name}{end}" for end in ("", *(f"-{n}" for n in range(2, 1000))))
    target = next(path for path in map(folder.with_name, names) if not path.exists())
    with _named(folder):
        folder.rename(target)
        sync(folder.parent)
    return target


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint's files are there in full; their content is not read."""
    try:
        read_checkpoint(folder)
    except FileFormatError:
        return False
    return True


def is_sound(folder: Path) -> bool:
    """Whether a checkpoint's files are there in full and as they were saved."""
    try:
        _check_content(folder, read_checkpoint(folder))
    except FileFormatError:
        return False
    return True


def _read_manifest(folder: Path) -> Checkpoint:
    try:
        content = (folder / _MANIFEST).read_bytes()
        _check_manifest(folder, content)
        # The schema first: of another one nothing else is known.
        schema = msgspec.json.decode(content, type=_Header).schema
        if schema == CHECKPOINT_SCHEMA:
            return msgspec.json.decode(content, type=Checkpoint)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{folder} is not a checkpoint ({error}); name another") from error
    raise OtherSchemaError(
        f"{folder} has schema {schema!r} and this version reads {CHECKPOINT_SCHEMA!r}; "
        f"use the version that wrote it, or start the run again"
    )


def _write_manifest(folder: Path, state: PlainState, progress: Progress) -> None:
    manifest = Checkpoint(
        schema=CHECKPOINT_SCHEMA,
        step=progress.step,
        position=progress.position,
        tokens_hash=progress.tokens_hash,
        heldout_loss=progress.heldout_loss,
        plan=progress.plan,
        state=state,
        torch_version=str(torch.__version__),
        files=tuple(
            SavedFile(name=path.name, num_bytes=path.stat().st_size, crc32=_crc32(path))
            for path in sorted(folder.iterdir())
        ),
    )
    content = json_text(manifest, indent=2).encode()
    write_bytes(folder / _MANIFEST, content)
    write_bytes(folder / _CHECKSUM, f"{zlib.crc32(content):08x}\n".encode())


def _check_manifest(folder: Path, content: bytes) -> None:
    """Notice a flipped bit in what a checkpoint says about itself, which may still be JSON."""
    path = folder / _CHECKSUM
    if not path.is_file():
        return
    known, found = path.read_bytes().strip(), f"{zlib.crc32(content):08x}".encode()
    if known != found:
        raise FileFormatError(
            f"{folder / _MANIFEST} has checksum {found.decode()} and was saved with "
            f"{known.decode('ascii', 'replace')}; delete {folder} and resume"
        )


def _check_content(folder: Path, checkpoint: Checkpoint) -> None:
    for file in checkpoint.files:
        crc32 = _crc32(folder / file.name)
        if crc32 != file.crc32:
            raise FileFormatError(
                f"{folder / file.name} has checksum {crc32:08x} and was saved with "
                f"{file.crc32:08x}; delete {folder} and resume"
            )


def _crc32(path: Path) -> int:
    checksum = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(MIB):
                checksum = zlib.crc32(chunk, checksum)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error.strerror}); check it") from error
    return checksum


def _check_names(folder: Path, saved: set[str], wanted: set[str]) -> None:
    if saved != wanted:
        odd = min(saved ^ wanted)
        whose = "the checkpoint" if odd in saved else "the plan's model"
        raise FileFormatError(
            f"{folder} is of another model: {odd} is in {whose} only; "
            f"resume with the plan that started the run"
        )
