"""BERT-large with the Hugging Face Trainer on one V100, rebuilt as it was published.

What was published is the GPU's used memory after training, as the driver says it: what the
allocator holds and what lies outside it. The latter is the context as the same page printed it,
before any model was loaded.

The model is in ``bert_model``, the loop in ``bert_program``.

Run ``python validation/published/bert.py --all`` or ``--row ID``, with ``--json`` for all fields.
"""

import sys
from pathlib import Path
from typing import Literal

import msgspec
import torch
from bert_program import Config, train
from row import Row, Simulated, main, summarise

from brimful import pretend

ROWS = Path(__file__).parent / "rows" / "bert.json"
MIB = 1 << 20


class DriverRow(Row[Config], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row whose figure is the driver's, of the whole process."""

    mem_class: Literal["nvidia-smi"]  # type: ignore[assignment]


def simulate(row: DriverRow) -> Simulated:
    """Run one row's program on the pretend GPU."""
    with pretend.gpu("v100-32gb", says_cuda=False) as run, torch.device("gpu:0"):
        train(row.config)
    recording = run.recording()
    return summarise(recording, end=len(recording.events))


def compared_bytes(row: DriverRow, simulated: Simulated) -> int:
    """Return what stands for the published figure: reserved, and the context."""
    return simulated.reserved_bytes + row.config.context_mib * MIB


if __name__ == "__main__":
    found = msgspec.json.decode(ROWS.read_bytes(), type=tuple[DriverRow, ...])
    sys.exit(main(found, simulate, compared_bytes))
