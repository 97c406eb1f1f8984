"""What ``--task inference`` says, as tables for the terminal."""

from typing import TYPE_CHECKING

from brimful.cost.inference import INFERENCE_ITEMS, InferenceEstimate, InferenceJob
from brimful.cost.inference_limits import FormatFit, Limits
from brimful.hardware.cluster import Cluster
from brimful.report.tables import add_row, bullets, items_table, pairs_table, plain_table
from brimful.report.words import ABSENT, UNKNOWN, error_words, format_band
from brimful.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from brimful.measure.inference import InferenceMeasurement
    from brimful.simulate.inference import InferenceSimulation


def inference_tables(
    job: InferenceJob,
    cluster: Cluster,
    estimate: InferenceEstimate,
    *,
    formats: tuple[FormatFit, ...],
    limits: Limits | None,
) -> "Group":
    """Lay out the first rung of inference.

    ``job``: what is loaded, and how much text it holds. ``limits``: the most that fits; None:
    unknown.
    """
    from rich.console import Group
    from rich.text import Text

    blank = Text("")
    return Group(
        _inputs(job, cluster),
        blank,
        _items(estimate),
        blank,
        _totals(estimate, limits),
        blank,
        _formats(formats, chosen=job.weights_format),
        blank,
        bullets("Assumptions", estimate.assumptions),
    )


def simulation_tables(
    job: InferenceJob,
    cluster: Cluster,
    estimate: InferenceEstimate,
    simulation: "InferenceSimulation",
) -> "Group":
    """Lay the first two rungs side by side.

    ``job``: what is loaded, and how much text it holds.
    """
    from rich.console import Group
    from rich.text import Text

    blank = Text("")
    counted = (
        f"simulated {simulation.num_events} allocations and frees in {simulation.simulate_s:.2f} s "
        f"({simulation.kernels} kernels)"
    )
    both = _side_by_side(estimate, simulation)
    return Group(_inputs(job, cluster), blank, both, blank, Text(counted))


def measured_tables(  # noqa: PLR0913 - a question, and an answer of each rung
    job: InferenceJob,
    cluster: Cluster,
    estimate: InferenceEstimate,
    simulation: "InferenceSimulation",
    measurement: "InferenceMeasurement",
    *,
    weights: str,
) -> "Group":
    """Lay the three rungs side by side.

    ``job``: what was loaded, and how much text it held.
    """
    from rich.console import Group
    from rich.text import Text

    written = measurement.measured_token_s
    times = [
        ("weights", weights),
        ("loading", format_seconds(measurement.measured_load_s)),
        ("reading the prompts", format_seconds(measurement.measured_prefill_s)),
        ("writing a token", ABSENT if written is None else format_seconds(written)),
    ]
    blank = Text("")
    took = pairs_table(times, title="The run (measured; loading under the profiler)")
    three = _three(estimate, simulation, measurement)
    return Group(_inputs(job, cluster), blank, took, blank, three)


def _three(
    estimate: InferenceEstimate,
    simulation: "InferenceSimulation",
    measurement: "InferenceMeasurement",
) -> "Table":
    table = plain_table(f"Three rungs, item by item (measured by {measurement.method})")
    table.add_column("item", max_width=27)
    for heading in ("predicted", "simulated", "measured", "sim vs pred", "meas vs sim"):
        table.add_column(heading, justify="right")
    has_peak = estimate.predicted_peak_allocated_bytes is not None
    rungs = (estimate.items if has_peak else (), simulation.items, measurement.items)
    columns = [{item.name: item.num_bytes for item in items} for items in rungs]
    for name in INFERENCE_ITEMS:
        if any(name in column for column in columns):
            has_first = has_peak and name in columns[0]
            first = columns[0][name] if has_first else None
            _add_three(table, name, (first, columns[1].get(name, 0), columns[2].get(name, 0)))
    parts = (estimate.phases, simulation.phases, measurement.phases)
    peaks = [{phase.phase: phase.num_bytes for phase in phases} for phases in parts]
    for name, simulated in peaks[1].items():
        sizes = (peaks[0].get(name), simulated, peaks[2].get(name, 0))
        _add_three(table, f"peak of {name}", sizes)
    whole = (
        estimate.predicted_peak_allocated_bytes,
        simulation.simulated_peak_allocated_bytes,
        measurement.measured_peak_allocated_bytes,
    )
    _add_three(table, "peak allocated", whole, style="bold")
    return table


