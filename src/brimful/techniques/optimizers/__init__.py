"""Optimizers: one record each, in the order in which they are offered; the first is the default.

To add one, write its record here and what builds it in ``build/optimizers``, in a file of the same
name, and add a line to ``OPTIMIZERS``. Those of other programs stand in ``others``.
"""

from brimful.techniques.optimizers.adafactor import ADAFACTOR
from brimful.techniques.optimizers.adamw import ADAMW
from brimful.techniques.optimizers.adamw_4bit import ADAMW_4BIT
from brimful.techniques.optimizers.adamw_8bit import ADAMW_8BIT
from brimful.techniques.optimizers.adamw_foreach import ADAMW_FOREACH
from brimful.techniques.optimizers.adamw_fp8 import ADAMW_FP8
from brimful.techniques.optimizers.base import (
    Kept,
    Optimizer,
    Settings,
    Shape,
    Spelled,
    Updated,
    bytes_kept,
)
from brimful.techniques.optimizers.muon import MUON
from brimful.techniques.optimizers.others import OTHERS, SQUEEZED, Bounds, Ours, bounds, squeezed
from brimful.techniques.optimizers.paged_adamw_8bit import PAGED_ADAMW_8BIT
from brimful.techniques.optimizers.paged_adamw_32bit import PAGED_ADAMW_32BIT
from brimful.techniques.optimizers.sgd import SGD

__all__ = [
    "DEFAULT", "OPTIMIZERS", "OTHERS", "SQUEEZED", "Bounds", "Kept", "Optimizer", "Ours",
    "Settings", "Shape", "Spelled", "Updated", "bounds", "bytes_kept", "rounded_of", "squeezed",
    "whole_of",
]  # fmt: skip

OPTIMIZERS: dict[str, Optimizer] = {
    record.name: record
    for record in (
        ADAMW, ADAMW_FOREACH, ADAMW_8BIT, ADAMW_4BIT, ADAMW_FP8, PAGED_ADAMW_8BIT,
        PAGED_ADAMW_32BIT, SGD, ADAFACTOR, MUON,
    )
}  # fmt: skip
DEFAULT = next(iter(OPTIMIZERS))


def whole_of(rule: Optimizer) -> str:
    """Return the optimizer that holds whole what a rule rounds; empty where it rounds nothing."""
    return next(iter(_alike(rule, rounds=False)), "") if rule.rounds else ""


def rounded_of(rule: Optimizer) -> str:
    """Return the first optimizer that rounds what a rule holds whole; empty where there is none."""
    return "" if rule.rounds else next(iter(_alike(rule, rounds=True)), "")


def _alike(rule: Optimizer, *, rounds: bool) -> list[str]:
    others = OPTIMIZERS.values()
    return [each.name for each in others if each.words == rule.words and each.rounds == rounds]
