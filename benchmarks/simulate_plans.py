"""What ``brimful simulate`` takes on drawn plans: ``python benchmarks/simulate_plans.py``.

Draws what somebody may ask for a model of 7 to 9 billion parameters on one node (in full, LoRA,
QLoRA; every recipe; chunks of the loss, checkpointed blocks, gradient accumulation; ZeRO, tensor
and pipeline parallel), plans it by formulas, writes the plan and runs the whole command on it, in a
process of its own. What is counted is processor time, user's and system's, which other programs on
the machine change little. Exit code 1: a plan takes longer than the bar.
"""

import argparse
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from brimful.cli.main import parser_of
from brimful.cli.searching import search
from brimful.errors import BrimfulError
from brimful.models.config import load_model
from brimful.search.budget import Budget
from brimful.values.plan import Plan, write_yaml

MODELS = (
    "llama-3.1-8b", "qwen3-8b", "mistral-7b-v0.3", "olmo-2-7b", "gemma-2-9b", "qwen2.5-7b",
)  # fmt: skip
GPUS = ("rtx-3090", "rtx-4090", "a100-40gb", "l40s", "a100-80gb", "h100-80gb", "h200")
COUNTS = (1, 1, 2, 4, 8, 8)
METHODS = ("full", "full", "lora", "qlora")
RECIPES = ("bf16", "bf16-mixed", "bf16-mixed", "bf16-master", "fp16-mixed")
SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)
PER_DEVICE = (1, 2, 4, 8, 16)
PINS = ("", "", "", "--ac selective", "--loss-chunks 8")
PINS_OF_MANY = ("--tp 2", "--pp 2", "--zero 1", "--zero 2", "--zero 3", "--accumulate hold")
"""Of a strategy, beside what is searched."""
BAR_S = 8.0
_WARM_UP = "import brimful.cli.main, brimful.simulate.run"
_IMPORTS = """
import sys
from brimful.cli.resolved import asked
from brimful.cli.main import parser_of
from brimful.process.quick_imports import own_process, quick_imports
from brimful.process.library_output import quiet_libraries

own_process()
quiet_libraries()
asked(parser_of("simulate").parse_args(sys.argv[1:]))
with quick_imports():
    import brimful.simulate.run
"""
"""What is imported before a simulation begins, the plan's reading among it."""


class Drawn(NamedTuple):
    """A drawn question of ``brimful plan``, and its answer."""

    flags: tuple[str, ...]
    plan: Plan


class Taken(NamedTuple):
    """What a process took.

    Attributes:
        cpu_s: Processor time, the system's included.
        wall_s: By the clock.
    """

    cpu_s: float
    wall_s: float


def main() -> int:
    """Draw, run, print; 1 where a plan takes longer than the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=int, default=30, help="how many are drawn")
    parser.add_argument("--runs", type=int, default=1, help="of each, of which the best counts")
    parser.add_argument("--show", action="store_true", help="also print what is imported, by plan")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    process([sys.executable, "-c", _WARM_UP])
    taken: list[tuple[Taken, Taken]] = []
    with tempfile.TemporaryDirectory() as folder:
        for drawn in draws(args.seed, args.plans):
            path = Path(folder) / f"{len(taken)}.yaml"
            write_yaml(drawn.plan, path)
            whole = best([sys.executable, "-m", "brimful", "simulate", str(path)], args.runs)
            imports = best([sys.executable, "-c", _IMPORTS, str(path)], args.runs)
            taken.append((whole, imports))
            print(
                f"{whole.cpu_s:6.2f} s  wall {whole.wall_s:6.2f} s  imports {imports.cpu_s:5.2f} s"
                f"  {words(drawn)}",
                flush=True,
            )
    seconds = [whole.cpu_s for whole, _ in taken]
    share = statistics.median(imports.cpu_s / whole.cpu_s for whole, imports in taken)
    slow = sum(each > BAR_S for each in seconds)
    print(
        f"{len(seconds)} plans of seed {args.seed}: median {statistics.median(seconds):.2f} s, "
        f"worst {max(seconds):.2f} s of a processor; {share:.0%} of it imports; "
        f"{slow} above {BAR_S:g} s"
    )
    return int(slow > 0)


def draws(seed: int, count: int) -> Iterator[Drawn]:
    """Yield so many drawn questions that have an answer."""
    rng = random.Random(seed)  # noqa: S311 - questions, not secrets
    num = 0
    while num < count:
        flags = question(rng)
        plan = planned(flags)
        if plan is not None:
            num += 1
            yield Drawn(flags, plan)


def question(rng: random.Random) -> tuple[str, ...]:
    """Draw what is asked of ``brimful plan``."""
    method, count, name = rng.choice(METHODS), rng.choice(COUNTS), rng.choice(MODELS)
    recipe = rng.choice(RECIPES if method == "full" else ("bf16", "bf16-mixed", "fp16-mixed"))
    seq_len = min(load_model(name).max_seq_len, rng.choice(SEQUENCES))
    flags = [name, "--gpus", f"{count}x{rng.choice(GPUS)}", "--method", method]
    flags += ["--precision", recipe, "--seq-len", str(seq_len)]
    flags += ["--global-batch", str(count * rng.choice(PER_DEVICE))]
    pins = rng.choice((*PINS, *PINS_OF_MANY) if count > 1 else PINS)
    return (*flags, *pins.split())


def planned(flags: tuple[str, ...]) -> Plan | None:
    """Plan without a proof; None: nothing fits, or there is no such strategy."""
    try:
        args = parser_of("plan").parse_args([*flags, "--no-proof", "--budget", "1"])
        found = search(args, Budget(1.0))
    except BrimfulError:
        return None
    return found.plan if found.record.rows[0].fits else None


def best(command: list[str], num_runs: int) -> Taken:
    """Run a command a few times; return what it took when it took least."""
    return min(process(command) for _ in range(num_runs))


def process(command: list[str]) -> Taken:
    """Run a command to its end on one thread.

    Raises:
        RuntimeError: It ended with bad input or a traceback.
    """
    start_s = time.perf_counter()
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 - our own command
            command, env=one_thread, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if child.returncode not in {0, 1}:
            raise RuntimeError(f"{' '.join(command)}: {errors.read().decode()[-2000:]}")
    return Taken(usage.ru_utime + usage.ru_stime, time.perf_counter() - start_s)


def words(drawn: Drawn) -> str:
    """Say what is simulated, in one line."""
    strategy = drawn.plan.strategy
    run = (
        f"micro-batch {strategy.micro_batch}, {strategy.activation_checkpointing}, "
        f"{strategy.loss_chunks} chunks, zero {strategy.zero}, dp "
        f"{strategy.dp_replicate}x{strategy.dp_shard}, tp {strategy.tp}, pp {strategy.pp}"
    )
    return f"{' '.join(drawn.flags)}: {run}"


if __name__ == "__main__":
    sys.exit(main())
