"""Finding and reading the safetensors that a model starts from. Knows files, no models.

Tensors are read in pieces with ``pread``, not by mapping the file: a mapped file's pages would
count as resident beside the model until it is closed.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open

from brimful.errors import FileFormatError, InputError, UnknownNameError
from brimful.models.hub import fetch_folder, is_hub_id

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
_PATTERNS = ["*.safetensors", INDEX]
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
PIECE_BYTES = 2**21
"""What is read at once; the host holds this much of the weights beside the model's own memory. So
little that on a CPU, where both are one memory, the peak of loading is the model's own."""
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Types, as safetensors spells them, that a model in full precision is stored in."""
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip
"""What is read row by row; others are read by safetensors."""
_LENGTH_BYTES, _NO_TENSOR = 8, "__metadata__"
"""The length of a header before it, and what in it is no tensor: the format's words."""


def find_files(source: str) -> dict[str, Path]:
    """Find the file of every tensor of a checkpoint.

    ``source``: a folder, a safetensors file, or a hub id. Returns the tensors' names, in the order
    of the files, and where each lies. Raises InputError: it holds pickles, adapters or nothing, or
    a shard is missing. Raises FileFormatError: a file is not safetensors.
    """
    path = Path(source)
    if path.is_file():
        if path.suffix in _PICKLES:
            raise _pickle(path)
        return _names_of(path)
    if not path.is_dir():
        if not is_hub_id(source):
            raise UnknownNameError(f"no weights at {source}; give a folder that holds {SINGLE}")
        path = fetch_folder(source, _PATTERNS)
    files = [_names_of(file) for file in _shards(path)]
    return {name: file for names in files for name, file in names.items()}


def _shards(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(folder.glob("*.safetensors"))
    whole = [file for file in found if file.name != ADAPTER]
    if whole:
        return whole
    raise _nothing_there(folder, has_adapter=bool(found))


def _nothing_there(folder: Path, *, has_adapter: bool) -> InputError:
    if has_adapter:
        return InputError(
            f"{folder} holds adapters ({ADAPTER}) and no model; give the folder of their base"
        )
    pickles = sorted(file for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        return _pickle(pickles[0])
    return InputError(f"{folder} holds no safetensors; give a folder that holds {SINGLE}")


def _pickle(file: Path) -> InputError:
    return InputError(
        f"{file} is a pickle, which can run any code when it is read; load it where you trust it "
        f"and write it anew with save_pretrained, which makes {SINGLE}"
    )


def _indexed(folder: Path) -> list[Path]:
    """List the shards that an index names, each a plain name of a file beside it."""
    index = folder / INDEX
    try:
        named = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise FileFormatError(
            f"{index} is not an index of shards ({type(error).__name__}); download it again"
        ) from error
    for name in named:
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable():
            raise FileFormatError(
                f"{index} names a file outside of its folder, or none ({name!r}); download it again"
            )
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} lacks {name}, one of the {len(named)} files that {INDEX} names; "
                f"download it again"
            )
    return [folder / name for name in named]


def _names_of(file: Path) -> dict[str, Path]:
    with opened(file) as tensors:
        return dict.fromkeys(tensors.keys(), file)


@contextlib.contextmanager
def opened(file: Path) -> "Iterator[_Tensors]":
    """Open a file of tensors, read piece by piece."""
    try:
        with (
            safe_open(file, framework="pt", device="cpu", backend="pread") as tensors,
            file.open("rb") as raw,
        ):
            yield _Tensors(tensors, raw, _offsets(raw))
    except (SafetensorError, OSError) as error:
        reason = str(error).strip().splitlines()
        raise FileFormatError(
            f"{file} is not safetensors, or cut short "
            f"({reason[0] if reason else type(error).__name__}); download it again"
        ) from error


class _Tensors:
    """An opened file of tensors, each of which is read row by row."""

    def __init__(self, tensors: Any, raw: BinaryIO, offsets: Mapping[str, int]) -> None:
        self._tensors, self._raw, self._offsets = tensors, raw, offsets

    def keys(self) -> Iterable[str]:
        """Return the names of the tensors."""
        return self._tensors.keys()  # type: ignore[no-any-return]  # safetensors is untyped

    def get_slice(self, name: str) -> "_Stored":
        """Return a tensor that is not read yet."""
        return _Stored(self._tensors.get_slice(name), self._raw, self._offsets[name])


class _Stored:
    """A stored tensor, of which rows are read alone.

    A slice by safetensors 0.8 reads all of the tensor each time where the file is not mapped: of an
    embedding of 1 GB so many times as it has pieces. A piece is there until the next one is read.
    """

    def __init__(self, stored: Any, raw: BinaryIO, offset: int) -> None:
        self._stored, self._raw, self._offset = stored, raw, offset
        self._piece = torch.empty(0)

    def get_shape(self) -> list[int]:
        return self._stored.get_shape()  # type: ignore[no-any-return]

    def get_dtype(self) -> str:
        return self._stored.get_dtype()  # type: ignore[no-any-return]

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        dtype, (_, *inner) = _TYPES.get(self.get_dtype()), self.get_shape() or [0]
        if not index or dtype is None:
            whole: torch.Tensor = self._stored[index]
            return whole
        rows, *columns = index
        shape = (rows.stop - rows.start, *inner)
        if self._piece.dtype != dtype or self._piece.numel() < prod(shape):
            self._piece = torch.empty(prod(shape), dtype=dtype)
        found = self._piece[: prod(shape)].view(shape)
        self._raw.seek(self._offset + rows.start * prod(inner) * found.element_size())
        num_bytes = self._raw.readinto(found.view(torch.uint8).numpy())  # type: ignore[attr-defined]
        if num_bytes != found.nbytes:
            raise OSError("it ends before its last tensor does")
        return found[(slice(None), *columns)].contiguous()


def _offsets(raw: BinaryIO) -> dict[str, int]:
    """Return where each tensor of a file begins, whose header safetensors has found sound."""
    length = int.from_bytes(raw.read(_LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    return {
        name: start + told["data_offsets"][0]
        for name, told in json.loads(raw.read(length)).items()
        if name != _NO_TENSOR
    }


def pieces(
    stored: Any, region: Sequence[slice] | None = None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the rows of a stored tensor, at most ``PIECE_BYTES`` at once where rows are that small.

    ``stored``: what ``get_slice`` of an opened file returns. ``region``: the part of it that is
    wanted, a slice per dimension; None: all of it. Yields which rows of that part, and their values
    on the host in the type of the file, which are there until the next are asked for.
    """
    if not stored.get_shape():
        yield slice(None), read_whole(stored)
        return
    rows, *columns = region or [slice(0, length) for length in stored.get_shape()]
    row_bytes = 8 * max(1, prod(column.stop - column.start for column in columns))
    step = max(1, PIECE_BYTES // row_bytes)
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        here = slice(start - rows.start, stop - rows.start)
        yield here, stored[(slice(start, stop), *columns)]


def read_whole(stored: Any) -> torch.Tensor:
    """Read a stored tensor at once, in the type of the file."""
    whole: torch.Tensor = stored[()]
    return whole
