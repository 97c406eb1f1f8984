"""Runs of litgpt's fine-tuning scripts on one GPU, rebuilt as they were published.

The scripts print ``torch.cuda.max_memory_allocated()`` of the whole run, loading included. That
counts blocks as the allocator hands them out: rounded to 512 bytes, and whole where less than a
mebibyte would be left over. So it is compared with the peak of the allocator's replay.

The model is in ``litgpt_model``, its linear layers in ``litgpt_linear`` and
``bitsandbytes_parts``, the loop in ``litgpt_program``.

Run ``python validation/published/litgpt.py --all`` or ``--row ID``, with ``--json`` for all fields.
"""

import argparse
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from litgpt_model import Dims
from litgpt_program import Config, train
from row import GIB, Row, Simulated, read_rows, summarise

from brimful import pretend

ROWS = Path(__file__).parent / "rows" / "litgpt.json"
MODELS = Path(__file__).parent / "rows" / "litgpt_models.json"


@cache
def models() -> dict[str, Dims]:
    """Return litgpt's table of models by name."""
    return {d.name: d for d in msgspec.json.decode(MODELS.read_bytes(), type=tuple[Dims, ...])}


def simulate(row: Row[Config]) -> Simulated:
    """Run one row's program on the pretend GPU."""
    with pretend.gpu(row.config.gpu) as run, torch.device("gpu:0"):
        train(row.config, models()[row.config.model])
    recording = run.recording()
    return summarise(recording, end=len(recording.events))


def compared_bytes(row: Row[Config], simulated: Simulated) -> int:  # noqa: ARG001
    """Return what stands for the published figure."""
    return simulated.replayed_allocated_bytes


def main(
    rows: tuple[Any, ...],
    simulate_row: Callable[[Any], Simulated],
    compare: Callable[[Any, Simulated], int],
) -> int:
    """Simulate the rows that are asked for and print each beside what was published.

    Args:
        rows: All there are.
        simulate_row: Runs one.
        compare: Picks the bytes to compare.

    Returns:
        Exit code: 1 if no row has the name.
    """
    parser = argparse.ArgumentParser()
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--row")
    chosen.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = [row for row in rows if arguments.all or row.id == arguments.row]
    for row in found:
        simulated = simulate_row(row)
        num_bytes = compare(row, simulated)
        error = num_bytes / GIB / row.published_gib - 1
        if arguments.json:
            fields = msgspec.to_builtins(simulated)
            line = {"id": row.id, "compared_bytes": num_bytes, "error": error, **fields}
            print(msgspec.json.encode(line).decode(), flush=True)
        else:
            published, here = row.published_gib, num_bytes / GIB
            print(f"{row.id:52} {published:9.3f} {here:9.3f} {error:+8.3%}", flush=True)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(read_rows(ROWS, Config), simulate, compared_bytes))
