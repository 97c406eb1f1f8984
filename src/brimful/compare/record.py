"""What comparing recipes has come to, as values. No torch."""

import statistics
from collections.abc import Sequence

import msgspec

from brimful.doctor.findings import Finding
from brimful.hardware.cluster import Cluster
from brimful.values.job import Job, LossScale, Precision
from brimful.values.strategy import Strategy

COMPARISON_SCHEMA = "brimful.comparison/1"
NUM_SEEDS = 3
MOST_STEPS = 300
"""Steps of a run where nobody says how many: a plan's own may be a hundred thousand."""
WORSE = 0.01
"""From this share above fp32's held-out loss on a recipe is called worse."""
REFERENCE: Precision = "fp32"
"""What the others are held against."""


class CompareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared.

    Attributes:
        recipes: Each once.
        loss_scale: For a recipe that scales its loss, where the plan's own does not.
        num_seeds: Runs of each recipe; the first has the job's own seed, the others count up.
    """

    recipes: tuple[Precision, ...]
    loss_scale: LossScale
    num_seeds: int = NUM_SEEDS


class RecipeRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training run in one recipe.

    Attributes:
        seed: Of the first weights and of the order of the data.
        heldout_loss: After the last step, in nats; None where the run failed.
        accuracy: Share of held-out targets that were right; None where the task has no such thing.
        num_steps: That were done.
        num_skipped: Of them, those whose scaled gradients overflowed.
        failed_step: The step that came to Inf or NaN, or could not be run; None: the run is whole.
        reason: What was said of it.
        measured_step_s: Median seconds of a step, the device waited for; the first two are left
            out. None where there were no others.
        measured_peak_allocated_bytes: By the meter, in the first two steps; None where it was not
            on, which it is for a recipe's first seed only.
    """

    seed: int
    heldout_loss: float | None
    accuracy: float | None
    num_steps: int
    num_skipped: int
    failed_step: int | None
    reason: str | None
    measured_step_s: float | None
    measured_peak_allocated_bytes: int | None


class Over(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One figure over seeds.

    Attributes:
        num: Runs that have it.
        mean: Of them.
        std: Sample standard deviation; None of one run.
        low: Smallest.
        high: Largest.
    """

    num: int
    mean: float
    std: float | None
    low: float
    high: float


class RecipeRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recipe.

    Attributes:
        recipe: Which.
        why_not: Why it was not run here; None: it was.
        loss_scale: With which it was run; None: its loss is not scaled.
        runs: One per seed.
        heldout_loss: Of the runs that are whole; None where none is.
        to_reference: Held-out loss relative to that of fp32 with the same seed, less one; None
            where either failed or fp32 was not run.
        accuracy: As the held-out loss.
        num_failed: Runs.
        num_skipped: Steps, of all runs.
        predicted_peak_allocated_bytes: First rung; None where no formula covers the recipe.
        simulated_peak_allocated_bytes: Second rung; None where it was not simulated.
        measured_peak_allocated_bytes: Third rung.
        measured_step_s: Median over the runs of their medians.
        finding: The doctor's first, of a recipe that is worse or failed; None where it had none.
    """

    recipe: Precision
    why_not: str | None = None
    loss_scale: LossScale | None = None
    runs: tuple[RecipeRun, ...] = ()
    heldout_loss: Over | None = None
    to_reference: Over | None = None
    accuracy: Over | None = None
    num_failed: int = 0
    num_skipped: int = 0
    predicted_peak_allocated_bytes: int | None = None
    simulated_peak_allocated_bytes: int | None = None
    measured_peak_allocated_bytes: int | None = None
    measured_step_s: float | None = None
    finding: Finding | None = None

    @property
    def is_worse(self) -> bool:
        """Whether it lost more than ``WORSE`` of fp32's quality, by the mean of the seeds."""
        return self.to_reference is not None and self.to_reference.mean > WORSE

    @property
    def is_in_doubt(self) -> bool:
        """Whether the doctor is to be asked: a run failed, or all are worse."""
        return self.num_failed > 0 or self.is_worse


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recipes side by side.

    Attributes:
        schema: ``COMPARISON_SCHEMA``.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        job: What was learnt; its recipe and seed are those of the plan.
        cluster: On what.
        strategy: How.
        seeds: Of the runs of every recipe.
        rows: One per recipe that was asked for and reached so far.
    """

    schema: str
    versions: tuple[str, ...]
    job: Job
    cluster: Cluster
    strategy: Strategy
    seeds: tuple[int, ...]
    rows: tuple[RecipeRow, ...]


def over(values: Sequence[float | None]) -> Over | None:
    """Sum a figure up over seeds; None where no run has it."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Over(
        num=len(known),
        mean=statistics.fmean(known),
        std=statistics.stdev(known) if len(known) > 1 else None,
        low=min(known),
        high=max(known),
    )


def row_of(
    recipe: Precision, runs: Sequence[RecipeRun], reference: Sequence[RecipeRun]
) -> RecipeRow:
    """Sum up the runs of a recipe.

    ``reference``: those of fp32; none where it was not run.
    """
    plain = {run.seed: run.heldout_loss for run in reference}
    peaks = [run.measured_peak_allocated_bytes for run in runs]
    times = [run.measured_step_s for run in runs if run.measured_step_s is not None]
    return RecipeRow(
        recipe=recipe,
        runs=tuple(runs),
        heldout_loss=over([run.heldout_loss for run in runs]),
        to_reference=over([_relative(run.heldout_loss, plain.get(run.seed)) for run in runs]),
        accuracy=over([run.accuracy for run in runs]),
        num_failed=sum(run.failed_step is not None for run in runs),
        num_skipped=sum(run.num_skipped for run in runs),
        measured_peak_allocated_bytes=max((x for x in peaks if x is not None), default=None),
        measured_step_s=statistics.median(times) if times else None,
    )


def _relative(loss: float | None, plain: float | None) -> float | None:
    return None if loss is None or not plain else loss / plain - 1
