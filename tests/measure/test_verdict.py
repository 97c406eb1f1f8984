import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.measure.verdict import ACTIVATIONS, VERDICT_SCHEMA, judge
from brimful.values.plan import PLAN_SCHEMA, MemoryItem, PhasePeak, Plan
from brimful.values.results import (
    MEASUREMENT_SCHEMA,
    SIMULATION_SCHEMA,
    Measurement,
    Simulation,
    Timeline,
)
from samples import make_cluster, make_job, make_strategy


def make_plan():
    job, cluster, strategy = make_job(), make_cluster(), make_strategy()
    return Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=strategy,
        estimate=estimate(job, cluster, strategy),
    )


def item(name, num_bytes):
    return MemoryItem(name=name, phase="step 2+", num_bytes=num_bytes, where="device", why="")


PHASES = (
    PhasePeak(phase="load", num_bytes=10, where=""),
    PhasePeak(phase="step 1", num_bytes=70, where=""),
)
LINE = Timeline(event=(0,), live_bytes=(100,), phase_starts=(0,), phases=("load",))
SIMULATION = Simulation(
    schema=SIMULATION_SCHEMA,
    versions=(),
    kernels="cpu",
    items=(item("parameters", 40), item("saved activations", 35), item("transients", 25)),
    phases=PHASES,
    simulated_peak_allocated_bytes=100,
    reserved=None,
    owners=(),
    num_events=1,
    simulate_s=0.1,
    timeline=LINE,
)
MEASUREMENT = Measurement(
    schema=MEASUREMENT_SCHEMA,
    versions=(),
    method="a test's instrument",
    items=(item("parameters", 40), item("gradients", 0), item("saved activations", 61)),
    phases=PHASES,
    measured_peak_allocated_bytes=101,
    measured_peak_reserved_bytes=None,
    measured_process_bytes=500,
    measured_step_s=2.0,
    timeline=None,
)


def rows(*rungs):
    verdict = judge(make_plan(), *rungs)
    return {row.name: row for row in verdict.rows}


def test_rungs_that_were_not_climbed_are_none_and_never_zero():
    for row in rows(None, None).values():
        assert row.predicted is not None
        assert row.simulated is None
        assert row.measured is None


def test_every_rung_stands_in_its_own_column():
    row = rows(SIMULATION, MEASUREMENT)["peak allocated"]
    predicted = make_plan().estimate.predicted_peak_allocated_bytes
    assert (row.predicted, row.simulated, row.measured) == (predicted, 100, 101)


def test_what_no_instrument_tells_apart_is_one_row():
    both = rows(SIMULATION, MEASUREMENT)
    assert both[ACTIVATIONS].simulated == 35 + 25
    assert both[ACTIVATIONS].measured == 61
    assert "transients" not in both


def test_a_class_that_an_instrument_does_not_list_is_unknown_and_a_listed_one_may_be_zero():
    both = rows(SIMULATION, MEASUREMENT)
    assert both["optimizer state"].measured is None
    assert both["gradients"].measured == 0
    assert both["optimizer state"].simulated == 0


@pytest.mark.parametrize("rungs", [(None, None), (SIMULATION, None), (SIMULATION, MEASUREMENT)])
def test_item_rows_sum_to_the_peak_on_every_rung(rungs):
    verdict = judge(make_plan(), *rungs)
    items = [row for row in verdict.rows if not row.name.startswith(("peak", "step"))]
    peak = next(row for row in verdict.rows if row.name == "peak allocated")
    for rung in ("predicted", "simulated", "measured"):
        if getattr(peak, rung) is not None:
            assert sum(getattr(row, rung) or 0 for row in items) == getattr(peak, rung)


def test_phases_are_compared_by_name():
    both = rows(SIMULATION, MEASUREMENT)
    assert both["peak of step 1"].simulated == both["peak of step 1"].measured == 70
    assert both["peak of step 2+"].simulated is None


def test_a_verdict_survives_json():
    verdict = judge(make_plan(), SIMULATION, MEASUREMENT)
    assert verdict.schema == VERDICT_SCHEMA
    assert verdict.measured_by == "a test's instrument"
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=type(verdict)) == verdict
