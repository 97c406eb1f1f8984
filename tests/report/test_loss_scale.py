import json

from brimful.report.charts import loss_scale_chart
from brimful.report.html import render_report
from brimful.report.run_folder import read_run_folder
from brimful.values.run_files import TrainRow


def rows(*scales):
    """Steps at these scales; a step is skipped where the next scale is smaller."""
    pairs = zip(scales, [*scales[1:], scales[-1]], strict=True)
    for step, (scale, following) in enumerate(pairs, start=1):
        is_skipped = following < scale
        yield TrainRow(
            step=step,
            loss=3.0,
            learning_rate=0.1,
            grad_norm=None if is_skipped else 1.0,
            tokens_per_s=1.0,
            step_s=1.0,
            loss_scale=scale,
            skipped=is_skipped,
        )


def test_the_scale_is_drawn_as_a_power_of_two_with_the_skipped_steps_on_it():
    chart = loss_scale_chart(tuple(rows(2.0**16, 2.0**15, 2.0**15, 2.0**14)))
    assert chart.x == (1, 2, 3, 4)
    assert {series.label: series.values for series in chart.series} == {
        "loss scale": (16, 15, 15, 14),
        "skipped": (16, None, 15, None),
    }


def test_a_scale_without_skips_has_no_points_and_no_scale_no_chart():
    chart = loss_scale_chart(tuple(rows(8.0, 8.0)))
    assert [series.label for series in chart.series] == ["loss scale"]
    plain = TrainRow(step=1, loss=1.0, learning_rate=0.1, grad_norm=1, tokens_per_s=1, step_s=1)
    assert loss_scale_chart((plain,)) is None
    assert loss_scale_chart(()) is None


def test_a_long_run_keeps_every_step_of_the_scale():
    scales = [2.0 ** (16 - step // 5000) for step in range(20_000)]
    chart = loss_scale_chart(tuple(rows(*scales)))
    assert len(chart.x) < 5000
    drawn = {series.label: series.values for series in chart.series}
    assert {value for value in drawn["loss scale"] if value is not None} == {16, 15, 14, 13}
    assert sum(value is not None for value in drawn["skipped"]) == 3


def test_the_page_draws_the_scale_only_where_there_is_one(full_run):
    assert 'id="loss-scale-chart"' not in render_report(read_run_folder(full_run))
    lines = (full_run / "metrics.jsonl").read_text().splitlines()
    scaled = [{**json.loads(line), "loss_scale": 1024.0} for line in lines if "train" in line]
    scaled[3] |= {"skipped": True, "grad_norm": None, "loss": None}
    (full_run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scaled))
    page = render_report(read_run_folder(full_run))
    assert 'id="loss-scale-chart"' in page
    assert "Loss scale 1024 at the end; 1 of 30 steps were skipped" in page


def test_the_page_says_perplexity_accuracy_and_the_best(full_run):
    added = (
        {"kind": "eval", "step": 28, "heldout_loss": 0.25, "is_best": True},
        {"kind": "eval", "step": 30, "heldout_loss": 0.5, "perplexity": 1.6487, "accuracy": 0.75},
    )
    path = full_run / "metrics.jsonl"
    path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in added))
    page = render_report(read_run_folder(full_run))
    words = (
        "Held-out loss 0.500 at step 30, perplexity 1.649, accuracy 75.00 %; "
        "the lowest was 0.250 at step 28."
    )
    assert words in page
