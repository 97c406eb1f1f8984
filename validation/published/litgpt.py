"""Runs of litgpt's fine-tuning scripts on one GPU, rebuilt as they were published.

The scripts print ``torch.cuda.max_memory_allocated()`` of the whole run, loading included. That
counts blocks as the allocator hands them out: rounded to 512 bytes, and whole where less than a
mebibyte would be left over. So it is compared with the peak of the allocator's replay.

The model is in ``litgpt_model``, its linear layers in ``litgpt_linear`` and
``bitsandbytes_parts``, the loop in ``litgpt_program``.

Run ``python validation/published/litgpt.py --all`` or ``--row ID``, with ``--json`` for all fields.
"""

import sys
from functools import cache
from pathlib import Path

import msgspec
import torch
from litgpt_model import Dims
from litgpt_program import Config, train
from row import Row, Simulated, compared_bytes, main, read_rows, summarise

from brimful import pretend

ROWS = Path(__file__).parent / "rows" / "litgpt.json"
MODELS = Path(__file__).parent / "rows" / "litgpt_models.json"


@cache
def models() -> dict[str, Dims]:
    """Return litgpt's table of models by name."""
    return {d.name: d for d in msgspec.json.decode(MODELS.read_bytes(), type=tuple[Dims, ...])}


def simulate(row: Row[Config]) -> Simulated:
    """Run one row's program on the pretend GPU."""
    with pretend.gpu(row.config.gpu, says_cuda=False) as run, torch.device("gpu:0"):
        train(row.config, models()[row.config.model])
    recording = run.recording()
    return summarise(recording, end=len(recording.events))


if __name__ == "__main__":
    sys.exit(main(read_rows(ROWS, Config), simulate, compared_bytes))
