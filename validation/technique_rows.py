"""Rows of the evidence on techniques: a combination of them, simulated and run."""

import msgspec
from cases import Case


class ItemRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes at the peak that both rungs tell apart."""

    name: str
    simulated_bytes: int
    measured_bytes: int


class TechniqueRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A combination of techniques, simulated and run.

    Attributes:
        case: What was run; where it has ``weights`` they were written for it, in fp32.
        predicted_peak_allocated_bytes: First rung; None where no formula covers the job.
        simulated_peak_allocated_bytes: Second rung.
        measured_peak_allocated_bytes: Third rung, in a process of its own.
        items: Bytes at the peak; what the instruments do not tell apart is one row.
        difference_bytes: Simulated less measured peak.
        allowed_bytes: The bar.
        peak_error: Signed, of the simulated peak, relative to measured.
        other_error: The same of what is neither parameters nor gradients nor optimizer state.
        predicted_error: Signed, of the predicted peak, relative to measured.
    """

    case: Case
    predicted_peak_allocated_bytes: int | None
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    items: tuple[ItemRow, ...]
    difference_bytes: int
    allowed_bytes: int
    peak_error: float
    other_error: float
    predicted_error: float | None
