"""Plans that say "fits", simulated at capacity, on drawn jobs: ``--seed N --seconds S``.

Draws what somebody may ask ``brimful plan`` (one to 64 GPUs; in full, LoRA, QLoRA; dense and
mixtures; every recipe; short rows and long), plans by formulas and replays alone, and simulates
what was planned. Prints a line per job, and at the end how many of those that were to fit hold:
complete at capacity without a retry. That they fit says more: whatever lies outside takes.
"""

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from brimful.cli.main import parser_of
from brimful.cli.plan import search
from brimful.errors import BrimfulError
from brimful.models.config import load_model
from brimful.plan import Plan, Word
from brimful.search.budget import Budget
from brimful.simulate.run import simulate_recorded

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


class Row(NamedTuple):
    """A drawn question, and what became of it.

    Attributes:
        flags: Of ``brimful plan``.
        predicted: What its replay says; None: there is none, or no plan.
        simulated: What the simulation of what was planned says; None: it was not simulated.
        holds: Whether that completes without a retry.
        share: Of the capacity, held by prediction.
        error: Predicted against simulated reserved bytes, relative.
    """

    flags: tuple[str, ...]
    predicted: Word | None
    simulated: Word | None = None
    holds: bool = False
    share: float = 0.0
    error: float = 0.0


def main() -> int:
    """Draw, plan, simulate, print; 1 where too many do not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    said, num_holding = Counter[tuple[Word | None, Word | None]](), 0
    for row in drawn(args.seed, args.seconds):
        said[row.predicted, row.simulated] += 1
        num_holding += row.predicted == "fits" and row.holds
        print(
            f"{row.predicted or '-':6}{row.simulated or '-':6}{row.share:8.2%}{row.error:+9.3%}  "
            f"{' '.join(row.flags)}",
            flush=True,
        )
    planned = sum(num for (word, _), num in said.items() if word == "fits")
    print(
        f"{num_holding} of {planned} that were to fit hold, {said['fits', 'fits']} fit; "
        f"{sum(said.values())} asked"
    )
    return int(not planned or num_holding < SHARE * planned)


def drawn(seed: int, seconds: float) -> Iterator[Row]:
    """Yield a row per drawn question until time is over."""
    rng = random.Random(seed)  # noqa: S311 - questions, not secrets
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        flags = _question(rng)
        plan = _planned(flags)
        reserved = plan and plan.estimate and plan.estimate.predicted_reserved
        if not reserved or reserved.word == "no":
            yield Row(flags, reserved.word if reserved else None)
            continue
        assert plan is not None
        found = simulate_recorded(plan.job, plan.cluster, plan.strategy).simulation.reserved
        assert found is not None
        held = reserved.predicted_peak_reserved_bytes
        error = held / found.simulated_peak_reserved_bytes - 1
        holds = not found.short_bytes and not found.num_retries
        share = held / reserved.capacity_bytes
        yield Row(flags, reserved.word, found.word, holds, share, error)


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


if __name__ == "__main__":
    sys.exit(main())
