"""Files of samples: written once, kept on disk, mapped into memory. Knows no torch."""

import hashlib
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from brimful.train.data.encoders.base import Sample
from brimful.train.data.tokens import check_tokens, token_dtype

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.integer[Any]]

_INPUTS, _LABELS, _STOPS = "inputs.bin", "labels.bin", "stops.bin"
SAMPLE_FILES = (_INPUTS, _LABELS, _STOPS)
_STOP_COLUMNS = 2
_SAMPLES_PER_WRITE = 1024


class Arrays(NamedTuple):
    """A sample as arrays: inputs [T], labels as its task has them.

    ``reference`` are, of a pair, the log-probabilities of its answers under the reference model,
    [2], where they were computed beforehand.
    """

    inputs: "Ints"
    labels: "Ints"
    reference: "npt.NDArray[np.float32] | None" = None


class SampleFile(msgspec.Struct, frozen=True, kw_only=True):
    """Samples on disk.

    Attributes:
        inputs: Token ids of all samples, one after the other.
        labels: Their labels.
        stops: [samples, 2] where each sample's inputs and labels end.
        reference: [samples, 2] of fp32, see ``Arrays``; None: nobody has computed it.
    """

    inputs: Any
    labels: Any
    stops: Any
    reference: Any = None

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.stops)

    def num_tokens(self, number: int) -> int:
        """Return the length of a sample's inputs."""
        return int(self.stops[number, 0]) - (int(self.stops[number - 1, 0]) if number else 0)

    def sample(self, number: int) -> Arrays:
        """Read a sample."""
        first, first_label = self.stops[number - 1] if number else (0, 0)
        last, last_label = self.stops[number]
        reference = None if self.reference is None else self.reference[number]
        return Arrays(self.inputs[first:last], self.labels[first_label:last_label], reference)


class Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was written.

    Attributes:
        num_samples: Samples.
        num_tokens: Tokens of their inputs.
        num_labels: Labels, masked ones included.
        num_targets: Labels that are learnt.
        hash: Of all of it.
    """

    num_samples: int
    num_tokens: int
    num_labels: int
    num_targets: int
    hash: str


def write_samples(samples: Iterable[Sample], folder: Path, *, vocab_size: int) -> Written:
    """Write samples as they come; a few of them are in memory at a time.

    ``vocab_size``: rows of the model's embedding; decides the element type. Raises InputError: a
    token has no row.
    """
    import numpy as np

    num_targets = 0
    stops, digest = array("q"), hashlib.blake2b(digest_size=16)
    num_tokens = num_labels = num_samples = 0
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / _INPUTS).open("wb") as inputs_file,
        (folder / _LABELS).open("wb") as labels_file,
        (folder / _STOPS).open("wb") as stops_file,
    ):
        for inputs, labels in samples:
            check_tokens(inputs, vocab_size)
            packed = np.asarray(labels, "<i4")
            num_tokens, num_labels = num_tokens + len(inputs), num_labels + len(labels)
            num_samples, num_targets = num_samples + 1, num_targets + int((packed >= 0).sum())
            stops.extend((num_tokens, num_labels))
            for file, values in (
                (inputs_file, np.asarray(inputs, token_dtype(vocab_size))),
                (labels_file, packed),
            ):
                content = values.tobytes()
                file.write(content)
                digest.update(content)
            digest.update(b"|")
            if num_samples % _SAMPLES_PER_WRITE == 0:
                stops_file.write(np.asarray(stops, "<i8").tobytes())
                stops = array("q")
        stops_file.write(np.asarray(stops, "<i8").tobytes())
        for file in (inputs_file, labels_file, stops_file):
            file.flush()
            os.fsync(file.fileno())
    return Written(
        num_samples=num_samples,
        num_tokens=num_tokens,
        num_labels=num_labels,
        num_targets=num_targets,
        hash=digest.hexdigest(),
    )


def map_samples(folder: Path, *, vocab_size: int) -> SampleFile:
    """Map files of samples into memory, read-only."""
    import numpy as np

    stops = _map(folder / _STOPS, np.dtype("<i8")).reshape(-1, _STOP_COLUMNS)
    return SampleFile(
        inputs=_map(folder / _INPUTS, token_dtype(vocab_size)),
        labels=_map(folder / _LABELS, np.dtype("<i4")),
        stops=stops,
    )


def file_bytes(written: Written, *, vocab_size: int) -> tuple[int, int, int]:
    """Return how long the files must be, in the order of ``SAMPLE_FILES``."""
    item_bytes = token_dtype(vocab_size).itemsize
    return (
        item_bytes * written.num_tokens,
        4 * written.num_labels,
        8 * _STOP_COLUMNS * written.num_samples,
    )


def _map(path: Path, dtype: "np.dtype[Any]") -> Any:
    import numpy as np

    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    # As a plain array: slicing a memmap makes a memmap, which takes ten times as long.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
