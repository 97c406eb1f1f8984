"""Small spaces tried in full: ``--seed N --num M``.

Draws questions whose space is a few dozen strategies, with a limit in the middle of what these
take, and simulates every one of them. The plan that is chosen by formulas and replays must hold,
and be within 2 % of the fastest that does. Prints a line per question.
"""

import argparse
import logging
import math
import random
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from brimful.cli.main import parser_of
from brimful.cli.plan import search
from brimful.cost.outside import num_groups, room_of
from brimful.cost.reserved import Candidate
from brimful.plan import Word
from brimful.search.budget import Budget
from brimful.search.holding import OTHER_ALLOCATORS
from brimful.search.solve import Space
from brimful.simulate.run import simulate_recorded
from brimful.units import GIB

MODELS = ("smollm2-135m", "qwen3-0.6b", "llama-3.2-1b", "gpt2-large")
GPUS = ("rtx-3090", "rtx-4090", "a100-40gb", "l40s", "h100-80gb")
RECIPES = ("bf16", "bf16-mixed", "bf16-master", "fp16-mixed")
NEAR = 1.02
"""How much slower than the fastest that holds a plan may be."""


class Row(NamedTuple):
    """A question, and what became of it.

    Attributes:
        flags: Of ``brimful plan``.
        num_strategies: In its space.
        num_holding: Of them, those that hold when they are simulated.
        word: What the plan says of itself.
        slower: Its step over that of the fastest that holds; NaN: none does.
        holds: Whether it is among those that hold.
    """

    flags: tuple[str, ...]
    num_strategies: int
    num_holding: int
    word: Word | None
    slower: float
    holds: bool

    @property
    def is_right(self) -> bool:
        """Whether the plan holds and is as fast as any, or says that it does not fit."""
        if not self.num_holding:
            return self.word != "fits"
        return self.holds and self.slower <= NEAR


def main() -> int:
    """Draw, plan, try in full, print; 1 where a plan is not the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num", type=int, default=20)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows = []
    for row in drawn(args.seed, args.num):
        rows.append(row)
        print(
            f"{'right' if row.is_right else 'WRONG':6}{row.word or '-':6}{row.slower:8.4f}"
            f"{row.num_holding:4} of {row.num_strategies:3} hold  {' '.join(row.flags)}",
            flush=True,
        )
    num_right = sum(row.is_right for row in rows)
    print(f"{num_right} of {len(rows)} are within 2 % of the fastest that holds")
    return int(num_right < len(rows))


def drawn(seed: int, num: int) -> Iterator[Row]:
    """Yield a row per drawn question."""
    rng = random.Random(seed)  # noqa: S311 - questions, not secrets
    for _ in range(num):
        flags = _question(rng)
        whole = _space(flags)
        peaks = whole.table.peak_bytes
        limit = rng.uniform(peaks.min(), np.median(peaks)) * rng.uniform(1.0, 1.1)
        yield _tried((*flags, "--memory-limit", f"{limit / GIB:.2f}GiB"))


def _question(rng: random.Random) -> tuple[str, ...]:
    count = rng.choice((1, 1, 2, 4))
    flags = [rng.choice(MODELS), "--gpus", f"{count}x{rng.choice(GPUS)}"]
    flags += ["--method", rng.choice(("full", "full", "lora"))]
    flags += ["--precision", rng.choice(RECIPES if flags[-1] == "full" else RECIPES[:2])]
    flags += ["--seq-len", str(rng.choice((512, 1024)))]
    flags += ["--global-batch", str(4 * count), "--loss-chunks", rng.choice(("1,4", "1,2,8"))]
    flags += ["--activation-checkpointing", rng.choice(("none,full", "none,full:4,selective"))]
    flags += ["--zero", rng.choice(("0", "2,3", "0,3")) if count > 1 else "0"]
    return (*flags, "--tp", "1", "--pp", "1")


def _space(flags: tuple[str, ...]) -> Space:
    args = parser_of("plan").parse_args([*flags, "--no-proof", "--budget", "1"])
    space = search(args, Budget(1.0)).space
    assert space is not None, flags
    return space


def _tried(flags: tuple[str, ...]) -> Row:
    args = parser_of("plan").parse_args([*flags, "--no-proof", "--budget", "1"])
    found = search(args, Budget(1.0))
    space, plan = found.space, found.plan
    assert space is not None
    assert plan.estimate is not None
    holding = [row for row in range(len(space.table.peak_bytes)) if _holds(space, row)]
    fastest = min((float(space.table.step_s[row]) for row in holding), default=math.nan)
    reserved, step_s = plan.estimate.predicted_reserved, plan.estimate.predicted_step_s
    assert step_s is not None
    return Row(
        flags,
        len(space.table.peak_bytes),
        len(holding),
        reserved.word if reserved else None,
        step_s / fastest,
        found.row in holding,
    )


def _holds(space: Space, row: int) -> bool:
    """Simulate a strategy, and tell whether any setting of the allocator lets it hold."""
    strategy = space.strategy(row)
    recording = simulate_recorded(space.job, space.cluster, strategy).recording
    room = room_of(space.cluster.device, num_groups=num_groups(strategy))
    asked = Candidate(space.cluster, room, (recording.requests(),))
    return any(not asked.excess_bytes(allocator) for allocator in ("", *OTHER_ALLOCATORS))


if __name__ == "__main__":
    sys.exit(main())
