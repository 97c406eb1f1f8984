"""The parts of the page about the run: strategies considered, loss, step time, and provenance."""

from brimful.cost.estimate import limit_bytes
from brimful.report.host import host_words
from brimful.report.run_folder import RunFolder
from brimful.report.words import (
    ABSENT,
    UNKNOWN,
    cluster_inputs,
    considered_fit,
    format_band,
    format_value,
    job_inputs,
    process_words,
    strategy_inputs,
    unestimated_assumptions,
)
from brimful.search.record import Considered, Rung
from brimful.show import markup
from brimful.show.markup import Html
from brimful.text.escaping import shell_words
from brimful.units import format_bytes
from brimful.values.run_files import Event, TakeoverRow
from brimful.values.run_words import describe_event


def search_section(folder: RunFolder) -> Html | None:
    """List the strategies considered: the chosen one, those that fit too, and the rejected."""
    record = folder.search
    if record is None or not record.rows:
        return None
    chosen = folder.plan.strategy
    groups = {
        "Chosen": [row for row in record.rows if row.strategy == chosen],
        "Runners-up": [row for row in record.rows if row.fits and row.strategy != chosen],
        "Rejected": [row for row in record.rows if not row.fits and row.strategy != chosen],
    }
    usable_bytes = limit_bytes(folder.plan)
    bodies = [
        markup.join([_group_heading(name), *(_considered(row, usable_bytes) for row in rows)])
        for name, rows in groups.items()
        if rows
    ]
    caption = (
        f"{record.num_considered} strategies considered, {record.num_fitting} fit into "
        f"{format_bytes(usable_bytes)}. {_SAID[record.rung]}"
    )
    return markup.table(
        caption,
        ("Micro-batch", "Checkpointing", "Loss chunks", "Attention", "Peak", "Step", "", "Note"),
        bodies,
        right=_NUMBERS,
    )


_NUMBERS = frozenset({2, 4, 5})
_SAID: dict[Rung, str] = {
    "predicted": "Peaks and step times are predicted.",
    "simulated": "Peaks are simulated, step times predicted from the work that was counted.",
}


def _group_heading(name: str) -> Html:
    return Html(f'<tr class="group"><th scope="rowgroup" colspan="8">{markup.text(name)}</th></tr>')


def _considered(row: Considered, usable_bytes: int) -> Html:
    strategy = row.strategy
    cells = (
        str(strategy.micro_batch),
        strategy.activation_checkpointing,
        str(strategy.loss_chunks),
        strategy.attention,
        format_bytes(row.peak_bytes),
        format_value(row.step_s, unit="s"),
        considered_fit(row, usable_bytes=usable_bytes),
        row.note,
    )
    return markup.row([markup.text(cell) for cell in cells], right=_NUMBERS)


def events_section(folder: RunFolder) -> Html | None:
    """Say what happened besides steps, and how the run went on; nothing where nothing did."""
    if not folder.events:
        return None
    told = [markup.paragraph(markup.text(f"{_event_words(row)}.")) for row in folder.events]
    if folder.takeovers:
        close = "Everything else on this page is of the last of these strategies."
        told.append(markup.paragraph(markup.text(close), style="note"))
    return markup.join(told)


def _event_words(row: Event) -> str:
    words = describe_event(row)
    return f"{words} ({row.reason})" if isinstance(row, TakeoverRow) else words


def bands_section(folder: RunFolder) -> Html:
    """Compare the totals that arithmetic can only bound with what was measured."""
    estimate, measurement = folder.plan.estimate, folder.measurement
    reserved = estimate.predicted_peak_reserved_bytes if estimate else None
    has_allocator = folder.plan.cluster.device.kernels == "cuda"
    replayed = folder.simulation.reserved if folder.simulation else None
    simulated_reserved = replayed.simulated_peak_reserved_bytes if replayed else None
    measured_reserved = measurement.measured_peak_reserved_bytes if measurement else None
    measured_process = measurement.measured_process_bytes if measurement else None
    rows = [
        (
            "peak reserved",
            format_band(reserved, unit="bytes") if has_allocator else "none: no caching allocator",
            format_value(simulated_reserved, unit="bytes"),
            format_value(measured_reserved, unit="bytes"),
        ),
        (
            "process",
            process_words(estimate) if estimate else format_band(None, unit="bytes"),
            ABSENT,
            format_value(measured_process, unit="bytes"),
        ),
        *(
            (name, words, ABSENT, ABSENT)
            for name, words in host_words(estimate.host if estimate else None)
        ),
    ]
    right = frozenset({1, 2, 3})
    body = markup.join(markup.row([markup.text(c) for c in cells], right=right) for cells in rows)
    return markup.table(
        "Totals outside the live bytes: a predicted band, the replayed allocator, the real one.",
        ("Total", "Predicted", "Simulated", "Measured"),
        [body],
        right=right,
    )


def inputs_section(folder: RunFolder) -> Html:
    """List every input with its value, defaults too."""
    plan = folder.plan
    job = _input_list("Job", job_inputs(plan.job))
    strategy = _input_list("Strategy", strategy_inputs(plan.strategy))
    machine = _input_list("Machine", cluster_inputs(plan.cluster, plan.job.precision))
    return Html(f'<div class="columns"><div>{job}</div><div>{strategy}{machine}</div></div>')


def _input_list(title: str, values: list[tuple[str, str]]) -> Html:
    return Html(f"<h3>{markup.text(title)}</h3>{markup.pairs(values, spell=markup.code)}")


def provenance_section(folder: RunFolder) -> Html:
    """Say what the numbers rest on: assumptions, versions, and the commands."""
    parts = [
        Html("<h3>Assumptions</h3>"),
        markup.bullets(_assumptions(folder) or ("none",)),
        Html("<h3>Versions</h3>"),
        _versions(folder),
        Html(f"<h3>{'Commands' if folder.commands else 'Commands that repeat it'}</h3>"),
        _commands(folder),
    ]
    return markup.join(parts)


def _assumptions(folder: RunFolder) -> tuple[str, ...]:
    estimate = folder.plan.estimate
    return estimate.assumptions if estimate else unestimated_assumptions(folder.plan)


def _versions(folder: RunFolder) -> Html:
    rungs = {
        "simulated": folder.simulation.versions if folder.simulation else None,
        "measured": folder.measurement.versions if folder.measurement else None,
    }
    rows = [
        (rung, ", ".join(versions) or UNKNOWN)
        for rung, versions in rungs.items()
        if versions is not None
    ]
    return markup.pairs(rows or [("versions", "not simulated or measured yet")])


def _commands(folder: RunFolder) -> Html:
    lines = folder.commands or _repeating_commands(folder)
    return Html(f'<pre tabindex="0">{markup.text(chr(10).join(lines))}</pre>')


def _repeating_commands(folder: RunFolder) -> tuple[str, ...]:
    # The plan holds every value in full, so these repeat the run whatever flags made it.
    plan, run_dir = str(folder.run_dir / "plan.yaml"), str(folder.run_dir)
    return (
        shell_words(["brimful", "simulate", plan]),
        f"{shell_words(['brimful', 'train', plan])} --data PATH --out DIR",
        shell_words(["brimful", "report", run_dir]),
    )
