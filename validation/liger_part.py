"""Liger's kernels in our own trainer: what they learn, and what is predicted of what they take.

Tiny programs are trained under Triton's interpreter, against the plain loop, in processes that find
Triton in a folder of its own: its wheel is a gigabyte, and no part of the environment. Drawn
strategies of real models are traced, and compared with their simulations at the drawn lengths.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from evidence import Summary, relative, spread_of
from liger_rows import LigerRow
from progress import shown

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, replay
from brimful.cost.estimate import estimate
from brimful.cost.formula import is_traceable, missing_formula
from brimful.cost.needed import needed
from brimful.cost.programs import kernels_of
from brimful.cost.reserved import candidate_of
from brimful.errors import BrimfulError
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.job import Adapter, Job, plain_job
from brimful.models.config import load_model
from brimful.strategy import Strategy, check_strategy

SITE = "BRIMFUL_TRITON_SITE"
"""A variable that may name a folder with Triton's wheel in it, kept from one proof to the next."""
TRITON = "triton==3.9.0"
TRAINED = ("llama full", "llama fp16", "qwen3 full:1", "gemma2")
"""Cases of the script of the tests."""
NUM_DRAWN = 14
LEARNT, LEARNT_IN_16_BITS, LIVE, RESERVED = 1e-5, 2e-4, 0.005, 0.01
_SCRIPT = Path(__file__).parents[1] / "tests" / "build" / "liger_interpreted.py"
_MODELS = (
    "llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "qwen3-0.6b", "qwen2.5-7b", "mistral-7b-v0.3",
    "gemma-2-2b", "gemma-3-1b", "phi-3-mini-4k", "olmo-2-7b",
)  # fmt: skip
_EAGER = frozenset({"gemma-2-2b"})
_CARDS = ("h100-80gb", "a100-80gb", "l40s")
_SPREAD = (("", {}), ("8x", {"zero": 3, "dp_shard": 8}), ("4x", {"zero": 2, "dp_shard": 4}),
           ("2x", {"dp_replicate": 2}))  # fmt: skip
_LENGTHS = (1024, 1536, 2048, 3072, 4096)


def run(*, seed: int, quick: bool) -> tuple[list[LigerRow], Summary]:
    """Train the cases, and compare drawn strategies."""
    rng = random.Random(seed)  # noqa: S311 - a draw
    names, num = (TRAINED[:1], 1) if quick else (TRAINED, NUM_DRAWN)
    with tempfile.TemporaryDirectory() as made:
        folder = _site(Path(os.environ.get(SITE) or made))
        rows = [_trained(folder, name) for name in shown("programs with Liger", names)]
    drawn = [_draw(rng) for _ in range(num)]
    rows += [_predicted(*each) for each in shown("strategies with Liger", drawn)]
    return rows, summarize(rows)


def _site(folder: Path) -> Path:
    if not (folder / "triton").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, TRITON], check=True)  # noqa: S603 - fixed
    return folder


def _trained(site: Path, name: str) -> LigerRow:
    paths = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    own = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(_SCRIPT), name],
        check=True,
        capture_output=True,
        env={**os.environ, **own},
    )
    plain, fused = json.loads(done.stdout.splitlines()[-1])[name]
    pairs = [list(zip(*each, strict=True)) for each in zip(fused, plain, strict=True)]
    losses, norms = ([abs(a / b - 1) for a, b in column] for column in zip(*pairs, strict=True))
    return LigerRow(name=name, what="trained", loss_error=max(losses), norm_error=max(norms))


