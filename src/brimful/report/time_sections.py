"""The parts of the page about time: where a step's seconds go, and what stages do when."""

from statistics import median

from brimful.report.charts import step_time_chart
from brimful.report.figures import chart_figure
from brimful.report.pipeline_chart import UNIT_S, chart_svg, schedule_of
from brimful.report.run_folder import RunFolder
from brimful.report.words import error_words, format_value, share_words, step_time_words
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_count, format_seconds
from brimful.values.plan import Estimate, Plan, StepTime
from brimful.values.strategy import num_micro_batches

_PARTS = {
    "matrix products": ("matrix", "matrix products and attention"),
    "memory": ("memory", "everything else that reads and writes"),
    "launches": ("launch", "launching kernels, beyond both"),
    "collectives": ("exposed", "what of them does not run beside the rest"),
}
"""Of a step: how the page styles a part, and what it is."""
_MOST_DRAWN = 64
"""Micro-batches of a schedule that still can be told apart on a page."""


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


def breakdown_section(estimate: Estimate | None) -> Html | None:
    """Draw where the predicted seconds of a step go; None where they are unknown."""
    parts = estimate.predicted_step_time if estimate else None
    if parts is None or not parts.total_s:
        return None
    seconds = _seconds(parts)
    shown = {name: value for name, value in seconds.items() if value}
    rows = [
        markup.row(
            [
                Html(f'<i class="swatch time-{_PARTS[name][0]}" aria-hidden="true"></i>'
                     f"{markup.text(name)}"),
                markup.text(format_seconds(value)),
                markup.text(share_words(value, parts.total_s)),
                markup.text(_PARTS[name][1]),
            ],
            right=frozenset({1, 2}),
        )
        for name, value in shown.items()
    ]  # fmt: skip
    table = markup.table(
        "Predicted seconds of one optimizer step by what they are spent on.",
        ("Part", "Time", "Share", "What it is"),
        [markup.join(rows)],
        right=frozenset({1, 2}),
    )
    return Html(
        f'<figure><div class="bars time">{_time_bar(shown, parts.total_s)}</div></figure>{table}'
    )


def _seconds(parts: StepTime) -> dict[str, float]:
    values = (parts.matrix_s, parts.memory_s, parts.launch_s, parts.exposed_s)
    return dict(zip(_PARTS, values, strict=True))


def _time_bar(shown: dict[str, float], total_s: float) -> Html:
    spans = "".join(
        f'<span class="part time-{_PARTS[name][0]}" style="width:{100 * value / total_s:.3f}%" '
        f'title="{markup.text(f"{name}: {format_seconds(value)}")}"></span>'
        for name, value in shown.items()
    )
    spoken = markup.text(", ".join(f"{n} {format_seconds(s)}" for n, s in shown.items()))
    return Html(
        f'<div class="bar-row"><span class="bar-name">predicted</span>'
        f'<div class="bar" role="img" aria-label="{spoken}">{spans}</div>'
        f'<span class="bar-total">{format_seconds(total_s)}</span></div>'
    )


def pipeline_section(plan: Plan) -> Html | None:
    """Draw what each device of a row does when; None where there is no row, or far too much."""
    job, strategy = plan.job, plan.strategy
    if strategy.pp == 1 or num_micro_batches(job, strategy) > _MOST_DRAWN:
        return None
    ran = schedule_of(job, strategy)
    title = f"{strategy.pp_schedule}, {strategy.pp} devices, equal stages"
    words = (
        f"Forward passes are drawn {UNIT_S[0]:g}, backward passes {UNIT_S[1]:g} wide; numbers are "
        f"micro-batches. Idle: {ran.bubble_share:.1%}. Drawn by replay of the order of work, not "
        f"measured."
    )
    drawn = Html(chart_svg({title: ran.done}, unit=""))
    return Html(
        f'<figure><div class="drawn" tabindex="0">{drawn}</div>'
        f"<figcaption>{markup.text(words)}</figcaption></figure>"
    )
