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
    ("simulated_to_reserved", "simulated to reserved"),
    ("predicted_to_simulated", "predicted to simulated"),
    ("predicted_to_allocated", "predicted to allocated"),
    ("predicted_to_reserved", "predicted to reserved"),
    ("predicted_to_step_s", "step time, calibrated"),
    ("datasheet_to_step_s", "step time, datasheet"),
)
BARS = {
    "simulated_to_allocated": (0.002, 0.02),
    "simulated_to_reserved": (0.015, 0.04),
    "predicted_to_step_s": (0.08, None),
}
"""Largest median and largest worst size of an error on a GPU."""
_BANDS = (("reserved_in_band", "reserved"), ("process_in_band", "process"))


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table in lines of at most 100 columns."""
    table = [_COLUMNS, *(_line(row) for row in rows)]
    table += [f"  {row.case.name}: {why}"[:100] for row in rows for why in row.failures]
    errors = [row.errors for row in rows]
    table += ["", f"{'signed errors':32s}{'median':>10s}{'worst':>10s}{'cases':>7s}"]
    table += [_error_line(errors, field, label) for field, label in _ERRORS]
    table += [_band_line(errors, field, label) for field, label in _BANDS]
    return [*table, "", *_families(rows), *_outliers(rows), *_peers(rows)]


def _peers(rows: Sequence[Row]) -> list[str]:
    """Put other trainers beside ours: peaks and seconds as ratios, theirs to ours."""
    told = []
    for row in rows:
        for peer in row.peers if row.measured else ():
            assert row.measured is not None
            assert row.measured.measured_step_s is not None  # others run only where we are timed
            memory = peer.measured_peak_allocated_bytes / row.measured.measured_peak_allocated_bytes
            seconds = peer.measured_step_s / row.measured.measured_step_s
            told.append(f"{row.case.name:19s}{peer.trainer:10s}{memory:>8.3f} x{seconds:>8.2f} x")
    head = f"{'theirs to ours':19s}{'trainer':10s}{'peak':>10s}{'step':>10s}"
    return ["", head, *told] if told else []


def _families(rows: Sequence[Row]) -> list[str]:
    """Sum up what counts, family by family."""
    table = [f"{'family':16s}{'cases':>6s}" + "".join(f"{n:>21s}" for n in _SHORT.values())]
    for family in dict.fromkeys(row.case.family for row in rows):
        own = [row.errors for row in rows if row.case.family == family]
        cells = [_median_and_worst(own, field) for field in _SHORT]
        table.append(f"{family:16s}{len(own):>6d}" + "".join(f"{cell:>21s}" for cell in cells))
    return table


_SHORT = {
    "simulated_to_allocated": "allocated",
    "simulated_to_reserved": "reserved",
    "predicted_to_step_s": "step time",
}


def _median_and_worst(errors: Sequence[Errors], field: str) -> str:
    known = [value for error in errors if (value := getattr(error, field)) is not None]
    if not known:
        return "-"
    return f"{_percent(statistics.median(known))} {_percent(max(known, key=abs))}"


def _outliers(rows: Sequence[Row]) -> list[str]:
    """Name cases beyond a bar, with what could explain them: leftover, and the part of a step."""
    told = []
    for row in rows:
        for field, (_, worst) in BARS.items():
            error = getattr(row.errors, field)
            if worst is not None and error is not None and abs(error) > worst:
                told.append(f"  {row.case.name}: {_SHORT[field]} {_percent(error)}; {_why(row)}")
    return ["", "beyond the bars:", *(line[:100] for line in told)] if told else []


def _why(row: Row) -> str:
    assert row.measured is not None
    left = row.measured.measured_leftover_bytes
    parts = max(row.measured.measured_phases, key=lambda phase: phase.num_bytes, default=None)
    where = parts.phase if parts else "nowhere"
    return f"peak in {where}, {_size(left)} held beyond what lasts"


def _line(row: Row) -> str:
    predicted, simulated, measured = row.predicted, row.simulated, row.measured
    step_s = measured.measured_step_s if measured else None
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
        f"{format_seconds(step_s) if step_s else '-':>8s}"
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
