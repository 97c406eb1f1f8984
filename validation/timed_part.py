"""Step times around the demo's size: predicted with a fresh calibration, then measured."""

import os
import tempfile
from typing import NamedTuple

from evidence import Case, Spread, Summary, TimedRow, describe_case, relative, spreads
from median_interval import median_interval
from progress import shown
from provenance import Watch
from sampler import job_of
from worker import clock

from brimful.cli.demo import MODEL, SEQ_LEN
from brimful.cost.estimate import estimate
from brimful.hardware.calibration import Calibration, load_calibration
from brimful.hardware.cluster import Cluster
from brimful.hardware.probe import host_ram_bytes, probe_local
from brimful.measure.calibrate import calibrate
from brimful.models.config import read_config
from brimful.values.strategy import Strategy

STEP_BAR = 0.25
KNOWN_TO = 0.03
"""Half of the interval that holds a median with 95 %, relative to it; steps are timed till then."""
LEAST_STEPS, MOST_STEPS, QUICK_STEPS = 9, 80, 6
QUIET_LOAD = 0.1
"""Beyond this share of the CPU, other programs disturb what is timed."""


class _Timing(NamedTuple):
    """What differs from the demo's model and the plainest strategy."""

    model: dict[str, int]
    precision: str
    batches: tuple[int, int]
    checkpointing: str = "none"
    chunks: int = 1
    attention: str = "sdpa"


TIMINGS = (
    _Timing({}, "fp32", (8, 8)),
    _Timing({}, "bf16-mixed", (16, 16)),
    _Timing({}, "bf16", (16, 8)),
    _Timing({}, "bf16-mixed", (16, 4), "full", 4),
    _Timing({}, "fp32", (8, 4), "full:3", 2),
    _Timing({}, "bf16-mixed", (16, 8), "none", 1, "eager"),
    _Timing({"num_hidden_layers": 12}, "bf16-mixed", (8, 8)),
    _Timing({"hidden_size": 768, "intermediate_size": 2048}, "bf16-mixed", (16, 8), "full", 8),
    _Timing({"hidden_size": 384, "intermediate_size": 1024}, "fp32", (16, 16)),
    _Timing({"vocab_size": 32_000}, "bf16-mixed", (8, 4), "none", 4),
)
_QUICK = (_Timing({"num_hidden_layers": 2}, "fp32", (4, 4)),)


def run(*, seed: int, quick: bool) -> tuple[list[TimedRow], Summary, Calibration]:  # noqa: ARG001
    """Calibrate, predict and measure; the cases are fixed, so the seed plays no part."""
    cluster, calibration = _calibrated()
    timings, most = (_QUICK, QUICK_STEPS) if quick else (TIMINGS, MOST_STEPS)
    rows = [_compare(_case(timing), cluster, most) for timing in shown("step time", timings)]
    return rows, summarize(rows, calibration), calibration


def _calibrated() -> tuple[Cluster, Calibration]:
    """Calibrate anew and leave the user's own calibration as it is."""
    before = os.environ.get("BRIMFUL_CACHE")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BRIMFUL_CACHE"] = cache
        try:
            device = calibrate(probe_local(), on_progress=lambda _what, _share: None)
            calibration = load_calibration(device.description)
        finally:
            os.environ.pop("BRIMFUL_CACHE")
            if before is not None:
                os.environ["BRIMFUL_CACHE"] = before
    assert calibration is not None
    ram_bytes = host_ram_bytes()
    return Cluster(
        name="local", device=device, num_devices=1, host_ram_bytes=ram_bytes
    ), calibration


def _case(timing: _Timing) -> Case:
    global_batch, micro_batch = timing.batches
    return Case(
        job=job_of(
            read_config("demo-like", {**MODEL, **timing.model}),
            precision=timing.precision,
            seq_len=SEQ_LEN,
            global_batch=global_batch,
        ),
        strategy=Strategy(
            micro_batch=micro_batch,
            activation_checkpointing=timing.checkpointing,
            loss_chunks=timing.chunks,
            attention=timing.attention,  # type: ignore[arg-type]  # one of the table above
        ),
        kernels="cpu",
    )


def _compare(case: Case, cluster: Cluster, most: int) -> TimedRow:
    predicted_s = estimate(case.job, cluster, case.strategy).predicted_step_s
    assert predicted_s is not None
    watch = Watch()
    timed = clock(case, least=min(LEAST_STEPS, most), most=most, known_to=KNOWN_TO)
    known = median_interval(timed.measured_steps_s)
    assert known is not None
    return TimedRow(
        case=case,
        predicted_step_s=predicted_s,
        measured_steps_s=timed.measured_steps_s,
        measured_step_s=timed.median_s,
        measured_low_s=known.low,
        measured_high_s=known.high,
        step_error=relative(predicted_s, timed.median_s),
        others_load=round(watch.others_load(), 3),
    )


def summarize(rows: list[TimedRow], calibration: Calibration) -> Summary:
    """Sum up, and say which bars are missed."""
    errors: list[Spread] = spreads(
        "step time", rows, case=lambda row: row.case, error=lambda row: row.step_error
    )
    loads = (calibration.others_load, *(row.others_load for row in rows))
    disturbed = [f"disturbed: others used up to {max(loads):.0%} of the CPU; make it again"]
    missed = [
        f"step time {row.step_error:+.1%}, others used {row.others_load:.0%} of the CPU: "
        f"{describe_case(row.case)}"
        for row in rows
        if abs(row.step_error) > STEP_BAR
    ]
    missed += [
        f"median known to {_known_to(row):.1%} after {len(row.measured_steps_s)} steps, not "
        f"{KNOWN_TO:.0%}: {describe_case(row.case)}"
        for row in rows
        if _known_to(row) > KNOWN_TO
    ]
    if max(loads) > QUIET_LOAD:
        missed += disturbed
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=tuple(errors),
        bars=(
            f"each within {STEP_BAR:.0%}, others using at most {QUIET_LOAD:.0%} of the CPU",
            f"each median known to {KNOWN_TO:.0%} with 95 %",
        ),
        missed=tuple(missed),
        findings=tuple(
            f"{row.measured_step_s:.3f} s ({row.measured_low_s:.3f} to {row.measured_high_s:.3f} "
            f"with 95 %, {len(row.measured_steps_s)} steps), predicted {row.predicted_step_s:.3f} s"
            for row in rows
        ),
    )


def _known_to(row: TimedRow) -> float:
    return (row.measured_high_s - row.measured_low_s) / 2 / row.measured_step_s
