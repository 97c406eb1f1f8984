"""Which records are held out: by a hash of their content, so that no content is in both parts."""

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.errors import DataError

if TYPE_CHECKING:
    from array import array

_HASHES = 1 << 64


def content_hash(parsed: Any) -> int:
    """Hash what counts of a record, to 64 bits."""
    digest = hashlib.blake2b(msgspec.json.encode(parsed), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def plain_threshold(share: float) -> int:
    """Return the hash below which records are held out, where they cannot all be looked at."""
    return int(share * _HASHES)


def threshold(hashes: "array[int]", *, share: float, words: str) -> int:
    """Return the hash below which records are held out, so that neither part is empty.

    ``hashes``: of all records; those with the same content have the same and stay together.
    """
    import numpy as np

    found = np.unique(np.frombuffer(hashes, np.uint64))
    if len(found) <= 1:
        raise DataError(
            f"{words} holds {len(found)} different records and one to train on and one to judge by "
            f"are needed; give more, or a file to judge by with --heldout"
        )
    num_below = int(np.searchsorted(found, np.uint64(min(plain_threshold(share), _HASHES - 1))))
    return int(found[min(max(num_below, 1), len(found) - 1)])
