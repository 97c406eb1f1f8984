"""What a run's rows add up to: tokens seen, steps skipped, and the best loss on held-out data.

A run that goes on counts from its own rows, so that a resume changes none of it.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from brimful.values.run_files import EvalRow, Row, TrainRow

MAX_SKIPPED_IN_A_ROW = 50
"""Skipped steps after which a run is given up: as many halvings as take any scale out of fp32."""


@dataclass(slots=True)
class Tally:
    """Counts over the rows so far.

    Attributes:
        num_targets: Unmasked tokens of all steps, skipped ones too: they were seen.
        num_skipped: Steps that were skipped.
        num_skipped_in_a_row: Of them, those since the last one that was not.
        last_loss: The newest training loss that is a number.
        last_eval: The newest evaluation.
        best_eval: The evaluation of the lowest loss, the first of equals.
    """

    num_targets: int = 0
    num_skipped: int = 0
    num_skipped_in_a_row: int = 0
    last_loss: float | None = None
    last_eval: EvalRow | None = None
    best_eval: EvalRow | None = None

    def take(self, row: Row) -> None:
        """Count one more row."""
        if isinstance(row, EvalRow):
            self.last_eval = row
            self.best_eval = row if self.would_be_best(row.heldout_loss) else self.best_eval
            return
        if not isinstance(row, TrainRow):
            return
        self.num_targets += _targets(row)
        self.num_skipped += row.skipped
        self.num_skipped_in_a_row = self.num_skipped_in_a_row + 1 if row.skipped else 0
        self.last_loss = self.last_loss if row.loss is None else row.loss

    def would_be_best(self, heldout_loss: float) -> bool:
        """Tell whether a held-out loss is lower than all so far."""
        return self.best_eval is None or heldout_loss < self.best_eval.heldout_loss


def tally_of(rows: Iterable[Row]) -> Tally:
    """Count the rows of a run."""
    tally = Tally()
    for row in rows:
        tally.take(row)
    return tally


def median_or_none(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _targets(row: TrainRow) -> int:
    # Rows of earlier versions say only how fast they were.
    return round(row.tokens_per_s * row.step_s) if row.num_targets is None else row.num_targets