def _draw(rng: random.Random) -> tuple[str, Job, Cluster, Strategy]:
    """Draw a job and a strategy that go together."""
    name, card = rng.choice(_MODELS), rng.choice(_CARDS)
    model, (many, spread) = load_model(name), rng.choice(_SPREAD)
    method = rng.choice(("full", "full", "lora", "qlora"))
    layers = model.num_layers
    checkpoints = rng.choice(("none", "full", f"full:{rng.randrange(1, layers)}"))
    adapter = None
    if method != "full":
        adapter = Adapter(
            rank=16, alpha=32.0, targets=("all-linear",), trained_modules=(), dtype="fp32",
            base="nf4-double" if method == "qlora" else "same", upcast="none",
            input_requires_grad=False,
        )  # fmt: skip
    precision = rng.choice(("bf16", "bf16-mixed")) if method == "full" else "bf16"
    micro_batch = rng.choice((1, 2, 4))
    job = plain_job(
        model, method=method, adapter=adapter, precision=precision, seq_len=rng.choice(_LENGTHS),
        global_batch=64, num_steps=2, learning_rate=1e-4,
    )  # fmt: skip
    strategy = Strategy(
        micro_batch=micro_batch, activation_checkpointing=checkpoints, loss_chunks=1,
        attention="eager" if name in _EAGER else "sdpa", fused_kernels="liger", **spread,
    )  # fmt: skip
    words = (
        f"{name} {method} {precision} {micro_batch}x{job.seq_len} {checkpoints} on {many}{card}"
        f" zero={strategy.zero}"
    )
    cluster = load_cluster(f"{many}{card}", memory_limit_bytes=None)
    return words, job, cluster, check_strategy(job, strategy)


def _predicted(words: str, job: Job, cluster: Cluster, strategy: Strategy) -> LigerRow:
    from brimful.simulate.on_demand import trace_needs
    from brimful.simulate.run import simulate_recorded

    cause = ""
    try:
        if is_traceable(job, strategy, cluster.device):
            kernels = kernels_of(cluster.device, strategy.fused_kernels)
            needs = needed(job, strategy)
            trace_needs(job, strategy.attention, kernels, needs, watch=lambda _state: None)
        cause = missing_formula(job, strategy, cluster.device)
    except BrimfulError as error:
        cause = str(error)
    if cause:
        return LigerRow(name=words, what="predicted", cause=cause)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    candidate = candidate_of(job, cluster, strategy)
    assert candidate is not None
    simulated = simulate_recorded(job, cluster, strategy)
    live = simulated.simulation.simulated_peak_allocated_bytes
    held = _reserved(simulated.recording.requests())
    return LigerRow(
        name=words,
        what="predicted",
        predicted_peak_allocated_bytes=predicted,
        simulated_peak_allocated_bytes=live,
        peak_error=relative(predicted, live),
        reserved_error=relative(max(map(_reserved, candidate.requests)), held),
    )


def _reserved(requests: Requests) -> int:
    settings = parse_settings("")
    return replay(requests, settings=settings, capacity_bytes=None).peak_reserved_bytes


def summarize(rows: list[LigerRow]) -> Summary:
    """Sum up, and say which rows miss a bar."""
    told = [row for row in rows if row.peak_error is not None]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("peak", [row.peak_error or 0.0 for row in told]),
            spread_of("reserved", [row.reserved_error or 0.0 for row in told]),
        ),
        bars=(
            f"losses and norms within {LEARNT:g} of the plain loop, {LEARNT_IN_16_BITS:g} in fp16",
            f"live peaks within {LIVE:.1%} of the simulation, reserved within {RESERVED:.0%}",
        ),
        missed=tuple(filter(None, map(_missed, rows))),
        findings=tuple(f"not predicted: {row.name}: {row.cause}" for row in rows if row.cause),
    )


def _missed(row: LigerRow) -> str:
    bar = LEARNT_IN_16_BITS if "fp16" in row.name else LEARNT
    learnt = max(row.loss_error or 0.0, row.norm_error or 0.0)
    if learnt > bar:
        return f"{learnt:.1e}: {row.name}"
    if abs(row.peak_error or 0.0) > LIVE or abs(row.reserved_error or 0.0) > RESERVED:
        return f"{row.peak_error:+.2%}, reserved {row.reserved_error:+.2%}: {row.name}"
    return ""
