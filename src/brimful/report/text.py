"""Values as tables for the terminal: at most 100 columns wide, and plain when piped."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from brimful.cost.estimate import limit_bytes
from brimful.cost.money import Cost
from brimful.hardware.cluster import Cluster, Device
from brimful.measure.verdict import Verdict
from brimful.report.host import host_words
from brimful.report.tables import (
    add_row,
    bullets,
    items_table,
    pairs_table,
    phases_table,
    plain_table,
)
from brimful.report.words import (
    UNKNOWN,
    cluster_inputs,
    considered_fit,
    cost_words,
    format_band,
    format_value,
    job_inputs,
    process_words,
    speed_words,
    spread_words,
    step_time_words,
    strategy_inputs,
    unestimated_assumptions,
    untried_sentence,
    verdict_cells,
)
from brimful.search.record import Considered, SearchRecord
from brimful.text.terminal import console
from brimful.units import format_bytes, format_rate, format_seconds
from brimful.values.job import Job
from brimful.values.plan import Estimate, Plan
from brimful.values.results import Simulation
from brimful.values.strategy import Strategy, world_size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

WIDTH = 100
"""Columns that every table fits into."""
SIMULATED_SEARCH = (
    "no formula covers this job: peaks are simulated, step times are predicted from the work that "
    "the simulation counted, and what was not simulated is not known to be slower"
)
NUM_OWNERS = 10
"""Allocations that a terminal shows; the report shows more."""


def plain_lines(renderable: "RenderableType", *, width: int = WIDTH) -> list[str]:
    """Print a renderable as lines without colour, as a pipe or a log file gets it.

    Returns the lines, without trailing spaces.
    """
    import io

    paper = console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with paper.capture() as capture:
        paper.print(renderable)
    return [line.rstrip() for line in capture.get().splitlines()]


def estimate_tables(
    job: Job,
    cluster: Cluster,
    strategy: Strategy,
    estimate: Estimate,
    *,
    cost: Cost | None = None,
) -> "Group":
    """Lay out what arithmetic says, and everything that it was asked.

    ``estimate``: the first rung. ``cost``: of the whole run; None: not asked for. Returns inputs
    with every default, items at the peak, phases, totals, assumptions.
    """
    from rich.console import Group
    from rich.text import Text

    blank = Text("")
    return Group(
        inputs_table(job, cluster, strategy),
        blank,
        items_table(estimate.items, "Alive at the highest peak (predicted)"),
        blank,
        phases_table(estimate.phases, "predicted", where="while"),
        blank,
        _totals(estimate),
        blank,
        *(() if cost is None else (cost_table(cost), blank)),
        bullets("Assumptions", estimate.assumptions),
    )


def plan_tables(plan: Plan, record: SearchRecord) -> "Group":
    """Lay out what a search found and what is known of its winner."""
    from rich.console import Group
    from rich.text import Text

    usable_bytes = limit_bytes(plan)
    found = search_table(record, winner=plan.strategy, usable_bytes=usable_bytes)
    blank = Text("")
    if plan.estimate is not None:
        return Group(
            found, blank, estimate_tables(plan.job, plan.cluster, plan.strategy, plan.estimate)
        )
    left = () if record.untried is None else (Text(untried_sentence(record)), blank)
    return Group(
        *left,
        found,
        blank,
        inputs_table(plan.job, plan.cluster, plan.strategy),
        blank,
        bullets("Assumptions", (SIMULATED_SEARCH, *unestimated_assumptions(plan))),
    )


def verdict_table(verdict: Verdict) -> "Table":
    """Lay the three rungs side by side with their signed errors.

    Returns one row per quantity; "-" stands where a rung was not climbed.
    """
    instrument = f"measured by {verdict.measured_by}" if verdict.measured_by else "not measured yet"
    if all(row.simulated is None for row in verdict.rows):
        instrument += "; not simulated: brimful simulate on its plan does"
    table = plain_table(f"Three rungs, item by item ({instrument})")
    table.add_column("item", max_width=27)
    for heading in ("predicted", "simulated", "measured", "sim vs pred", "meas vs sim"):
        table.add_column(heading, justify="right")
    for row in verdict.rows:
        style = "bold" if row.name == "peak allocated" else ""
        add_row(table, verdict_cells(row), style=style)
    return table


def search_table(record: SearchRecord, *, winner: Strategy | None, usable_bytes: int) -> "Table":
    """Lay out the strategies that a search considered.

    ``record``: the rows worth showing, and how many there were. ``winner``: the strategy that was
    chosen, marked with ``>``; None where nothing fits. Returns one row per strategy, in the order
    of the record.
    """
    looked_at = "considered" if record.rung == "predicted" else "simulated"
    counts = f"{record.num_considered} {looked_at}, {record.num_fitting} fit"
    title = f"Strategies: {counts}"
    return strategies_table(title, record.rows, winner=winner, usable_bytes=usable_bytes)


def strategies_table(
    title: str, rows: Sequence[Considered], *, winner: Strategy | None = None, usable_bytes: int
) -> "Table":
    """Lay out strategies; see ``search_table``."""
    table = plain_table(title)
    table.add_column("")
    is_spread = any(world_size(row.strategy) > 1 for row in rows)
    headings = ("micro-\nbatch", "check-\npointing", "loss\nchunks")
    for heading in ("zero x\nshards", *headings) if is_spread else headings:
        table.add_column(heading, justify="right")
    for heading in ("peak", "step"):
        table.add_column(heading, justify="right")
    table.add_column("fits, and against the best", ratio=1)
    for row in rows:
        won = winner is not None and row.strategy == winner
        cells = (
            ">" if won else "",
            *([spread_words(row.strategy)] if is_spread else []),
            str(row.strategy.micro_batch),
            row.strategy.activation_checkpointing,
            str(row.strategy.loss_chunks),
            format_bytes(row.peak_bytes),
            format_value(row.step_s, unit="s"),
            _fit_and_note(row, usable_bytes=usable_bytes, won=won),
        )
        add_row(table, cells, style="bold" if won else "")
    return table


def _fit_and_note(row: Considered, *, usable_bytes: int, won: bool) -> str:
    if won and row.fits:
        return row.note
    fit = considered_fit(row, usable_bytes=usable_bytes)
    return f"{fit}, {row.note}" if row.note else fit


def owners_table(simulation: Simulation) -> "Table":
    """Lay out the largest allocations alive at the simulated peak."""
    table = plain_table("Largest allocations at the peak (simulated)")
    for name in ("bytes", "item", "module", "operation", "shape", "type"):
        table.add_column(name, justify="right" if name == "bytes" else "left")
    for owner in simulation.owners[:NUM_OWNERS]:
        operation = owner.op.removeprefix("aten.").removesuffix(".default")
        cells = (format_bytes(owner.num_bytes), owner.item, owner.module or "-", operation)
        add_row(table, (*cells, owner.shape, owner.dtype))
    return table


def listing(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str]
) -> "Table":
    """Lay out plain rows under a header.

    ``header``: one name per column. ``rows``: one text per column. ``numbers``: the columns that
    hold numbers, set to the right.
    """
    table = plain_table("")
    for name in header:
        table.add_column(name, justify="right" if name in numbers else "left")
    for row in rows:
        add_row(table, row)
    return table


def device_table(device: Device) -> "Table":
    """Lay out what a device is and how fast.

    ``device``: E.g. this machine after a calibration.
    """
    rates = device.matrix_flops_per_s
    pairs = (
        ("device", device.description),
        ("usable memory", format_bytes(device.usable_bytes)),
        ("fp32 matrices", format_rate(rates.fp32, "FLOP") if rates.fp32 else UNKNOWN),
        ("bf16 matrices", format_rate(rates.bf16, "FLOP") if rates.bf16 else UNKNOWN),
        ("memory traffic", format_rate(device.memory_bytes_per_s, "B")),
        ("launch time", format_seconds(device.op_overhead_s)),
        ("source", device.source),
    )
    return pairs_table(pairs, title=f"Machine {device.name}")


def cost_table(cost: Cost) -> "Group":
    """Lay out what a finished run costs, and on what that rests."""
    from rich.console import Group

    table = pairs_table(cost_words(cost), title="The whole run (predicted)")
    return Group(table, bullets("It rests on", cost.assumptions))


def inputs_table(job: Job, cluster: Cluster, strategy: Strategy) -> "Table":
    """Lay out everything that was asked, defaults included."""
    blocks = (
        ("job", job_inputs(job)),
        ("strategy", strategy_inputs(strategy)),
        ("machine", cluster_inputs(cluster, job.precision)),
    )
    flows = [(name, "  ".join(f"{k}={v}" for k, v in pairs)) for name, pairs in blocks]
    return pairs_table(flows, title="Inputs, with every default")


def _reserved_words(estimate: Estimate) -> str:
    """Say what the allocator holds: a figure where it was replayed, else a band."""
    replayed, band = estimate.predicted_reserved, estimate.predicted_peak_reserved_bytes
    if replayed is None:
        return "none" if band is None else format_band(band, unit="bytes")
    most = replayed.capacity_bytes if replayed.limit_bytes is None else replayed.limit_bytes
    held, of = format_bytes(replayed.predicted_peak_reserved_bytes), f"of {format_bytes(most)}"
    words = f"{held} {of}"
    if replayed.short_bytes:
        asked = f"{format_bytes(replayed.predicted_unhindered_bytes)} {of}, had it all it asks for"
        short = format_bytes(replayed.short_bytes)
        return f"{asked}; it ends at {held}, where a request lacks {short} (replayed)"
    if replayed.num_retries:
        return f"{words} after {replayed.num_retries} flushes of its cache (replayed)"
    if not replayed.is_firm:
        return f"{words}, of which {format_bytes(replayed.firm_bytes)} are sure (replayed)"
    return f"{words} (replayed)"


def _totals(estimate: Estimate) -> "Table":
    pairs = [
        ("peak allocated", format_bytes(estimate.predicted_peak_allocated_bytes)),
        ("peak reserved", _reserved_words(estimate)),
        ("process", process_words(estimate)),
        ("step time", step_time_words(estimate)),
        (
            "step work",
            f"{estimate.step_flops / 1e12:.4g} TFLOP" if estimate.step_flops else UNKNOWN,
        ),
        *speed_words(estimate),
        *host_words(estimate.host),
    ]
    return pairs_table(pairs, title="Totals (predicted)")
