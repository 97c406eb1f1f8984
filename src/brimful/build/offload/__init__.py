"""Offload: what is in host memory between its uses. One file per thing that is kept there."""

from brimful.build.offload.blocks import (
    Offloaded,
    empty_at_home,
    mark_away,
    offload_blocks,
    offloaded,
)
from brimful.build.offload.optimizer import HostOptimizer, rule_of, updated_by

__all__ = [
    "HostOptimizer",
    "Offloaded",
    "empty_at_home",
    "mark_away",
    "offload_blocks",
    "offloaded",
    "rule_of",
    "updated_by",
]
