"""Our loop beside the HF Trainer's: pairs of ``validation/peers_part.py``, fewer and shorter.

The long comparison, on a quiet machine, is the evidence ``validation/hf_trainer.json``.
"""

import contextlib
import statistics
import tempfile
from pathlib import Path

import peers_part
from evidence import describe_case
from peer_rows import LoopRow
from peer_site import Site
from peers_part import SETTINGS, Bench, Setting, Size
from progress import shown

SEED = 20261123
NUM_PAIRS, NUM_STEPS = 2, 8
SHORT = peers_part.FULL._replace(num_pairs=NUM_PAIRS, num_steps=NUM_STEPS, text="json")
CHOSEN = ("full fp32", "full bf16 autocast, checkpointed")


def run(*, quick: bool) -> tuple[list[LoopRow], tuple[str, ...], list[str]]:
    """Run the pairs; returns rows, and how far runs of one job are apart."""
    size = peers_part.QUICK._replace(num_pairs=1) if quick else SHORT
    chosen = [each for each in SETTINGS if each.name in (CHOSEN[:1] if quick else CHOSEN)]
    rows = [_row(size, setting) for setting in shown("loops", chosen)]
    spread = max(
        _spread(speeds) for row in rows for speeds in (row.tokens_per_s, row.peer_tokens_per_s)
    )
    return rows, (), [f"largest spread of runs of one job by one loop: {spread:.1%}"]


def _row(size: Size, setting: Setting) -> LoopRow:
    text = Path(contextlib.__file__).parent / (size.text or "")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Site(Path(folder) / "site", text), size)
        row = peers_part.compare(bench, peers_part.case_of(size, setting, SEED))
    return LoopRow(
        settings=setting.name,
        case=describe_case(row.case),
        tokens_per_s=row.tokens_per_s,
        peer_tokens_per_s=row.peer_tokens_per_s,
        speed_ratio=row.speed_ratio,
        peak_ratio=row.peak_ratio,
        loss_error=row.loss_error,
        others_load=row.others_load,
    )


def _spread(values: tuple[float, ...]) -> float:
    return (max(values) - min(values)) / statistics.median(values)
