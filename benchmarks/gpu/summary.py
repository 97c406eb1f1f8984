"""The table at the end: three rungs per case, then median and worst signed error."""

import statistics
from collections.abc import Sequence

from rows import Errors, Row

from brimful.units import format_bytes, format_seconds

_SIZES = ("predicted", "simulated", "requested", "allocated", "reserved")
_COLUMNS = f"{'case':19s}" + "".join(f"{n:>11s}" for n in _SIZES) + "  sim/req pred/sim    step"
_ERRORS = (
    ("simulated_to_requested", "simulated to requested"),
    ("simulated_with_leftover_to_requested", "  with measured leftover added"),
    ("simulated_to_allocated", "simulated to allocated"),
    ("predicted_to_simulated", "predicted to simulated"),
    ("predicted_to_allocated", "predicted to allocated"),
    ("predicted_to_step_s", "step time, calibrated"),
    ("datasheet_to_step_s", "step time, datasheet"),
)
_BANDS = (("reserved_in_band", "reserved"), ("process_in_band", "process"))


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table in lines of at most 100 columns."""
    table = [_COLUMNS, *(_line(row) for row in rows)]
    table += [f"  {row.case.name}: {why}"[:100] for row in rows for why in row.failures]
    errors = [row.errors for row in rows]
    table += ["", f"{'signed errors':32s}{'median':>10s}{'worst':>10s}{'cases':>7s}"]
    table += [_error_line(errors, field, label) for field, label in _ERRORS]
    return table + [_band_line(errors, field, label) for field, label in _BANDS]


def _line(row: Row) -> str:
    predicted, simulated, measured = row.predicted, row.simulated, row.measured
    sizes = (
        predicted.predicted_peak_allocated_bytes if predicted else None,
        simulated.simulated_peak_allocated_bytes if simulated else None,
        measured.measured_peak_requested_bytes if measured else None,
        measured.measured_peak_allocated_bytes if measured else None,
        measured.measured_peak_reserved_bytes if measured else None,
    )
    return (
        f"{row.case.name:19s}{''.join(f'{_size(size):>11s}' for size in sizes)}"
        f"{_percent(row.errors.simulated_to_requested):>9s}"
        f"{_percent(row.errors.predicted_to_simulated):>9s}"
        f"{format_seconds(measured.measured_step_s) if measured else '-':>8s}"
    )


def _size(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else format_bytes(num_bytes)


def _percent(error: float | None, digits: int = 2) -> str:
    return "-" if error is None else f"{100 * error:+.{digits}f}%"


def _error_line(errors: Sequence[Errors], field: str, label: str) -> str:
    known = [value for error in errors if (value := getattr(error, field)) is not None]
    if not known:
        return f"{label:32s}{'-':>10s}{'-':>10s}{0:>7d}"
    median, worst = statistics.median(known), max(known, key=abs)
    return f"{label:32s}{_percent(median, 3):>10s}{_percent(worst, 3):>10s}{len(known):>7d}"


def _band_line(errors: Sequence[Errors], field: str, label: str) -> str:
    known = [value for error in errors if (value := getattr(error, field)) is not None]
    return f"{label} bytes within the predicted band: {sum(known)} of {len(known)}"
