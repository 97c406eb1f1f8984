"""Adding up rows of a recording by module: blocks with numbers are one, ``model.layers.*``."""

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.recording import Recording
from brimful.pretend.report_values import ModuleBytes

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
STAR = "*"


def pattern_of(module: str) -> str:
    """Put ``*`` for every number that is a part of a path: ``model.layers.3.mlp``."""
    return _NUMBER.sub(STAR, module)


def whole_of(module: str) -> str:
    """Cut the pattern of a path after its first ``*``: ``model.layers.*``."""
    head, star, _ = pattern_of(module).partition(STAR)
    return head + star


def by_pattern(recording: Recording, rows: NDArray[np.int64]) -> tuple[ModuleBytes, ...]:
    """Add up rows by the pattern of their owner, largest first."""
    groups = _groups(recording, rows, map(pattern_of, recording.owners))
    return _sorted(_total(recording, name, its) for name, its in groups.items())


def by_owner(
    recording: Recording, rows: NDArray[np.int64]
) -> list[tuple[ModuleBytes, NDArray[np.int64]]]:
    """Add up rows by the part of the program that owns them, largest first."""
    groups = _groups(recording, rows, map(whole_of, recording.owners))
    totals = _sorted(_total(recording, name, its) for name, its in groups.items())
    return [(total, groups[total.module]) for total in totals]


def _groups(
    recording: Recording, rows: NDArray[np.int64], names: Iterable[str]
) -> dict[str, NDArray[np.int64]]:
    """Split rows by the name that stands for their owner."""
    numbers: dict[str, int] = {}
    of_owner = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    if not len(rows):
        return {}
    group = of_owner[recording.owner[rows]]
    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order])) + 1
    known = list(numbers)
    return {
        known[int(of_owner[recording.owner[part[0]]])]: part
        for part in np.split(rows[order], edges)
    }


def _total(recording: Recording, name: str, rows: NDArray[np.int64]) -> ModuleBytes:
    return ModuleBytes(
        module=name,
        num_modules=len(np.unique(recording.owner[rows])),
        num_allocations=len(rows),
        num_bytes=int(recording.num_bytes[rows].sum()),
    )


def _sorted(totals: Iterable[ModuleBytes]) -> tuple[ModuleBytes, ...]:
    return tuple(sorted(totals, key=lambda total: (-total.num_bytes, total.module)))
