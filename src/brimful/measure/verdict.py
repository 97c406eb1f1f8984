"""Predicted, simulated and measured, side by side, item by item."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from brimful.cost.estimate import limit_bytes
from brimful.values.plan import Estimate, MemoryItem, Plan
from brimful.values.results import (
    AUTOCAST_CACHE,
    ITEM_NAMES,
    LOGITS,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    Measurement,
    Simulation,
)
from brimful.values.run_files import TakeoverRow
from brimful.values.run_words import describe_takeover

VERDICT_SCHEMA = "brimful.verdict/1"
HOST_PREFIX = "on the host: "
"""How rows begin that are of host memory."""
ACTIVATIONS = "activations and transients"
_ACTIVATION_ITEMS = frozenset({AUTOCAST_CACHE, SAVED_ACTIVATIONS, LOGITS, TRANSIENTS})


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One quantity on every rung that was climbed; None where it was not."""

    name: str
    unit: Literal["bytes", "s"]
    predicted: float | None
    simulated: float | None
    measured: float | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The three rungs compared.

    Attributes:
        schema: ``VERDICT_SCHEMA``.
        rows: One row per item at the peak, per item on the host where something is offloaded, per
            phase, then peak allocated and step time.
        usable_bytes: The limit that the plan was made for.
        measured_by: The instrument of the third rung; empty where it was not climbed.
        takeovers: A sentence for each time that memory ran out and another strategy went on: what
            is compared is the last one.
    """

    schema: str
    rows: tuple[VerdictRow, ...]
    usable_bytes: int
    measured_by: str
    takeovers: tuple[str, ...] = ()


class Climbed(NamedTuple):
    """The rungs that were climbed, each None where it was not.

    Attributes:
        estimate: The first.
        simulation: The second.
        measurement: The third.
        usable_bytes: The limit that they are held against.
    """

    estimate: Estimate | None
    simulation: Simulation | None
    measurement: Measurement | None
    usable_bytes: int


def judge(
    plan: Plan,
    simulation: Simulation | None,
    measurement: Measurement | None,
    *,
    takeovers: Sequence[TakeoverRow] = (),
) -> Verdict:
    """Lay the rungs that were climbed beside the plan.

    Args:
        plan: The first rung, where its job has a formula.
        simulation: The second, or None.
        measurement: The third, or None.
        takeovers: Of the run: ``plan`` is what it ended with.

    Returns:
        As ``judge_rungs``.
    """
    return judge_rungs(
        Climbed(plan.estimate, simulation, measurement, limit_bytes(plan)), takeovers=takeovers
    )


def judge_rungs(rungs: Climbed, *, takeovers: Sequence[TakeoverRow] = ()) -> Verdict:
    """Lay rungs side by side.

    Returns rows whose names agree on every rung. The instruments of the third rung know parameters,
    gradients and optimizer state by address and the rest only as bytes, so saved activations,
    logits, weight casts and transients are one row here.
    """
    estimate, simulation, measurement, usable_bytes = rungs
    rows = [
        *_item_rows(estimate, simulation, measurement),
        *_host_rows(simulation, measurement),
        *_phase_rows(estimate, simulation, measurement),
        _row(
            "peak allocated",
            "bytes",
            estimate.predicted_peak_allocated_bytes if estimate else None,
            simulation.simulated_peak_allocated_bytes if simulation else None,
            measurement.measured_peak_allocated_bytes if measurement else None,
        ),
        _row(
            "step time",
            "s",
            estimate.predicted_step_s if estimate else None,
            None,
            measurement.measured_step_s if measurement else None,
        ),
    ]
    return Verdict(
        schema=VERDICT_SCHEMA,
        rows=tuple(rows),
        usable_bytes=usable_bytes,
        measured_by=measurement.method if measurement else "",
        takeovers=tuple(map(describe_takeover, takeovers)),
    )


def _item_rows(
    estimate: Estimate | None, simulation: Simulation | None, measurement: Measurement | None
) -> list[VerdictRow]:
    return [
        _row(
            name,
            "bytes",
            _total(estimate.items, name) if estimate else None,
            _simulated(simulation, name),
            _measured(measurement, name),
        )
        for name in _row_names(
            *(rung.items for rung in (estimate, simulation, measurement) if rung is not None)
        )
    ]


def _host_rows(simulation: Simulation | None, measurement: Measurement | None) -> list[VerdictRow]:
    """Compare what is offloaded, item by item, and its peak; nothing where nothing is."""
    rungs = [rung.host for rung in (simulation, measurement) if rung is not None]
    names = dict.fromkeys(item.name for items in rungs for item in items)
    if not names:
        return []
    simulated = simulation.simulated_peak_host_bytes if simulation else None
    measured = measurement.measured_peak_host_bytes if measurement else None
    return [
        *(
            _row(
                f"{HOST_PREFIX}{name}",
                "bytes",
                None,
                _named(simulation.host, name) if simulation else None,
                _named(measurement.host, name) if measurement and measurement.host else None,
            )
            for name in names
        ),
        _row(f"{HOST_PREFIX}peak", "bytes", None, simulated, measured),
    ]


def _named(items: tuple[MemoryItem, ...], name: str) -> int:
    return sum(item.num_bytes for item in items if item.name == name)


def _phase_rows(
    estimate: Estimate | None, simulation: Simulation | None, measurement: Measurement | None
) -> list[VerdictRow]:
    """Compare the phases of the lowest rung that was climbed; higher ones know more of them."""
    lowest = estimate or simulation or measurement
    return [
        _row(
            f"peak of {phase.phase}",
            "bytes",
            _phase_peak(estimate, phase.phase),
            _phase_peak(simulation, phase.phase),
            _phase_peak(measurement, phase.phase),
        )
        for phase in (lowest.phases if lowest else ())
    ]


def _row(
    name: str,
    unit: Literal["bytes", "s"],
    predicted: float | None,
    simulated: float | None,
    measured: float | None,
) -> VerdictRow:
    return VerdictRow(
        name=name, unit=unit, predicted=predicted, simulated=simulated, measured=measured
    )


def _coarse(name: str) -> str:
    return ACTIVATIONS if name in _ACTIVATION_ITEMS else name


def _row_names(*items: tuple[MemoryItem, ...]) -> list[str]:
    present = {_coarse(item.name) for rung in items for item in rung}
    ordered = dict.fromkeys(_coarse(name) for name in ITEM_NAMES)
    return [name for name in ordered if name in present]


def _total(items: tuple[MemoryItem, ...], name: str) -> int:
    return sum(item.num_bytes for item in items if _coarse(item.name) == name)


def _simulated(rung: Simulation | None, name: str) -> int | None:
    return _total(rung.items, name) if rung else None


def _measured(rung: Measurement | None, name: str) -> int | None:
    """An instrument lists every class that it can tell; one it does not list is unknown."""
    if rung is None or all(_coarse(item.name) != name for item in rung.items):
        return None
    return _total(rung.items, name)


def _phase_peak(rung: Estimate | Simulation | Measurement | None, phase: str) -> int | None:
    if rung is None:
        return None
    return next((p.num_bytes for p in rung.phases if p.phase == phase), None)
