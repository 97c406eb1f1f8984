"""Saving and loading a run so that nothing half-written is ever taken for a checkpoint.

A checkpoint is a folder ``step-00000020`` with the tensors (``tensor_files``) and a
``checkpoint.json`` with everything else. It is made under another name, synced, and renamed: a
folder with that name is whole, however the process or the machine ended. Random states are torch's
own (host and device); nothing in a run draws from Python's or NumPy's.
"""

import os
import re
import shutil
import zlib
from pathlib import Path

import msgspec
import torch

from brimful.build.program import Program
from brimful.errors import FileFormatError
from brimful.files import disk_error, write_bytes
from brimful.plan import Plan
from brimful.train.data.batches import DataPosition
from brimful.train.tensor_files import TensorShape, load_tensors, read_shapes, save_tensors
from brimful.units import MIB

CHECKPOINT_SCHEMA = "brimful.checkpoint/1"
NUM_KEPT = 2
_MANIFEST = "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")
_LEFTOVER = re.compile(r"\.step-\d{8,}\.tmp")


class SavedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a checkpoint, its length and its checksum: torch notices no flipped bit itself."""

    name: str
    num_bytes: int
    crc32: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint says about itself.

    Attributes:
        schema: ``CHECKPOINT_SCHEMA``.
        step: Optimizer steps done.
        position: Where the next step's data begins.
        tokens_hash: Which tokens it was trained on.
        plan: The plan it was trained by.
        torch_version: Which torch wrote the tensors.
        files: Every other file of the folder.
    """

    schema: str
    step: int
    position: DataPosition
    tokens_hash: str
    plan: Plan
    torch_version: str
    files: tuple[SavedFile, ...]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come: what a checkpoint holds besides the program's tensors."""

    plan: Plan
    step: int
    position: DataPosition
    tokens_hash: str


