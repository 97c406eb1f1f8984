"""Plans that say "fits", simulated at capacity.

Draws what somebody may ask ``brimful plan`` (one to 64 GPUs; in full, LoRA, QLoRA; dense and
mixtures; every recipe; short rows and long), plans by formulas and replays alone, and simulates
what was planned. Those that were to fit must hold: complete at capacity without a retry. That they
fit says more: whatever lies outside the allocator takes.
"""

import random
from collections import Counter
from math import prod

from evidence import Summary, spread_of
from holding_rows import PlannedRow
from side_by_side import answered

from brimful.cli.main import parser_of
from brimful.cli.searching import search
from brimful.errors import BrimfulError
from brimful.models.config import load_model
from brimful.search.budget import Budget
from brimful.simulate.run import simulate_recorded
from brimful.values.plan import Plan

NUM_PLANS, NUM_QUICK_PLANS = 200, 2
"""Said to fit, in all."""
BATCH, QUICK_BATCH = 40, 4
"""Questions between two looks at how many that were."""
MODELS = (
    "qwen3-0.6b", "llama-3.2-1b", "qwen3-1.7b", "llama-3.2-3b", "qwen2.5-7b", "mistral-7b-v0.3",
    "llama-3.1-8b", "qwen3-8b", "gemma-2-9b", "olmo-2-7b", "llama-2-13b", "phi-4", "gpt2-xl",
    "mixtral-8x7b", "qwen3-30b-a3b", "yi-34b", "llama-3.1-70b",
)  # fmt: skip
GPUS = ("t4", "rtx-3090", "rtx-4090", "a100-40gb", "l40s", "a100-80gb", "h100-80gb", "h200")
COUNTS = ("1", "1", "1", "2", "4", "8", "8", "2x8", "4x8", "8x8")
RECIPES = ("bf16", "bf16-mixed", "bf16-mixed", "bf16-master", "fp16-mixed", "fp32", "tf32")
METHODS = ("full", "full", "lora", "qlora")
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SHARE = 0.99
"""Of plans that are said to fit: how many must, when simulated."""


def run(*, seed: int, quick: bool) -> tuple[list[PlannedRow], Summary]:
    """Ask and simulate until enough plans were to fit."""
    rng = random.Random(seed)  # noqa: S311 - questions, not secrets
    num_plans, batch = (NUM_QUICK_PLANS, QUICK_BATCH) if quick else (NUM_PLANS, BATCH)
    rows: list[PlannedRow] = []
    while sum(row.predicted == "fits" for row in rows) < num_plans:
        questions = [_question(rng) for _ in range(batch)]
        rows += answered("plans that hold", compare, questions)
    return rows, summarize(rows)


def compare(flags: tuple[str, ...]) -> PlannedRow:
    """Plan what was asked, and simulate the plan."""
    plan = _planned(flags)
    reserved = plan and plan.estimate and plan.estimate.predicted_reserved
    if plan is None or not reserved:
        return PlannedRow(flags=flags)
    share = reserved.predicted_peak_reserved_bytes / reserved.capacity_bytes
    if reserved.word == "no":
        return PlannedRow(flags=flags, predicted="no", capacity_share=share)
    found = simulate_recorded(plan.job, plan.cluster, plan.strategy).simulation.reserved
    assert found is not None, flags
    said, simulated = reserved.predicted_peak_reserved_bytes, found.simulated_peak_reserved_bytes
    return PlannedRow(
        flags=flags,
        predicted=reserved.word,
        simulated=found.word,
        holds=not found.short_bytes and not found.num_retries,
        capacity_share=share,
        reserved_error=said / simulated - 1,
    )


def summarize(rows: list[PlannedRow]) -> Summary:
    """Sum up, and say which plans do not hold."""
    planned = [row for row in rows if row.predicted == "fits"]
    broken = [row for row in planned if not row.holds]
    kinds = Counter((row.predicted or "not told", row.simulated) for row in rows)
    findings = [
        f"{num} said {said}{f', simulated {found}' if found else ', not simulated'}"
        for (said, found), num in kinds.most_common()
    ]
    missed = []
    if len(planned) - len(broken) < SHARE * len(planned):
        missed = [f"does not hold: {' '.join(row.flags)}" for row in broken]
    elif broken:
        findings += [f"does not hold: {' '.join(row.flags)}" for row in broken]
    errors = [row.reserved_error for row in rows if row.reserved_error is not None]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("reserved", errors),),
        bars=(f"of plans said to fit {SHARE:.0%} complete at capacity without a retry",),
        missed=tuple(missed),
        findings=tuple(findings),
    )


def _question(rng: random.Random) -> tuple[str, ...]:
    method, count = rng.choice(METHODS), rng.choice(COUNTS)
    recipe = rng.choice(RECIPES if method == "full" else ("bf16", "bf16-mixed", "fp16-mixed"))
    devices, name = prod(map(int, count.split("x"))), rng.choice(MODELS)
    longest = load_model(name).max_seq_len
    flags = [name, "--gpus", f"{count}x{rng.choice(GPUS)}", "--method", method]
    flags += ["--precision", recipe, "--seq-len", str(min(longest, rng.choice(SEQUENCES)))]
    flags += ["--global-batch", str(devices * rng.choice((1, 2, 4, 8, 16)))]
    return tuple(flags)


def _planned(flags: tuple[str, ...]) -> Plan | None:
    """Plan without a proof; None: it cannot, or only by simulating."""
    try:
        args = parser_of("plan").parse_args([*flags, "--no-proof", "--budget", "1"])
        return search(args, Budget(1.0)).plan
    except BrimfulError:
        return None
