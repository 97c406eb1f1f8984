"""The parts of the page about what was learnt: losses, and the curves that go with them."""

from collections.abc import Sequence

from brimful.report.charts import (
    gradient_norm_chart,
    learning_rate_chart,
    loss_chart,
    loss_scale_chart,
)
from brimful.report.figures import chart_figure
from brimful.report.run_folder import RunFolder
from brimful.show import markup
from brimful.show.markup import Html
from brimful.units import format_count
from brimful.values.job import PREFERENCE, Task
from brimful.values.run_files import DataSummary, LoopRow, TrainRow
from brimful.values.task_words import is_per_sample, judged_by


def loss_section(folder: RunFolder) -> Html | None:
    """Draw the losses, with the entropy of the unigrams as the mark to pass."""
    task = folder.plan.job.task
    chart = loss_chart(folder.train_rows, folder.eval_rows, folder.data, task)
    if chart is None:
        return None
    caption = []
    if folder.eval_rows:
        # Say the last result on held-out data, and the best where it was another.
        last, best = folder.eval_rows[-1], min(folder.eval_rows, key=lambda row: row.heldout_loss)
        text = f"Held-out loss {last.heldout_loss:.3f} at step {last.step}"
        if last.perplexity is not None:
            text += f", perplexity {last.perplexity:.4g}"
        if last.accuracy is not None:
            text += f", accuracy {100 * last.accuracy:.2f} %"
        if best.step != last.step:
            text += f"; the lowest was {best.heldout_loss:.3f} at step {best.step}"
        caption.append(f"{text}.")
    if folder.data is not None:
        caption.append(f"{_bar_words(folder.data, task)} {_data_words(folder.data, task)}")
    blown = sum(row.loss is None for row in folder.train_rows)
    if blown:
        caption.append(f"The loss was not finite in {blown} steps, which are left out.")
    words = f"Line chart of the loss over {len(folder.train_rows)} steps. {' '.join(caption)}"
    return chart_figure("loss", chart, words, " ".join(caption))


def curves_section(rows: Sequence[TrainRow | LoopRow]) -> Html | None:
    """Draw what goes with the loss: learning rate, gradient norm, loss scale."""
    charts = (
        ("rate", learning_rate_chart(rows), "Learning rate of every step."),
        ("norm", gradient_norm_chart(rows), _norm_words(rows)),
    )
    figures = [
        chart_figure(key, chart, f"Line chart over {len(rows)} steps. {words}", words)
        for key, chart, words in charts
        if chart is not None
    ]
    figures.append(_loss_scale_figure([row for row in rows if isinstance(row, TrainRow)]))
    return markup.join(figures) or None


def _norm_words(rows: Sequence[TrainRow | LoopRow]) -> str:
    known = [row for row in rows if row.grad_norm is not None]
    if not known:
        return ""
    largest = max(known, key=lambda row: row.grad_norm or 0.0)
    return (
        f"Global norm of the gradients before clipping; the largest, {largest.grad_norm:.3g}, at "
        f"step {largest.step}."
    )


def _bar_words(data: DataSummary, task: Task) -> str:
    bar = f"{data.unigram_entropy:.3f}"
    if task == PREFERENCE:
        return f"The reference model scores {bar}: below it the model has learned to prefer."
    return (
        f"A model that knows only how often each {'label' if is_per_sample(task) else 'token'} "
        f"occurs scores {bar}, the {judged_by(task)}: below it the model has learned more."
    )


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
