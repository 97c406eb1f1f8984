"""Rows of a part that takes hours: kept as they come, so that a run that was cut short goes on.

By sources and seed, so that no row is of another program than the rows beside it.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

import brimful
from brimful.files.traced import all_versions

Row = TypeVar("Row", bound=msgspec.Struct)
_HERE = Path(__file__).parent


class KeptRows(Generic[Row]):
    """The rows of one part, one seed and the sources that are here now."""

    def __init__(self, part: str, kind: type[Row], decides: Sequence[str], *, seed: int) -> None:
        """Find where they are kept.

        Args:
            part: Whose they are.
            kind: What a row is.
            decides: Files here that decide a row; what sums rows up and shows them does not.
            seed: Of the draws.
        """
        name = f"brimful-{part}-{_sources(decides)}-{seed}.jsonl"
        self._path, self._kind = Path(tempfile.gettempdir()) / name, kind

    def read(self) -> Iterator[Row]:
        """Yield what an earlier run came to."""
        with contextlib.suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                yield msgspec.json.decode(line, type=self._kind)

    def keep(self, row: Row) -> None:
        """Keep one more."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")


def _sources(decides: Sequence[str]) -> str:
    """Digest everything that decides a row: the package, its libraries' versions, the draws."""
    digest = hashlib.sha256(repr(all_versions()).encode())
    own = sorted(Path(brimful.__file__).parent.rglob("*.py"))
    for path in (*own, *(_HERE / f"{name}.py" for name in decides)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
