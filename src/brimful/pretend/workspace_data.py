"""The shipped tables of what kernels allocate. Owns the files and their schema, no arithmetic.

``devices.json`` and ``libraries.json`` hold what the sizes depend on beside shapes; every other
file is a list of rows, one per group of operators.
"""

from functools import cache
from importlib import resources

import msgspec

Version = tuple[int, int]
OUTPUTS_ONLY = "outputs-only"
UNKNOWN = "unknown"
ANY_LATER: Version = (999, 0)
_FOLDER = "data/workspaces"
_NOT_ROWS = ("devices.json", "libraries.json")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a group of operators allocates beside its outputs.

    Attributes:
        ops: Qualified names without overload; one that ends in ``*`` stands for all it begins.
        rule: ``outputs-only``, ``unknown``, or the name of a function in ``workspace_rules``.
        allocates: What, in words.
        source: File and function in PyTorch (or flash-attention) that it was read from.
        torch_since: First version of PyTorch that does so, as far as was read.
        torch_before: First version that no longer does.
        capability_since: Lowest compute capability that does so.
        capability_before: Lowest compute capability that no longer does.
    """

    ops: tuple[str, ...]
    rule: str
    allocates: str
    source: str
    torch_since: Version = (0, 0)
    torch_before: Version = ANY_LATER
    capability_since: Version = (0, 0)
    capability_before: Version = ANY_LATER

    def covers(self, *, capability: Version, torch_version: Version) -> bool:
        """Tell whether the row speaks of this card and this PyTorch."""
        return (
            self.torch_since <= torch_version < self.torch_before
            and self.capability_since <= capability < self.capability_before
        )


class Multiprocessors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a capability's chip has, as sizes of multi-block reductions depend on it.

    Attributes:
        card: The card that stands for the capability.
        num_multiprocessors: Its streaming multiprocessors.
        threads_per_multiprocessor: Resident threads of each.
        source: Where both were taken from.
    """

    card: str
    num_multiprocessors: int
    threads_per_multiprocessor: int
    source: str


class CublasWorkspace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workspace that PyTorch gives every cuBLAS handle and stream.

    Attributes:
        capability: The one capability that has it; the empty list for all others.
        num_bytes: Its size.
        source: Where it was read.
    """

    capability: tuple[int, ...]
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

    def cudnn_version(self, torch_version: Version) -> int:
        """Return cuDNN's version beside this PyTorch; beyond the table, that of the nearest."""
        older = [wheel for wheel in self.wheels if wheel.torch_version <= torch_version]
        return (older[-1] if older else self.wheels[0]).cudnn_version


def _read(name: str) -> bytes:
    return resources.files("brimful").joinpath(_FOLDER, name).read_bytes()


@cache
def libraries() -> Libraries:
    """Read what is known of the libraries beside PyTorch."""
    return msgspec.json.decode(_read("libraries.json"), type=Libraries)


@cache
def devices() -> dict[Version, Multiprocessors]:
    """Read the chips: compute capability to multiprocessors."""
    table = msgspec.json.decode(_read("devices.json"), type=dict[str, Multiprocessors])
    return {
        (int(major), int(minor)): value
        for name, value in table.items()
        for major, minor in (name.split("."),)
    }


@cache
def rows() -> tuple[Row, ...]:
    """Read every row of every file of the table."""
    files = sorted(
        entry.name
        for entry in resources.files("brimful").joinpath(_FOLDER).iterdir()
        if entry.name.endswith(".json") and entry.name not in _NOT_ROWS
    )
    return tuple(row for name in files for row in msgspec.json.decode(_read(name), type=list[Row]))
