"""The libraries beside PyTorch's CUDA build: what they keep of the device, and their versions."""

from functools import cache
from importlib import resources

import msgspec

Version = tuple[int, int]
_FILE = "data/workspaces/libraries.json"

NEWEST = (99, 0)
"""A PyTorch later than all that are known here."""


class CublasWorkspace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workspace that PyTorch gives every cuBLAS handle and stream.

    Attributes:
        capability: Its beginning on the cards that have it: a capability, a major one alone, or
            nothing for all others.
        since: The first PyTorch that gives it to them.
        num_bytes: Its size.
        source: Where it was read.
    """

    capability: tuple[int, ...]
    since: Version = (0, 0)
    num_bytes: int
    source: str


class Wheel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What PyPI's CUDA wheel of a PyTorch requires.

    Attributes:
        torch_version: PyTorch's (major, minor).
        cudnn_version: cuDNN's, as cuDNN counts.
        source: The wheel.
    """

    torch_version: Version
    cudnn_version: int
    source: str


class Libraries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Libraries beside PyTorch.

    Attributes:
        cublas: Workspaces of cuBLAS by capability.
        cublas_lt_bytes: Workspace of cuBLASLt.
        cublas_lt_source: Where its size was read.
        wheels: What each PyTorch comes with.
    """

    cublas: tuple[CublasWorkspace, ...]
    cublas_lt_bytes: int
    cublas_lt_source: str
    wheels: tuple[Wheel, ...]

    def cublas_bytes(self, capability: Version, torch_version: Version = NEWEST) -> int:
        """Return the workspace of one cuBLAS handle on a card of this capability."""
        rows = [
            row
            for row in self.cublas
            if row.capability == capability[: len(row.capability)] and row.since <= torch_version
        ]
        return max(rows, key=lambda row: len(row.capability)).num_bytes

    def cudnn_version(self, torch_version: Version) -> int:
        """Return cuDNN's version beside this PyTorch; beyond the table, that of the nearest."""
        older = [wheel for wheel in self.wheels if wheel.torch_version <= torch_version]
        return (older[-1] if older else self.wheels[0]).cudnn_version


@cache
def libraries() -> Libraries:
    """Read what is known of the libraries beside PyTorch."""
    data = resources.files("brimful").joinpath(_FILE).read_bytes()
    return msgspec.json.decode(data, type=Libraries)
