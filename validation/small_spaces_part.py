"""Small spaces tried in full.

Draws questions whose space is a few dozen strategies, with a limit in the middle of what these
take, and simulates every one of them. The plan that is chosen by formulas and replays must hold,
and be within 2 % of the fastest that does.
"""

import random

import numpy as np
from evidence import Summary, spread_of
from holding_rows import SpaceRow
from side_by_side import answered

from brimful.cli.main import parser_of
from brimful.cli.searching import search
from brimful.cost.outside import num_groups, room_of
from brimful.cost.reserved import Candidate
from brimful.hardware.cluster import offered_bytes
from brimful.search.budget import Budget
from brimful.search.holding import OTHER_ALLOCATORS
from brimful.search.solve import Space
from brimful.simulate.run import simulate_recorded
from brimful.units import GIB

NUM_SPACES, NUM_QUICK_SPACES = 20, 1
MODELS = ("smollm2-135m", "qwen3-0.6b", "llama-3.2-1b", "gpt2-large")
GPUS = ("rtx-3090", "rtx-4090", "a100-40gb", "l40s", "h100-80gb")
RECIPES = ("bf16", "bf16-mixed", "bf16-master", "fp16-mixed")
NEAR = 1.02
"""How much slower than the fastest that holds a plan may be."""
ABOVE = 1.05
"""Of what is alive, that which a limit leaves room for."""
QUICK_FLAGS = ("--no-proof", "--budget", "1")


def run(*, seed: int, quick: bool) -> tuple[list[SpaceRow], Summary]:
    """Draw, plan and try in full."""
    rng = random.Random(seed)  # noqa: S311 - questions, not secrets
    num = NUM_QUICK_SPACES if quick else NUM_SPACES
    rows = answered("small spaces", compare, [_question(rng) for _ in range(num)])
    return rows, summarize(rows)


def is_right(row: SpaceRow) -> bool:
    """Whether the plan holds and is as fast as any, or says that it does not fit."""
    if row.slower is None:
        return row.predicted != "fits"
    return row.holds and row.slower <= NEAR


def summarize(rows: list[SpaceRow]) -> Summary:
    """Sum up, and say which plans are not the best."""
    slower = [row.slower - 1 for row in rows if row.slower is not None and row.holds]
    num_empty = sum(row.slower is None for row in rows)
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("step", slower),) if slower else (),
        bars=(f"each plan holds and is at most {NEAR - 1:.0%} slower than the fastest that does",),
        missed=tuple(f"not the best: {' '.join(row.flags)}" for row in rows if not is_right(row)),
        findings=(
            f"{sum(row.num_strategies for row in rows)} strategies simulated",
            f"{sum(row.num_holding for row in rows)} of them hold; in {num_empty} spaces none does",
        ),
    )


def _question(rng: random.Random) -> tuple[tuple[str, ...], float]:
    """Draw flags, and where the limit lies: 0 is the smallest peak, 1 the median."""
    count = rng.choice((1, 1, 2, 4))
    flags = [rng.choice(MODELS), "--gpus", f"{count}x{rng.choice(GPUS)}"]
    flags += ["--method", rng.choice(("full", "full", "lora"))]
    flags += ["--precision", rng.choice(RECIPES if flags[-1] == "full" else RECIPES[:2])]
    flags += ["--seq-len", str(rng.choice((512, 1024)))]
    flags += ["--global-batch", str(4 * count), "--loss-chunks", rng.choice(("1,4", "1,2,8"))]
    flags += ["--activation-checkpointing", rng.choice(("none,full", "none,full:4,selective"))]
    flags += ["--zero", rng.choice(("0", "2,3", "0,3")) if count > 1 else "0"]
    return (*flags, "--tp", "1", "--pp", "1"), rng.random()


def compare(question: tuple[tuple[str, ...], float]) -> SpaceRow:
    """Set the limit, plan by replay, and simulate every strategy of the space."""
    flags, place = question
    whole = _space(flags)
    peaks = whole.table.peak_bytes
    limit = peaks.min() + place * (np.median(peaks) - peaks.min())
    limit = min(ABOVE * limit, offered_bytes(whole.cluster))
    flags = (*flags, "--memory-limit", f"{limit / GIB - 0.01:.2f}GiB")
    args = parser_of("plan").parse_args([*flags, *QUICK_FLAGS])
    found = search(args, Budget(1.0))
    space, plan = found.space, found.plan
    assert space is not None
    assert plan.estimate is not None
    holding = [row for row in range(len(space.table.peak_bytes)) if _holds(space, row)]
    fastest = min((float(space.table.step_s[row]) for row in holding), default=None)
    reserved, step_s = plan.estimate.predicted_reserved, plan.estimate.predicted_step_s
    assert step_s is not None
    return SpaceRow(
        flags=flags,
        num_strategies=len(space.table.peak_bytes),
        num_holding=len(holding),
        predicted=reserved.word if reserved else None,
        slower=step_s / fastest if fastest else None,
        holds=found.row in holding,
    )


def _space(flags: tuple[str, ...]) -> Space:
    args = parser_of("plan").parse_args([*flags, *QUICK_FLAGS])
    space = search(args, Budget(1.0)).space
    assert space is not None, flags
    return space


def _holds(space: Space, row: int) -> bool:
    """Simulate a strategy, and tell whether any setting of the allocator lets it hold."""
    strategy = space.strategy(row)
    recording = simulate_recorded(space.job, space.cluster, strategy).recording
    room = room_of(space.cluster.device, num_groups=num_groups(strategy))
    asked = Candidate(space.cluster, room, (recording.requests,))
    return any(not asked.excess_bytes(allocator) for allocator in ("", *OTHER_ALLOCATORS))
