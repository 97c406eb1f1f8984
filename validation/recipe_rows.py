"""Rows of evidence on precision recipes side by side."""

import msgspec
from cases import Case

from brimful.compare.record import RecipeRow


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recipe on one job, as ``brimful precision --compare --json`` tells it.

    Attributes:
        name: Of the job.
        case: The job in this recipe, with the first seed.
        gap: Held-out loss relative to that of bf16-mixed with the same seed, less one, mean of the
            seeds; None where no seed has both.
        row: Everything else.
    """

    name: str
    case: Case
    gap: float | None
    row: RecipeRow