def _add_three(
    table: "Table", name: str, sizes: tuple[int | None, int, int], *, style: str = ""
) -> None:
    predicted, simulated, measured = sizes
    first = ABSENT if predicted is None else format_bytes(predicted)
    errors = (error_words(simulated, predicted), error_words(measured, simulated))
    add_row(
        table, (name, first, format_bytes(simulated), format_bytes(measured), *errors), style=style
    )


def _inputs(job: InferenceJob, cluster: Cluster) -> "Table":
    sizes = f"num_sequences={job.num_sequences}  seq_len={job.seq_len}  prompt_len={job.prompt_len}"
    pairs = (
        ("model", f"{job.model.name} ({job.model.num_layers} blocks)"),
        ("weights", f"weights_format={job.weights_format}  precision={job.compute}"),
        ("text", sizes),
        ("machine", f"{cluster.name}: {cluster.device.description}"),
    )
    return pairs_table(pairs, title="Inputs, with every default")


def _items(estimate: InferenceEstimate) -> "Table":
    whole = estimate.predicted_peak_allocated_bytes is not None
    title = "Alive at the highest peak (predicted)" if whole else "Weights and cache (predicted)"
    return items_table(estimate.items, title)


def _totals(estimate: InferenceEstimate, limits: Limits | None) -> "Table":
    peak = estimate.predicted_peak_allocated_bytes
    pairs = [
        ("weights and cache", format_bytes(estimate.predicted_floor_bytes)),
        ("peak allocated", UNKNOWN if peak is None else format_bytes(peak)),
        ("process", format_band(estimate.predicted_process_bytes, unit="bytes")),
        ("usable", format_bytes(estimate.usable_bytes)),
    ]
    if limits is not None:
        pairs.append(("longest that fits", f"{limits.seq_len} tokens of each sequence"))
        pairs.append(("most that fits", f"{limits.num_sequences} sequences of this length"))
    return pairs_table(pairs, title="Totals (predicted)")


def _formats(formats: tuple[FormatFit, ...], *, chosen: str) -> "Table":
    table = plain_table("The same text by format (predicted)")
    table.add_column("")
    table.add_column("format")
    table.add_column("bytes", justify="right")
    table.add_column("fits", ratio=1)
    words = {True: "fits", False: "does not fit", None: "not known: weights and cache alone fit"}
    for row in formats:
        marked = row.weights_format == chosen
        cells = (">" if marked else "", row.weights_format, format_bytes(row.num_bytes))
        add_row(table, (*cells, words[row.fits]), style="bold" if marked else "")
    return table


def _side_by_side(estimate: InferenceEstimate, simulation: "InferenceSimulation") -> "Table":
    table = plain_table("Two rungs, item by item")
    table.add_column("item", max_width=27)
    for heading in ("predicted", "simulated", "sim vs pred"):
        table.add_column(heading, justify="right")
    has_peak = estimate.predicted_peak_allocated_bytes is not None
    mine = {item.name: item.num_bytes for item in estimate.items} if has_peak else {}
    theirs = {item.name: item.num_bytes for item in simulation.items}
    for name in INFERENCE_ITEMS:
        if name in mine or name in theirs:
            _add_pair(table, name, mine.get(name), theirs.get(name, 0))
    for phase in simulation.phases:
        peaks = {other.phase: other.num_bytes for other in estimate.phases}
        _add_pair(table, f"peak of {phase.phase}", peaks.get(phase.phase), phase.num_bytes)
    peak = simulation.simulated_peak_allocated_bytes
    predicted = estimate.predicted_peak_allocated_bytes
    _add_pair(table, "peak allocated", predicted, peak, style="bold")
    return table


def _add_pair(
    table: "Table", name: str, predicted: int | None, simulated: int, *, style: str = ""
) -> None:
    first = ABSENT if predicted is None else format_bytes(predicted)
    add_row(
        table,
        (name, first, format_bytes(simulated), error_words(simulated, predicted)),
        style=style,
    )
