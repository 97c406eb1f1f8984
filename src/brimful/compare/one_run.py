"""One training run of a comparison: the trainer's own, in a folder that is thrown away."""

import tempfile
from pathlib import Path
from typing import Protocol

from brimful.compare.record import RecipeRun
from brimful.errors import RunError
from brimful.measure.meter import Meter, meter_for
from brimful.train.data.source import DataSource
from brimful.train.loop import train
from brimful.train.metering import NUM_METERED_STEPS, NullMeter
from brimful.train.metrics import read_metrics
from brimful.train.settings import RunSettings, plain_settings
from brimful.train.step_report import StepReport
from brimful.train.tally import median_or_none, tally_of
from brimful.values.plan import Plan
from brimful.values.run_files import METRICS_FILE, EvalRow, ExpertRow, TrainRow

_NEVER = 10**9
"""Steps between held-out losses; the last step has one."""


class OnStep(Protocol):
    """Called after each step."""

    def __call__(self, step: int) -> None:
        """Take note."""


class _StepsOnly:
    """An observer that passes the number of each step on, and nothing else."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step

    def on_stage(self, text: str) -> None:
        """Nothing is shown."""

    def on_step(self, report: StepReport) -> None:
        """Pass it on."""
        self._on_step(report.row.step)

    def on_eval(self, row: EvalRow) -> None:
        """It is in the run's result."""

    def on_experts(self, row: ExpertRow) -> None:
        """Nothing is shown."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """It is thrown away."""

    def on_message(self, text: str) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is open."""


def run_once(
    plan: Plan, source: DataSource, *, cache: Path, is_metered: bool, on_step: OnStep
) -> RecipeRun:
    """Train a plan and keep its figures.

    ``plan``: with the recipe and the seed of this run. ``is_metered``: whether the meter watches
    the first steps. Returns how it went; a run that came to Inf or NaN, or ran out of memory, is an
    answer too. Raises InputError: the recipe cannot be built on this job. Raises UnsupportedError:
    likewise, or not on this device.
    """
    meter = meter_for(plan.cluster.device.kernels)
    with tempfile.TemporaryDirectory(prefix="brimful-") as folder:
        settings = _settings(Path(folder) / "run", source, cache)
        try:
            result = train(
                plan,
                settings,
                observer=_StepsOnly(on_step),
                meter=meter if is_metered else NullMeter(),
            )
        except RunError as error:
            return _failed(plan, settings.out, str(error), peak_bytes=_peak(meter))
    # ``train`` ends in peace. Half a run is no figure, and a signal in the last step is one to us.
    if result.asked_to_stop:
        raise KeyboardInterrupt
    return RecipeRun(
        seed=plan.job.seed,
        heldout_loss=result.heldout_loss,
        accuracy=result.accuracy,
        num_steps=result.num_steps,
        num_skipped=result.num_skipped,
        failed_step=None,
        reason=None,
        measured_step_s=result.median_step_s,
        measured_peak_allocated_bytes=_peak(meter),
    )


def _settings(out: Path, source: DataSource, cache: Path) -> RunSettings:
    return plain_settings(
        out=out, data=source, cache=cache, eval_every_steps=_NEVER, keeps_model=False
    )


def _peak(meter: Meter) -> int | None:
    """Return what the meter read; None where it was not on, or the run ended before."""
    return None if meter.reading is None else meter.reading.measured_peak_allocated_bytes


def _failed(plan: Plan, out: Path, reason: str, *, peak_bytes: int | None) -> RecipeRun:
    """Read what a run had done before it failed; its folder is not kept, nor what points at it."""
    path = out / METRICS_FILE
    rows = [row for row in read_metrics(path) if isinstance(row, TrainRow)] if path.exists() else []
    steady = [row.step_s for row in rows if row.step > NUM_METERED_STEPS]
    return RecipeRun(
        seed=plan.job.seed,
        heldout_loss=None,
        accuracy=None,
        num_steps=len(rows),
        num_skipped=tally_of(rows).num_skipped,
        # After the last step what fails is the held-out loss.
        failed_step=min(len(rows) + 1, plan.job.num_steps),
        reason=reason.partition("; ")[0],
        measured_step_s=median_or_none(steady),
        measured_peak_allocated_bytes=peak_bytes,
    )
