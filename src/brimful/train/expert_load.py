"""Whether the experts of a mixture share the work: the busiest one, and how many do any.

A router may send most tokens to one expert (a hot one: its device computes and holds what others
should) or leave most of them idle (a collapsed router: parameters that are never trained). Both are
read from the counts of some steps. The thresholds are this project's own: they say that something
is far from balance, not that it must be bad.

E experts, k of them chosen by each token: balanced, an expert is chosen by k / E of the tokens.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from brimful.values.run_files import ExpertRow

LEAST_LOAD = 50
"""Choices for each expert, on average, below which counts are noise and nothing is said."""
HOT_SHARE = 0.5
"""Part of the way from balance to all tokens beyond which an expert is hot."""
COLLAPSED_SHARE = 0.25
"""Part of the way from k experts at work to E of them below which a router has collapsed."""
Trouble = Literal["hot", "collapsed"]


class BlockLoad(NamedTuple):
    """How one block's experts were loaded.

    Attributes:
        block: Its place among all blocks, from 0.
        busiest: The expert that most tokens chose.
        share: Part of the tokens that chose it.
        fair_share: k / E.
        imbalance: Busiest load over the mean; 1 is balanced.
        num_at_work: Exponential of the entropy of the loads: E where all are equal, k where all
            tokens choose the same.
        trouble: What is wrong with it, if anything is.
    """

    block: int
    busiest: int
    share: float
    fair_share: float
    imbalance: float
    num_at_work: float
    trouble: Trouble | None


def loads_of(row: ExpertRow) -> tuple[BlockLoad, ...]:
    """Read every block's load; of a block that nobody has counted nothing is said."""
    pairs = zip(row.blocks, row.load, strict=True)
    return tuple(_load(block, load, row.num_choices) for block, load in pairs if any(load))


def _load(block: int, load: Sequence[int], num_choices: int) -> BlockLoad:
    num_experts, total = len(load), sum(load)
    busiest = max(range(num_experts), key=load.__getitem__)
    parts = [count / total for count in load if count]
    found = BlockLoad(
        block=block,
        busiest=busiest,
        share=load[busiest] * num_choices / total,
        fair_share=num_choices / num_experts,
        imbalance=load[busiest] * num_experts / total,
        num_at_work=math.exp(-sum(part * math.log(part) for part in parts)),
        trouble=None,
    )
    is_known = total >= LEAST_LOAD * num_experts and num_choices < num_experts
    return found._replace(trouble=_trouble(found, num_choices, num_experts) if is_known else None)


def _trouble(load: BlockLoad, num_choices: int, num_experts: int) -> Trouble | None:
    if load.num_at_work < num_choices + COLLAPSED_SHARE * (num_experts - num_choices):
        return "collapsed"
    hot = load.fair_share + HOT_SHARE * (1 - load.fair_share)
    return "hot" if load.share > hot else None


def worst_load(row: ExpertRow) -> BlockLoad | None:
    """Return the block whose busiest expert is farthest from balance; None: nothing was counted."""
    return max(loads_of(row), key=lambda load: load.imbalance, default=None)


def alarm_of(load: BlockLoad, row: ExpertRow) -> str:
    """Say in one sentence what is wrong with a block.

    ``load``: of a block with ``trouble``.
    """
    over = f"over the last {row.num_steps} steps" if row.num_steps > 1 else "in the last step"
    where = f"block {load.block}"
    if load.trouble == "collapsed":
        return (
            f"collapsed router in {where}: only about {load.num_at_work:.1f} of "
            f"{len(row.load[0])} experts are at work {over} (expert {load.busiest} got "
            f"{load.share:.0%} of the tokens, balanced {load.fair_share:.0%})"
        )
    return (
        f"hot expert {load.busiest} in {where}: {load.share:.0%} of the tokens chose it {over}, "
        f"balanced {load.fair_share:.0%}"
    )


def drop_share(row: ExpertRow) -> float:
    """Return the part of the tokens that found no place with their expert, of all blocks."""
    total = sum(map(sum, row.load))
    return sum(row.dropped) / total if total else 0.0
