"""Tensors in a folder, by ``torch.distributed.checkpoint`` (DCP) in one process.

They are written by DCP's planner and file writer without ``dcp.save`` around them: that warns on
every call in one process, and Python's warning filters belong to no thread, so that a background
save would change them under the training step.

What DCP reads back: its ``.metadata`` is a pickle, which is first read by an unpickler that knows
only DCP's metadata classes and refuses all else, so that DCP's own reading of the same bytes can
run nothing. Tensors it reads with ``torch.load(weights_only=True)``. Entries that are no tensors it
would unpickle freely; a folder that has any is refused.
"""

import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from brimful.errors import FileFormatError, RunError
from brimful.train.ranges import in_boxes
from brimful.train.world import is_spread

_METADATA = ".metadata"
_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
}


class TensorShape(NamedTuple):
    """Size and element type of a saved tensor."""

    size: torch.Size
    dtype: torch.dtype


def save_tensors(folder: Path, tensors: dict[str, torch.Tensor], *, group: Any = None) -> None:
    """Write tensors, streamed and synced; no second copy of them is made in memory.

    Of many processes all call this; each writes its shards, and its share of what all have.

    ``tensors``: by name; of DTensors and of ranges each process writes its part. ``group``: in
    which processes agree, by the host; None: the default one. Raises OSError: the disk is full or
    cannot be written. Raises RunError: DCP failed for another reason.
    """
    boxed = in_boxes(tensors)
    try:
        if is_spread():
            dcp.save(boxed, storage_writer=dcp.FileSystemWriter(folder), process_group=group)
        else:
            _write(dcp.FileSystemWriter(folder), dcp.DefaultSavePlanner(), boxed)
    except OSError:
        raise
    except CheckpointException as error:
        raise _unwrap(folder, _first_failure(error)) from error
    except Exception as error:  # torch's file writer wraps a full disk in errors of its own
        raise _unwrap(folder, error) from error


def _write(writer: Any, planner: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Do what ``dcp.save`` does in one process."""
    writer.reset()
    planner.set_up_planner(tensors, storage_meta=writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    local_plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([local_plan])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    written = writer.write_data(plan, planner).wait()
    writer.finish(metadata=metadata, results=[written])


def read_shapes(folder: Path) -> dict[str, TensorShape]:
    """List the tensors of a folder."""
    try:
        with (folder / _METADATA).open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
    except Exception as error:  # a broken pickle raises anything
        raise FileFormatError(f"{folder} is not a checkpoint ({error}); name another") from error
    if not isinstance(metadata, Metadata):
        raise FileFormatError(f"{folder} is not a checkpoint; name another")
    entries = metadata.state_dict_metadata
    for name, entry in entries.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise FileFormatError(f"{folder} is not a checkpoint: {name} is no tensor")
    for place in (metadata.storage_data or {}).values():
        # DCP opens what it is told to: a name that leads elsewhere is no shard of this folder.
        if PurePosixPath(place.relative_path).name != place.relative_path:
            raise FileFormatError(
                f"{folder} is not a checkpoint: it keeps tensors in {place.relative_path}, "
                f"outside it; name another"
            )
    return {
        name: TensorShape(entry.size, entry.properties.dtype) for name, entry in entries.items()
    }


def load_tensors(folder: Path, targets: dict[str, torch.Tensor], *, torch_version: str) -> None:
    """Fill tensors in place; call ``read_shapes`` first, which refuses what must not be read."""
    try:
        with _one_process():
            dcp.load(in_boxes(targets), storage_reader=dcp.FileSystemReader(folder))
    except CheckpointException as error:
        cause = _first_failure(error)
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        raise FileFormatError(
            f"{folder}, saved by torch {torch_version}, cannot be read by torch "
            f"{torch.__version__} ({str(cause).splitlines()[0]}); delete it and resume"
        ) from error


@contextmanager
def _one_process() -> Iterator[None]:
    """Silence DCP's remark that it runs in one process: here it always does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _first_failure(error: CheckpointException) -> BaseException:
    failure: BaseException = error.failures[min(error.failures)][0]
    return failure


def _unwrap(folder: Path, error: BaseException) -> BaseException:
    """Find what torch wrapped: a full disk is an OSError below a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError | KeyboardInterrupt):
            return cause
        cause = cause.__cause__ or cause.__context__
    return RunError(f"{folder} cannot be written ({error}); choose another --out")


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _METADATA_CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return PurePosixPath
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no checkpoint needs")
