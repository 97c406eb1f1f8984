"""The parts of the page about the run: strategies considered, loss, step time, and provenance."""

import shlex
from collections.abc import Sequence
from statistics import median

from brimful.cost.estimate import limit_bytes
from brimful.job import PREFERENCE, Task
from brimful.nouns import is_per_sample, judged_by
from brimful.plan import Estimate
from brimful.report import markup
from brimful.report.charts import loss_chart, loss_scale_chart, step_time_chart
from brimful.report.figures import chart_figure
from brimful.report.host import host_words
from brimful.report.markup import Html
from brimful.report.run_folder import RunFolder
from brimful.report.words import (
    ABSENT,
    UNKNOWN,
    cluster_inputs,
    considered_fit,
    error_words,
    format_band,
    format_value,
    job_inputs,
    step_time_words,
    strategy_inputs,
    unestimated_assumptions,
)
from brimful.run_files import DataSummary, EvalRow, TrainRow
from brimful.search.record import Considered, Rung
from brimful.takeover_words import describe_takeover
from brimful.units import format_bytes, format_count, format_seconds


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


def takeovers_section(folder: RunFolder) -> Html | None:
    """Say each time that memory ran out, and what went on; nothing where it never did."""
    if not folder.takeovers:
        return None
    told = (
        markup.paragraph(markup.text(f"{describe_takeover(row)} ({row.reason})."))
        for row in folder.takeovers
    )
    close = "Everything else on this page is of the last of these strategies."
    return markup.join([*told, markup.paragraph(markup.text(close), style="note")])


def loss_section(folder: RunFolder) -> Html | None:
    """Draw the losses, with the entropy of the unigrams as the mark to pass, and the loss scale."""
    task = folder.plan.job.task
    chart = loss_chart(folder.train_rows, folder.eval_rows, folder.data, task)
    if chart is None:
        return None
    caption = []
    if folder.eval_rows:
        caption.append(_heldout_words(folder.eval_rows))
    if folder.data is not None:
        caption.append(f"{_bar_words(folder.data, task)} {_data_words(folder.data, task)}")
    blown = sum(row.loss is None for row in folder.train_rows)
    if blown:
        caption.append(f"The loss was not finite in {blown} steps, which are left out.")
    words = f"Line chart of the loss over {len(folder.train_rows)} steps. {' '.join(caption)}"
    losses = chart_figure("loss", chart, words, " ".join(caption))
    return markup.join([losses, _loss_scale_figure(folder.train_rows)])


def _bar_words(data: DataSummary, task: Task) -> str:
    bar = f"{data.unigram_entropy:.3f}"
    if task == PREFERENCE:
        return f"The reference model scores {bar}: below it the model has learned to prefer."
    return (
        f"A model that knows only how often each {'label' if is_per_sample(task) else 'token'} "
        f"occurs scores {bar}, the {judged_by(task)}: below it the model has learned more."
    )


def _heldout_words(rows: Sequence[EvalRow]) -> str:
    """Say the last result on held-out data, and the best where it was another."""
    last, best = rows[-1], min(rows, key=lambda row: row.heldout_loss)
    text = f"Held-out loss {last.heldout_loss:.3f} at step {last.step}"
    if last.perplexity is not None:
        text += f", perplexity {last.perplexity:.4g}"
    if last.accuracy is not None:
        text += f", accuracy {100 * last.accuracy:.2f} %"
    if best.step != last.step:
        text += f"; the lowest was {best.heldout_loss:.3f} at step {best.step}"
    return f"{text}."


def _loss_scale_figure(rows: Sequence[TrainRow]) -> Html:
    chart = loss_scale_chart(rows)
    if chart is None:
        return Html("")
    last = next(row.loss_scale for row in reversed(rows) if row.loss_scale)
    caption = (
        f"Loss scale {last:g} at the end; {sum(row.skipped for row in rows)} of {len(rows)} steps "
        f"were skipped because the scaled gradients overflowed."
    )
    words = f"Line chart of the loss scale over {len(rows)} steps. {caption}"
    return chart_figure("loss-scale", chart, words, caption)


def _data_words(data: DataSummary, task: Task) -> str:
    if is_per_sample(task):
        return f"Data: {data.source}."
    known = data.num_train_tokens
    train = "read as they are needed" if known is None else f"{format_count(known)} to train on"
    left_out = f" {format_count(data.num_skipped)} records skipped." if data.num_skipped else ""
    return (
        f"Data: {data.source}; tokens: {train}, {format_count(data.num_heldout_tokens)} held out."
        f"{left_out}"
    )


def step_time_section(folder: RunFolder) -> Html | None:
    """Compare the predicted step time with the measured steps."""
    estimate = folder.plan.estimate
    measured_s = folder.measurement.measured_step_s if folder.measurement else None
    rows = [
        ("predicted", step_time_words(estimate)),
        ("measured", format_value(measured_s, unit="s")),
        (
            "measured vs predicted",
            error_words(measured_s, estimate.predicted_step_s if estimate else None),
        ),
    ]
    if folder.train_rows:
        speed = median(row.tokens_per_s for row in folder.train_rows)
        rows.append(("median speed", f"{format_count(speed)} tokens/s"))
    facts = markup.pairs(rows)
    chart = step_time_chart(folder.train_rows, predicted=_predicted_rules(estimate))
    if chart is None:
        return facts
    slowest = max(folder.train_rows, key=lambda row: row.step_s)
    caption = "Seconds of every optimizer step against the prediction."
    if chart.y_max is not None and slowest.step_s > chart.y_max:
        caption += (
            f" Slower steps run off the top; the slowest, step {slowest.step}, "
            f"took {format_seconds(slowest.step_s)}."
        )
    words = f"Line chart of step time over {len(folder.train_rows)} steps."
    return markup.join([facts, chart_figure("step-time", chart, words, caption)])


def _predicted_rules(estimate: Estimate | None) -> list[tuple[str, float]]:
    rules: list[tuple[str, float]] = []
    if estimate is None:
        return rules
    if estimate.predicted_step_s is not None:
        rules.append(("predicted", estimate.predicted_step_s))
    if estimate.predicted_step_band_s is not None:
        rules.append(("band low", estimate.predicted_step_band_s.low))
        rules.append(("band high", estimate.predicted_step_band_s.high))
    return rules


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
            format_band(estimate.predicted_process_bytes if estimate else None, unit="bytes"),
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
        shlex.join(["brimful", "simulate", plan]),
        f"{shlex.join(['brimful', 'train', plan])} --data PATH --out DIR",
        shlex.join(["brimful", "report", run_dir]),
    )
