"""Rows and reports as the loop makes them, for everything that watches."""

import msgspec

from brimful.train.step_report import StepReport
from brimful.values.run_files import TrainRow


def make_row(step, **changes):
    row = TrainRow(
        step=step,
        loss=2.34567,
        learning_rate=3e-4,
        grad_norm=1.234,
        tokens_per_s=12_345,
        step_s=0.5,
        num_targets=6172,
        used_bytes=1 << 30,
        peak_bytes=3 << 29,
    )
    return msgspec.structs.replace(row, **changes)


def make_report(step, *, num_steps=10, num_skipped=0, is_process=True, remaining_s=90, **changes):
    measured = changes.pop("measured", 1 << 29) if is_process else None
    return StepReport(
        row=make_row(step, **changes),
        num_steps=num_steps,
        task="causal-lm",
        num_skipped=num_skipped,
        is_process=is_process,
        measured_peak_bytes=measured,
        limit_bytes=2 << 30,
        remaining_s=remaining_s,
    )
