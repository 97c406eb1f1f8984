"""Offload: what is in host memory between its uses. One file per thing that is kept there."""

from brimful.build.offload.blocks import (
    Offloaded,
    empty_at_home,
    mark_away,
    offload_blocks,
    offloaded,
    sent_home,
)
from brimful.build.offload.optimizer import HostOptimizer, rule_of, updated_by
from brimful.build.offload.parameters import is_away

__all__ = [
    "HostOptimizer",
    "Offloaded",
    "empty_at_home",
    "is_away",
    "mark_away",
    "offload_blocks",
    "offloaded",
    "rule_of",
    "sent_home",
    "updated_by",
]