def save_checkpoint(root: Path, program: Program, progress: Progress) -> Path:
    """Save a run, then drop all but the newest ``NUM_KEPT`` checkpoints and any leftovers.

    Args:
        root: The run's ``checkpoints`` folder.
        program: Model, optimizer and device; the generators' states are saved with them.
        progress: The rest.

    Returns:
        The folder. Where the step is already saved whole, nothing is written.

    Raises:
        RunError: The disk is full or cannot be written; earlier checkpoints are untouched.
    """
    final = root / f"step-{progress.step:08d}"
    if _is_complete(final):
        return final
    temporary = root / f".{final.name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_tensors(temporary, _tensors(program))
        _write_manifest(temporary, progress)
        _sync_folder(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync_folder(root)
    except OSError as error:
        raise disk_error(final, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    remove_old(root)
    return final


def load_checkpoint(folder: Path, program: Program) -> Checkpoint:
    """Put a checkpoint's tensors and generator states into a freshly built program, in place.

    Returns:
        What the checkpoint says about itself.

    Raises:
        FileFormatError: It is not a checkpoint of ours, is damaged, or is of another model.
    """
    checkpoint = read_checkpoint(folder)
    _check_content(folder, checkpoint)
    saved = read_shapes(folder)
    model, rng = _model_tensors(program), _rng_tensors(program)
    optimizer = _empty_optimizer_state(saved, program)
    targets = {**model, **rng, **{name: tensor for name, (_, _, tensor) in optimizer.items()}}
    _check_names(folder, set(saved), set(targets))
    load_tensors(folder, targets, torch_version=checkpoint.torch_version)
    for parameter, key, tensor in optimizer.values():
        program.optimizer.state[parameter][key] = tensor
    _restore_rng(rng, program.device)
    return checkpoint


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read what a checkpoint says about itself and check that its files are there in full.

    Raises:
        FileFormatError: It is not a checkpoint of ours, or files are missing or cut off.
    """
    try:
        checkpoint = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Checkpoint)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{folder} is not a checkpoint ({error}); name another") from error
    if checkpoint.schema != CHECKPOINT_SCHEMA:
        raise FileFormatError(
            f"{folder} has schema {checkpoint.schema!r} and this version reads "
            f"{CHECKPOINT_SCHEMA!r}; start the run again"
        )
    for file in checkpoint.files:
        path = folder / file.name
        num_bytes = path.stat().st_size if path.is_file() else 0
        if num_bytes != file.num_bytes:
            raise FileFormatError(
                f"{path} has {num_bytes} of {file.num_bytes} bytes; delete {folder} and resume"
            )
    return checkpoint


def newest_checkpoint(root: Path) -> Path | None:
    """Find the newest complete checkpoint; None where there is no checkpoint at all.

    Raises:
        FileFormatError: There are checkpoints and every one is damaged.
    """
    folders = _checkpoints(root)
    for folder in reversed(folders):
        if _is_complete(folder):
            return folder
    if folders:
        read_checkpoint(folders[-1])
    return None


def remove_old(root: Path) -> None:
    """Remove all but the newest ``NUM_KEPT`` checkpoints, and what a killed save left behind."""
    complete = [folder for folder in _checkpoints(root) if _is_complete(folder)]
    leftovers = [path for path in root.iterdir() if _LEFTOVER.fullmatch(path.name)]
    for folder in (*complete[:-NUM_KEPT], *leftovers):
        shutil.rmtree(folder, ignore_errors=True)


def _checkpoints(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(
        (path for path in root.iterdir() if _NAME.fullmatch(path.name)),
        key=lambda path: int(path.name.removeprefix("step-")),
    )


def _is_complete(folder: Path) -> bool:
    try:
        read_checkpoint(folder)
    except FileFormatError:
        return False
    return True


def _write_manifest(folder: Path, progress: Progress) -> None:
    manifest = Checkpoint(
        schema=CHECKPOINT_SCHEMA,
        step=progress.step,
        position=progress.position,
        tokens_hash=progress.tokens_hash,
        plan=progress.plan,
        torch_version=str(torch.__version__),
        files=tuple(
            SavedFile(name=path.name, num_bytes=path.stat().st_size, crc32=_crc32(path))
            for path in sorted(folder.iterdir())
        ),
    )
    write_bytes(folder / _MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


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
    with path.open("rb") as file:
        while chunk := file.read(MIB):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _sync_folder(folder: Path) -> None:
    # A rename is durable only once the folder that holds the name is.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# What is saved: flat names to tensors, the very memory that trains.


def _tensors(program: Program) -> dict[str, torch.Tensor]:
    state = {
        _optimizer_name(name, key): value
        for name, parameter in program.model.named_parameters()
        for key, value in program.optimizer.state.get(parameter, {}).items()
    }
    return {**_model_tensors(program), **state, **_rng_tensors(program)}


def _model_tensors(program: Program) -> dict[str, torch.Tensor]:
    # named_parameters lists a tied weight once; state_dict would save it twice.
    saved = program.model.state_dict(keep_vars=True)
    parameters = dict(program.model.named_parameters())
    buffers = {name: b for name, b in program.model.named_buffers() if name in saved}
    return {f"model.{name}": t.detach() for name, t in (parameters | buffers).items()}


def _rng_tensors(program: Program) -> dict[str, torch.Tensor]:
    states = {"rng.cpu": torch.get_rng_state()}
    if program.device.type == "cuda":
        states["rng.cuda"] = torch.cuda.get_rng_state(program.device)
    return states


def _restore_rng(states: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["rng.cpu"])
    if "rng.cuda" in states:
        torch.cuda.set_rng_state(states["rng.cuda"], device)


def _optimizer_name(parameter_name: str, key: str) -> str:
    return f"optimizer.{key}.{parameter_name}"


def _empty_optimizer_state(
    saved: dict[str, TensorShape], program: Program
) -> dict[str, tuple[torch.nn.Parameter, str, torch.Tensor]]:
    """Make room for the saved state: a fresh optimizer has none before its first step."""
    on_device = {
        parameter: bool(group.get("fused") or group.get("capturable"))
        for group in program.optimizer.param_groups
        for parameter in group["params"]
    }
    room = {}
    for name, parameter in program.model.named_parameters():
        if parameter not in on_device:
            continue
        for key in ("step", "exp_avg", "exp_avg_sq"):
            entry = saved.get(_optimizer_name(name, key))
            if entry is None:
                continue
            # Step counts live on the host unless the kernel reads them on the device.
            device = parameter.device if entry.size or on_device[parameter] else "cpu"
            tensor = torch.empty(entry.size, dtype=entry.dtype, device=device)
            room[_optimizer_name(name, key)] = (parameter, key, tensor)
    return room


def _check_names(folder: Path, saved: set[str], wanted: set[str]) -> None:
    if saved != wanted:
        odd = min(saved ^ wanted)
        whose = "the checkpoint" if odd in saved else "the plan's model"
        raise FileFormatError(
            f"{folder} is of another model: {odd} is in {whose} only; "
            f"resume with the plan that started the run"
        )
