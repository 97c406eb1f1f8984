"""2,000 real steps with checkpoints and evaluation: memory and disk stay as they are.

A tiny decoder on the CPU through ``brimful train``. The trainer's own curve says what the process
holds after each step; the checkpoints' folder is looked at from outside, and tensors that are alive
are counted inside (``soak_worker.py``).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence import Summary
from soak_rows import SoakRow

CONFIG = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
NUM_STEPS, NUM_QUICK_STEPS = 2000, 200
EVERY = 100
WARM_UP_SHARE = 0.2
"""Of the steps: two checkpoints are on the disk by then, and a held-out loss was taken."""
MOST_SHARE = 0.01
POLL_S = 0.25
NUM_KEPT = 2
LIVE, LIVE_TIMES = "live.txt", 5
"""Where live bytes are written, and how often between two checkpoints."""
Sample = tuple[float, int]
"""A step and bytes."""


def run(*, seed: int, quick: bool) -> tuple[list[SoakRow], Summary]:
    """Train and look at what grows."""
    rows = soak(NUM_QUICK_STEPS if quick else NUM_STEPS, seed=seed)
    return rows, summarize(rows)


def soak(num_steps: int, *, seed: int) -> list[SoakRow]:
    """Train a tiny decoder in a process of its own."""
    every = min(EVERY, num_steps // 20)
    command = (
        "train", "tiny.json", "--gpus=local", "--precision=fp32", "--data=data.txt", "--out=run",
        "--seq-len=32", "--global-batch=2", "--micro-batch=2", "--ac=none", "--loss-chunks=1",
        f"--steps={num_steps}", f"--seed={seed}", f"--checkpoint-every={every}",
        f"--eval-every={every}", f"--keep={NUM_KEPT}",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "tiny.json").write_text(json.dumps(CONFIG))
        (folder / "data.txt").write_text("A line of text, and one more.\n" * 5000)
        disk = _watched(folder, command, every=max(1, every // LIVE_TIMES))
        live = _read(folder / LIVE)
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    curve = [json.loads(line) for line in lines]
    resident = [(line["step"], line["used_bytes"]) for line in curve if line["kind"] == "train"]
    num_evals = sum(line["kind"] == "eval" for line in curve)
    made: dict[str, Any] = {"command": command, "num_steps": num_steps, "num_evals": num_evals}
    samples = {"resident": resident, "live": live, "disk": disk}
    return [row_of(what, own, **made) for what, own in samples.items()]


def _read(path: Path) -> list[Sample]:
    """Read steps and live bytes."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return [(int(step), int(size)) for step, size in pairs]


def _watched(folder: Path, command: Sequence[str], *, every: int) -> list[Sample]:
    """Train, and look at the checkpoints meanwhile: steps so far, and bytes of whole ones."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BRIMFUL_CACHE": str(folder / "cache")}
    worker = str(Path(__file__).with_name("soak_worker.py"))
    argv = [sys.executable, worker, str(folder / LIVE), str(every), *command]
    samples: list[Sample] = []
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(  # noqa: S603 - our own command
            argv, cwd=folder, env=environment, stdout=said, stderr=said
        ) as process,
    ):
        while process.poll() is None:
            time.sleep(POLL_S)
            if sample := _disk(folder / "run" / "checkpoints"):
                samples.append(sample)
    if process.returncode:
        raise RuntimeError((folder / "said").read_text()[-2000:])
    return samples


def _disk(checkpoints: Path) -> Sample | None:
    """Return the newest checkpoint's step and the bytes of all; None while one comes or goes."""
    names = _names(checkpoints)
    try:
        sizes = [path.stat().st_size for path in checkpoints.rglob("*") if path.is_file()]
    except OSError:
        return None
    whole = len(names) == NUM_KEPT and all(name.startswith("step-") for name in names)
    if not whole or names != _names(checkpoints):
        return None
    return int(names[-1].removeprefix("step-")), sum(sizes)


def _names(folder: Path) -> list[str]:
    """List what lies in a folder, what is being written too; nothing where there is none."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def row_of(what: str, samples: list[Sample], *, num_steps: int, **made: Any) -> SoakRow:
    """Compare the first with the last quarter after the warm-up, and fit a line."""
    warm_up = round(num_steps * WARM_UP_SHARE)
    kept = [sample for sample in samples if sample[0] > warm_up]
    quarter = max(1, len(kept) // 4)
    first, last = (
        statistics.median(size for _, size in part) for part in (kept[:quarter], kept[-quarter:])
    )
    slope = statistics.linear_regression(*zip(*kept, strict=True)).slope
    return SoakRow(
        what=what,
        num_steps=num_steps,
        num_warm_up=warm_up,
        num_samples=len(kept),
        first_bytes=int(first),
        last_bytes=int(last),
        slope_share=slope * (num_steps - warm_up) / first,
        change_share=(last - first) / first,
        **made,
    )


def summarize(rows: list[SoakRow]) -> Summary:
    """Say what is not flat."""
    missed = [
        f"{row.what}: {share:+.2%} from the first to the last quarter, by {way}"
        for row in rows
        for way, share in (("medians", row.change_share), ("a line", row.slope_share))
        if abs(share) > MOST_SHARE
    ]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            f"resident memory, live tensors and disk flat to {MOST_SHARE:.0%} after the warm-up",
        ),
        missed=tuple(missed),
        findings=tuple(
            f"{row.what}: {row.first_bytes} bytes at first, {row.change_share:+.3%}; "
            f"line {row.slope_share:+.3%}"
            for row in rows
        ),
    )
