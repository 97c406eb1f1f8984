"""Second rung against third: simulations against real runs on a CPU, each in its own process."""

import random

from evidence import (
    RICH_SHARE,
    Case,
    MeasuredRow,
    Summary,
    describe_case,
    other_bytes,
    relative,
    spreads,
)
from progress import shown
from sampler import FACTORS, Drawn, Range, Shapes, cluster_of, draw_cases
from worker import meter

from brimful.cost.estimate import estimate
from brimful.simulate.run import simulate
from brimful.units import MIB
from brimful.values.plan import Estimate

NUM_CASES, NUM_QUICK_CASES = 44, 2
LEAST_PEAK_BYTES, MOST_PEAK_BYTES = 256 * MIB, 1536 * MIB
MOST_STEP_FLOPS = 1.5e11
"""Some seconds for two steps, on two cores without bf16 units too."""
SHARE_BAR, BYTES_BAR = 0.005, MIB
SHAPES = Shapes(
    hidden=Range(96, 768),
    layers=Range(2, 12),
    vocab=Range(8_000, 32_000),
    seq_len=Range(128, 1024),
    micro_batch=Range(1, 16),
    chunks=Range(2, 16),
    registry_share=0.0,
)
_FACTORS = {**FACTORS, "kernels": ("cpu",)}


def run(*, seed: int, quick: bool) -> tuple[list[MeasuredRow], Summary]:
    """Draw, predict, simulate and measure."""
    drawn = draw_cases(
        random.Random(seed),  # noqa: S311 - cases, not secrets
        NUM_QUICK_CASES if quick else NUM_CASES,
        _FACTORS,
        SHAPES,
        _unwanted,
    )
    rows = [compare(case) for case in shown("simulated vs measured", drawn.cases)]
    return rows, summarize(rows, drawn)


def _unwanted(_case: Case, predicted: Estimate) -> str | None:
    peak = predicted.predicted_peak_allocated_bytes
    if not LEAST_PEAK_BYTES <= peak <= MOST_PEAK_BYTES:
        return "not wanted: predicted peak outside 256 MiB to 1.5 GiB"
    if other_bytes(predicted.items) < RICH_SHARE * peak:
        return "not wanted: less than 40 % of the predicted peak is activations and transients"
    if predicted.step_flops > MOST_STEP_FLOPS:
        return f"not wanted: a step of more than {MOST_STEP_FLOPS:.1e} FLOPs takes too long"
    return None


def compare(case: Case) -> MeasuredRow:
    """Climb all three rungs of a case."""
    cluster = cluster_of(case.kernels)
    predicted = estimate(case.job, cluster, case.strategy)
    simulated = simulate(case.job, cluster, case.strategy)
    metered = meter(case)
    said, live = predicted.predicted_peak_allocated_bytes, simulated.simulated_peak_allocated_bytes
    peak, others = metered.measured_peak_allocated_bytes, other_bytes(metered.items)
    return MeasuredRow(
        case=case,
        predicted_peak_allocated_bytes=said,
        simulated_peak_allocated_bytes=live,
        measured_peak_allocated_bytes=peak,
        predicted_other_bytes=other_bytes(predicted.items),
        simulated_other_bytes=other_bytes(simulated.items),
        measured_other_bytes=others,
        difference_bytes=live - peak,
        allowed_bytes=max(BYTES_BAR, int(SHARE_BAR * peak)),
        peak_error=relative(live, peak),
        other_error=relative(other_bytes(simulated.items), others),
        predicted_error=relative(said, peak),
    )


def summarize(rows: list[MeasuredRow], drawn: Drawn) -> Summary:
    """Sum up, and say which cases miss the bar."""
    return Summary(
        num_drawn=drawn.num_drawn,
        refusals=drawn.refusals,
        num_cases=len(rows),
        num_rich=sum(
            row.measured_other_bytes > RICH_SHARE * row.measured_peak_allocated_bytes
            for row in rows
        ),
        spreads=(
            *spreads("peak", rows, case=_case, error=lambda row: row.peak_error),
            *spreads("other bytes", rows, case=_case, error=lambda row: row.other_error),
            *spreads("predicted", rows, case=_case, error=lambda row: row.predicted_error),
        ),
        bars=(f"each peak within max({SHARE_BAR:.1%}, 1 MiB)",),
        missed=tuple(
            f"{row.difference_bytes:+d} bytes, {row.allowed_bytes} allowed: "
            f"{describe_case(row.case)}"
            for row in rows
            if abs(row.difference_bytes) > row.allowed_bytes
        ),
    )


def _case(row: MeasuredRow) -> Case:
    return row.case
