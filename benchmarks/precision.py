"""What a watched step costs: ``python benchmarks/precision.py [--json FILE]``.

Plain and watched steps of one program in turns, on one thread, in seconds of the process's own
CPU time: the median of each. Exit code 1: a bar was missed.
"""

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec

from brimful.files.writing import write_bytes
from brimful.process.library_output import quiet_libraries
from brimful.process.versions import versions

quiet_libraries()

import torch  # noqa: E402

from brimful.build.assemble import build_program  # noqa: E402
from brimful.build.batch import Batch, count_targets  # noqa: E402
from brimful.build.program import Program  # noqa: E402
from brimful.build.step import train_step  # noqa: E402
from brimful.doctor.program import watcher_of  # noqa: E402
from brimful.models.config import read_config  # noqa: E402
from brimful.values.job import plain_job  # noqa: E402
from brimful.values.strategy import Strategy  # noqa: E402

PRECISION_SPEED_SCHEMA = "brimful.precision-speed/1"
EVERY = 50
WATCHED_BAR, SHARE_BAR = 2.0, 0.03
NUM_TURNS, NUM_SEQUENCES, SEQ_LEN = 7, 4, 256
WIDTHS = (128, 256, 512)
MAX_KEPT_BYTES = 64 * 1024**2
"""Of what a watcher keeps of a hundred watched steps; no tensor is among it."""
NUM_KEPT_STEPS = 100


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One program.

    Attributes:
        width: Of its blocks.
        plain_s: CPU seconds of a step.
        watched_s: Of a watched step.
        kept_bytes: Of Python's objects that watching ``NUM_KEPT_STEPS`` steps leaves.
    """

    width: int
    plain_s: float
    watched_s: float
    kept_bytes: int

    @property
    def ratio(self) -> float:
        """Watched step to plain step."""
        return self.watched_s / self.plain_s

    @property
    def share(self) -> float:
        """What one watched step in ``EVERY`` adds to a run."""
        return (self.ratio - 1) / EVERY


def measure(width: int) -> Row:
    """Take steps of a small decoder, every second one watched."""
    program, batches = _program(width)

    def step() -> None:
        train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-3)

    watcher = watcher_of(program, every=1)

    def watched_step(number: int) -> None:  # its hooks put on and off, its counts read
        with watcher.step(number):
            step()

    plain, watched = [], []
    for number in range(1, NUM_TURNS + 2):
        plain.append(_cpu_seconds(step))
        watched.append(_cpu_seconds(lambda number=number: watched_step(number)))
    return Row(
        width=width,
        plain_s=statistics.median(plain[1:]),
        watched_s=statistics.median(watched[1:]),
        kept_bytes=_kept_bytes() if width == min(WIDTHS) else 0,
    )


def _program(width: int, seq_len: int = SEQ_LEN) -> tuple[Program, list[Batch]]:
    config = {
        "model_type": "llama", "hidden_size": width, "intermediate_size": width * 5 // 2,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    job = plain_job(
        read_config(f"llama-{width}", config), seq_len=seq_len, global_batch=NUM_SEQUENCES,
        num_steps=NUM_TURNS, precision="fp32",
    )  # fmt: skip
    strategy = Strategy(
        micro_batch=NUM_SEQUENCES, activation_checkpointing="none", loss_chunks=1, attention="sdpa"
    )
    tokens = torch.randint(0, 2048, (NUM_SEQUENCES, seq_len))
    return build_program(job, strategy, torch.device("cpu")), [Batch(tokens, tokens)]


def _cpu_seconds(step: Callable[[], None]) -> float:
    start_s = time.process_time()
    step()
    return time.process_time() - start_s


def _kept_bytes() -> int:
    program, batches = _program(64, seq_len=8)
    watcher = watcher_of(program, every=1)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1, NUM_KEPT_STEPS + 1):
        with watcher.step(number):
            train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-3)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def missed(rows: list[Row]) -> list[str]:
    """Say which bars were missed."""
    found = []
    for row in rows:
        if row.ratio > WATCHED_BAR:
            found.append(f"width {row.width}: a watched step takes {row.ratio:.2f} x")
        if row.share > SHARE_BAR:
            found.append(f"width {row.width}: one in {EVERY} adds {row.share:.1%}")
        if row.kept_bytes > MAX_KEPT_BYTES:
            found.append(f"{row.kept_bytes:,} bytes are kept of {NUM_KEPT_STEPS} steps")
    return found


def main() -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(width) for width in WIDTHS]
    print(f"{'width':>6}  {'plain':>9}  {'watched':>9}  {'ratio':>6}  {f'one in {EVERY}':>9}")
    for row in rows:
        print(
            f"{row.width:6d}  {row.plain_s:7.3f} s  {row.watched_s:7.3f} s  {row.ratio:5.2f}x  "
            f"{row.share:8.2%}"
        )
    print(f"kept of {NUM_KEPT_STEPS} watched steps: {max(r.kept_bytes for r in rows):,} bytes")
    if args.json is not None:
        content = {"schema": PRECISION_SPEED_SCHEMA, "versions": versions(), "rows": rows}
        write_bytes(args.json, msgspec.json.format(msgspec.json.encode(content)))
    misses = missed(rows)
    print("\n".join(misses) if misses else "every bar is met")
    return int(bool(misses))


if __name__ == "__main__":
    sys.exit(main())
