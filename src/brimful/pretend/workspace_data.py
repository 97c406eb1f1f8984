"""The shipped tables of what kernels allocate. Owns the files and their schema, no arithmetic.

``devices.json`` and ``libraries.json`` hold what the sizes depend on beside shapes
(``hardware/cuda_chips.py``, ``cuda_libraries.py``); every other file is a list of rows, one per
group of operators.
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
        is_bound: Whether the rule gives the most that a call may take. Its bytes are on no tape,
            and are taken off what a card surely has.
    """

    ops: tuple[str, ...]
    rule: str
    allocates: str
    source: str
    torch_since: Version = (0, 0)
    torch_before: Version = ANY_LATER
    capability_since: Version = (0, 0)
    capability_before: Version = ANY_LATER
    is_bound: bool = False

    def covers(self, *, capability: Version, torch_version: Version) -> bool:
        """Tell whether the row speaks of this card and this PyTorch."""
        return (
            self.torch_since <= torch_version < self.torch_before
            and self.capability_since <= capability < self.capability_before
        )


def _read(name: str) -> bytes:
    return resources.files("brimful").joinpath(_FOLDER, name).read_bytes()


@cache
def rows() -> tuple[Row, ...]:
    """Read every row of every file of the table."""
    files = sorted(
        entry.name
        for entry in resources.files("brimful").joinpath(_FOLDER).iterdir()
        if entry.name.endswith(".json") and entry.name not in _NOT_ROWS
    )
    return tuple(row for name in files for row in msgspec.json.decode(_read(name), type=list[Row]))
